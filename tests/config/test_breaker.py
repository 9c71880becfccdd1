"""`breaker:` of the defaults and of versions."""

from __future__ import annotations

import pytest

from controlplane.model.policy import BreakerPolicy, Strategy

from .written import Directory, errors, find, warnings


def policies(directory: Directory) -> dict[str, BreakerPolicy]:
    loaded = directory.load()
    assert loaded.policy is not None, loaded.problems
    assert not errors(loaded)
    return {pool.id: pool.breaker for pool in loaded.policy.pools}


def with_breaker(directory: Directory, defaults: str = "", own: str = "") -> None:
    directory.change_main("models:\n", f"defaults: {{breaker: {{{defaults}}}}}\nmodels:\n")
    directory.change_main('["10.0.0.1:8000"]', f'["10.0.0.1:8000"], breaker: {{{own}}}')


def test_without_a_word_every_version_has_the_built_in_one(directory: Directory) -> None:
    assert set(policies(directory).values()) == {BreakerPolicy()}


def test_a_version_says_what_differs_from_the_defaults(directory: Directory) -> None:
    with_breaker(
        directory, "open_s: 10, failure_rate_threshold: 0.2", "open_s: 5, guards: off, strategy: static"
    )
    found = policies(directory)
    assert found["chat:v2"] == BreakerPolicy(open_s=10, failure_rate_threshold=0.2)
    own = BreakerPolicy(open_s=5, failure_rate_threshold=0.2, guards=False, strategy=Strategy.STATIC)
    assert found["chat:v1"] == own


def test_the_slo_of_the_version_is_the_upper_bound(directory: Directory) -> None:
    directory.change_main("models:\n", "slos: {chat: {ttft_s: 0.8}, 'chat:v2': {ttft_s: 3}}\nmodels:\n")
    found = policies(directory)
    assert [found[id].slo_s for id in ("chat:v1", "chat:v2", "embed:e1")] == [0.8, 3, None]


@pytest.mark.parametrize(("timeout_s", "warmup_s"), [(5, 8), (11.9, 8), (60, 41)])
def test_a_half_open_timeout_shorter_than_the_warm_up_is_refused(
    directory: Directory, timeout_s: float, warmup_s: float
) -> None:
    with_breaker(directory, "", f"half_open_timeout_s: {timeout_s}, warmup_s: {warmup_s}")
    problem = find(directory.load(), path="models.chat.versions.v1.breaker.half_open_timeout_s")
    assert problem.expected == f"at least {1.5 * warmup_s:g}"


def test_8_s_of_warm_up_need_12(directory: Directory) -> None:
    with_breaker(directory, "", "half_open_timeout_s: 12, warmup_s: 8")
    assert policies(directory)["chat:v1"].half_open_timeout_s == 12


def test_a_timeout_nobody_wrote_is_long_enough(directory: Directory) -> None:
    with_breaker(directory, "", "warmup_s: 100")
    found = policies(directory)
    assert (found["chat:v1"].half_open_timeout_s, found["chat:v2"].half_open_timeout_s) == (150, 60)


def test_a_short_timeout_of_the_defaults_is_named_there(directory: Directory) -> None:
    with_breaker(directory, "half_open_timeout_s: 20", "warmup_s: 30")
    find(directory.load(), path="defaults.breaker.half_open_timeout_s", message="chat:v1")


@pytest.mark.parametrize(
    "wrong",
    [
        "failure_rate_threshold: 10",
        "failure_rate_threshold: 0",
        "open_s: 0",
        "strategy: fast",
        "guards: maybe",
        "enabled: 1",
        "threshold: 3",
    ],
)
def test_what_makes_no_sense_is_an_error(directory: Directory, wrong: str) -> None:
    with_breaker(directory, wrong)
    assert errors(directory.load())


def test_a_static_threshold_needs_an_slo(directory: Directory) -> None:
    with_breaker(directory, "", "strategy: static")
    found = [problem.path for problem in warnings(directory.load())]
    assert found == ["models.chat.versions.v1.breaker.strategy"]
