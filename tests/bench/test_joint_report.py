from __future__ import annotations

from bench.__main__ import NAMES, merged
from controlplane.report import Criterion, Report


def report(holds: bool) -> dict[str, object]:
    made = Criterion(id="cpu", must="<= 5", measured=3.0, unit="ms", holds=holds)
    return Report(criteria=(made,), details={"keys": 7}).to_dict()


def test_the_joint_report_passes_only_if_every_benchmark_does() -> None:
    assert merged({"tick": report(True), "decide": report(True)}).passed
    assert not merged({"tick": report(True), "decide": report(False)}).passed


def test_criteria_and_details_keep_the_name_of_their_benchmark() -> None:
    found = merged({"tick": report(True), "decide": report(True)}).to_dict()
    assert [criterion["id"] for criterion in found["criteria"]] == ["tick.cpu", "decide.cpu"]
    assert found["tick"] == {"keys": 7}


def test_every_benchmark_is_run() -> None:
    assert {"tick", "decide", "translate"} <= set(NAMES)
