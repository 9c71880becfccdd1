import json
from pathlib import Path

import pytest

from controlplane.report import Criterion, Report, write


def holding() -> Criterion:
    return Criterion.at_most("fast", 20.0, 3.5, "ms")


def test_a_report_passes_only_when_every_criterion_holds() -> None:
    assert Report(criteria=(holding(),)).passed
    assert not Report(criteria=(holding(), Criterion.equal("nacks", 0, 1))).passed


def test_a_report_that_shows_nothing_fails() -> None:
    assert Report(criteria=()).exit_code == 1


@pytest.mark.parametrize("measured", [None, float("nan"), float("inf")], ids=["none", "nan", "inf"])
def test_what_could_not_be_measured_does_not_hold(measured: float | None) -> None:
    assert not Criterion.at_most("a", 1.0, measured, "s").holds
    assert not Criterion.at_least("a", 1.0, measured, "s").holds


def test_the_file_has_the_one_shape(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    write(
        Report(criteria=(holding(),), details={"envoy": "1.40", "verdict": "hidden", "x": float("nan")}), path
    )
    assert json.loads(path.read_text()) == {
        "envoy": "1.40",
        "x": None,
        "verdict": "pass",
        "criteria": [{"id": "fast", "must": "<= 20", "measured": 3.5, "unit": "ms", "holds": True}],
    }
