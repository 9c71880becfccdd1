"""The burst that binds now: the shortest class, from the wanted one up, in which a request fits."""

import numpy as np
import pytest
from policies import POOL, decision, policy

from controlplane.decide.burst import bursts_in_force_s


@pytest.mark.parametrize(
    ("rate_per_s", "gateways", "burst_s"),
    [
        (100.0, 1, 1.0),
        (1.0, 1, 1.0),
        (0.99, 1, 4.0),
        (0.2, 1, 15.0),
        (0.02, 1, 60.0),  # as deep as its floor needs
        (0.001, 1, 60.0),  # never deeper than the own class
        (0.0, 1, 60.0),
        (4.0, 4, 4.0),  # a fourth of 1 s at 4/s is a whole request but for Envoy's rounding
        (4.1, 4, 1.0),
    ],
)
def test_the_shortest_class_that_holds_a_request_binds(
    rate_per_s: float, gateways: int, burst_s: float
) -> None:
    made = policy(pools=(POOL,))
    found = bursts_in_force_s(made, decision(made, rate_per_s, floor_per_s=0.02, gateways=gateways))
    assert found.tolist() == [burst_s]


def test_a_class_that_is_not_deeper_than_the_wanted_one_is_the_burst() -> None:
    made = policy(pools=(POOL,))
    assert np.array_equal(bursts_in_force_s(made, decision(made, 50.0, burst_s=0.1)), [0.1])
