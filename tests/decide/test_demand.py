import math

import numpy as np
import pytest

from controlplane.decide.demand import Demand, follow, read_traffic
from controlplane.model.signal import KeyTraffic

INDEX = {"a": 0, "b": 1}


def after(demand: Demand, dt_s: float = 1.0, **offered: float) -> Demand:
    counted = {name: KeyTraffic(offered_per_s=rate) for name, rate in offered.items()}
    return follow(demand, read_traffic(INDEX, counted), dt_s)


def unknown() -> Demand:
    return Demand(offered_per_s=np.array([np.nan, np.nan]))


def test_the_first_counters_are_believed_at_once() -> None:
    assert after(unknown(), a=5.0, b=0.0).offered_per_s.tolist() == [5.0, 0.0]


def test_a_rise_counts_at_once() -> None:
    assert after(after(unknown(), a=5.0), a=80.0).offered_per_s[0] == 80.0


def test_a_fall_takes_about_five_seconds() -> None:
    start = after(unknown(), a=100.0)
    assert after(start, 5.0, a=0.0).offered_per_s[0] == pytest.approx(100 / math.e)
    assert after(start, 60.0, a=0.0).offered_per_s[0] == 0.0


def test_a_key_that_was_not_counted_sent_nothing() -> None:
    assert after(unknown(), a=1.0).offered_per_s[1] == 0.0


@pytest.mark.parametrize("junk", [math.nan, -1.0, math.inf], ids=str)
def test_a_junk_counter_leaves_what_was_known(junk: float) -> None:
    assert after(after(unknown(), a=5.0), a=junk).offered_per_s[0] == 5.0


def test_without_counters_demand_is_kept_for_a_while_and_then_unknown() -> None:
    start = after(unknown(), a=5.0)
    assert follow(start, None, 15.0).offered_per_s[0] == 5.0
    assert np.isnan(follow(follow(start, None, 15.0), None, 1.0).offered_per_s).all()


def test_admitted_work_is_what_was_not_limited() -> None:
    counted = {"a": KeyTraffic(offered_per_s=10.0, limited_per_s=4.0), "zz": KeyTraffic(offered_per_s=1.0)}
    assert read_traffic(INDEX, counted).admitted_per_s.tolist() == [6.0, 0.0]
