"""A moment of what `make fuzz` does for minutes."""

from __future__ import annotations

import pytest
from fuzzing import TARGETS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_is_read_does_no_harm(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        target.check(data.draw(target.inputs))

    run()
