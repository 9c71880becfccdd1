"""What is read off a record is what happened."""

from __future__ import annotations

import pytest
from platforms import four_pods

from controlplane.sim.des.figures import criteria, lines, littles_law_error, rows, served, ttft_s
from controlplane.sim.des.job import Job, Outcome
from controlplane.sim.des.scenario import steady
from controlplane.sim.des.study import Settings, prepare
from controlplane.sim.des.world import PATIENCE_S, Moment, Platform, Record

SLO = {"chat:v1": 2.0}
PLATFORM: Platform = prepare(four_pods(), steady(0.5), Settings(seconds=100)).platform


def job(arrived_s: float, outcome: Outcome, first_s: float = -1.0, end_s: float = -1.0, key: int = 0) -> Job:
    return Job(key, arrived_s, 100, 11, outcome=outcome, first_s=first_s, end_s=end_s)


JOBS = (
    job(1.0, Outcome.DONE, 1.5, 2.0),  # good
    job(2.0, Outcome.DONE, 4.5, 5.0),  # first token too late
    job(3.0, Outcome.DONE, 3.5, 4.6),  # 0.11 s between tokens
    job(4.0, Outcome.LIMITED, end_s=4.0),
    job(5.0, Outcome.GAVE_UP, end_s=15.0),
    job(6.0, Outcome.FAILED, end_s=7.0),
    job(99.0, Outcome.OPEN),
    job(7.0, Outcome.DONE, 7.1, 7.2, key=1),
)


def record(held: float, left: int = 1, overdrawn: float = 1.0) -> Record:
    moments = tuple(
        Moment(
            at_s=float(second),
            in_flight=0,
            waiting=0.0,
            kv_usage_ratio=0.5,
            gpu_util_ratio=1.0,
            pods_up=4,
            rate_per_s=float(second),
            factor=None,
        )
        for second in range(1, 101)
    )
    return Record(
        jobs=JOBS,
        moments={"chat:v1": moments},
        held={"chat:v1": held},
        left_in_pods=left,
        preemptions=0,
        overdrawn_ratio=overdrawn,
    )


# 1 + 3 + 1.6 + 10 + 1 + 1 (cut by the end) + 0.2 seconds of stay
HELD = 17.8 / 100


def test_a_tenants_row_counts_every_outcome() -> None:
    acme, globex, *_ = rows(PLATFORM, record(HELD), SLO)
    assert (acme.tenant, acme.offered, acme.admitted, acme.limited) == ("acme", 7, 6, 1)
    assert (acme.completed, acme.gave_up, acme.failed, acme.in_flight, acme.good) == (3, 1, 1, 1, 1)
    assert acme.good_ratio == pytest.approx(1 / 5)
    assert acme.good_tokens_per_s == pytest.approx((100 + 3 * 11) / 100)
    assert (globex.good, globex.ttft_p50_s) == (1, pytest.approx(0.1))


def test_a_client_that_gave_up_counts_with_its_patience() -> None:
    assert [ttft_s(each) for each in JOBS[:7]] == [0.5, 2.5, 0.5, None, PATIENCE_S, None, None]


def test_lines_are_means_of_their_bins() -> None:
    (line,) = lines(PLATFORM, record(HELD), SLO)
    assert line.bin_s == 1.0
    assert len(line.times_s) == 100
    assert line.offered_per_s[:5] == [0, 1, 1, 1, 1]
    assert line.limited_per_s[4] == 1
    assert line.rate_per_s[:3] == [1.0, 2.0, 3.0]
    assert set(line.factor) == {None}
    assert line.good_per_s[1] == 1
    assert line.good_per_s[-1] is None  # too late to be judged
    assert line.tenants["globex"][7] == 1


def test_good_work_is_put_beside_what_was_offered_while_that_is_less_than_pods_serve() -> None:
    (found,) = served(PLATFORM, record(HELD), SLO, pod_capacity_per_s=10.0)
    assert found.ratio == pytest.approx(2 / 7)


def test_good_work_is_put_beside_what_pods_serve_in_overload() -> None:
    (found,) = served(PLATFORM, record(HELD), SLO, pod_capacity_per_s=0.01)  # four pods: 0.04 a second
    assert found.ratio == pytest.approx(2 / (10 * 0.04))


def test_a_record_that_adds_up_holds() -> None:
    assert littles_law_error(PLATFORM, record(HELD)) == pytest.approx(0.0, abs=1e-9)
    assert all(criterion.holds for criterion in criteria(PLATFORM, record(HELD), len(JOBS)))


@pytest.mark.parametrize(
    ("broken", "offered", "criterion"),
    [
        (record(HELD), len(JOBS) + 1, "conservation.offered"),
        (record(HELD, left=2), len(JOBS), "conservation.in_flight"),
        (record(HELD + 1.0), len(JOBS), "littles_law"),
        (record(HELD, overdrawn=1.01), len(JOBS), "bucket_overdrawn"),
    ],
)
def test_a_record_that_does_not_add_up_is_found_out(broken: Record, offered: int, criterion: str) -> None:
    failed = [each.id for each in criteria(PLATFORM, broken, offered) if not each.holds]
    assert failed == [criterion]
