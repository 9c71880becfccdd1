"""What a gateway does with requests while a breaker is not closed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from lua_scripts import Headers, Script, Stream, limits
from sample_policy import decision_of, policy_of

from controlplane.model.decision import BreakerDecision, BreakerState
from controlplane.model.policy import Mode, Policy, Route
from controlplane.xds import names
from controlplane.xds.lua_breaker import breakers

POOL = "llama:r2"
REQUESTS = f"tg_requests~chat~acme~{POOL}~"


def breaker(state: BreakerState, **fields: Any) -> BreakerDecision:
    given: dict[str, Any] = {"threshold_s": None, "failure_ratio": None, "reason": "because"}
    return BreakerDecision(pool=POOL, state=state, **(given | fields))


OPEN = breaker(BreakerState.OPEN, retry_after_s=17)
HALF_OPEN = breaker(BreakerState.HALF_OPEN, probe_ratio=0.5, believed_s=90)


def script(made: BreakerDecision, policy: Policy | None = None) -> Script:
    policy = policy or policy_of()
    return limits(policy, replace(decision_of(policy), breakers={POOL: made}))


def ask(of: Script, model: str = "llama", *, headers: Headers = (), route: str = "chat") -> Stream:
    metadata = {names.METADATA: {"tenant": "acme"}, names.BODY_METADATA: {"model": model}}
    return of.stream(route=route, headers=headers, metadata=metadata).request()


def passed(stream: Stream) -> bool:
    return stream.refusal is None


def status(stream: Stream) -> list[str]:
    return [value for name, value in stream.upstream if name == "resilience.status"]


def test_an_open_breaker_refuses_before_anything_is_charged() -> None:
    gateway = script(OPEN)
    stream = ask(gateway)
    assert stream.refusal is not None
    assert (stream.refusal[":status"], stream.refusal["retry-after"]) == ("503", "17")
    error = json.loads(stream.refusal_body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("server_error", "circuit_open", None)
    assert "u1" not in stream.metadata
    assert gateway.counters() == {REQUESTS + "offered": 1, REQUESTS + "shed~breaker": 1}


def test_every_refusal_has_the_same_body() -> None:
    gateway = script(OPEN)
    assert len({ask(gateway).refusal_body for _ in range(5)}) == 1


def test_other_versions_never_notice() -> None:
    stream = ask(script(OPEN), "llama:r1")
    assert passed(stream)
    assert status(stream) == ["closed"]


def test_free_routes_are_not_stopped() -> None:
    routes = [
        Route(id="chat", pattern="/v1/chat", models=("llama",)),
        Route(id="free", pattern="/v1/models", models=("llama",), free=True),
    ]
    assert passed(ask(script(OPEN, policy_of(routes=routes)), route="free"))


def test_a_tenant_without_the_right_is_told_so_first() -> None:
    stream = script(OPEN).stream(
        metadata={names.METADATA: {"tenant": "nobody"}, names.BODY_METADATA: {"model": "llama"}}
    )
    refusal = stream.request().refusal
    assert refusal is not None
    assert refusal[":status"] == "403"


def test_grpc_clients_are_told_unavailable() -> None:
    refusal = ask(script(OPEN), headers=[("content-type", "application/grpc")]).refusal
    assert refusal is not None
    assert (refusal["grpc-status"], refusal["retry-after"]) == ("14", "17")


def test_retry_after_counts_down() -> None:
    gateway = script(OPEN)
    ask(gateway)
    gateway.world.now_ms += 9_500
    refusal = ask(gateway).refusal
    assert refusal is not None
    assert refusal["retry-after"] == "8"


def test_half_open_lets_a_few_pass_and_says_so() -> None:
    gateway = script(HALF_OPEN)
    answers = []
    for _ in range(400):
        answers.append(ask(gateway))
        gateway.world.now_ms += 50
    tries = [stream for stream in answers if passed(stream)]
    assert 20 <= len(tries) <= 3 * 21, "a share, and three a second at most"
    assert {value for stream in tries for value in status(stream)} == {"half-open"}
    refused = [stream.refusal for stream in answers if stream.refusal is not None]
    assert {refusal["retry-after"] for refusal in refused} == {"3"}


def test_a_crowd_at_once_is_bounded_whatever_the_share() -> None:
    gateway = script(breaker(BreakerState.HALF_OPEN, probe_ratio=1.0, believed_s=90))
    assert sum(passed(ask(gateway)) for _ in range(1000)) == 3


def test_each_push_draws_other_lots() -> None:
    """Scripts are exchanged every second; with the same first lot nobody, or everybody, would pass."""
    first = []
    for push in range(200):
        gateway = script(HALF_OPEN)
        gateway.world.now_ms += 1_000 * push
        first.append(passed(ask(gateway)))
    assert 60 < sum(first) < 140


def test_a_gateway_without_its_control_plane_lets_go_by_itself() -> None:
    gateway = script(OPEN)
    ask(gateway)
    gateway.world.now_ms += 17_000
    found = {tuple(status(stream)) for stream in (ask(gateway) for _ in range(3))}
    assert found <= {("half-open",), ()}
    gateway.world.now_ms += 90_000
    late = [ask(gateway) for _ in range(10)]
    assert all(passed(stream) and status(stream) == ["closed"] for stream in late)


def test_observe_mode_counts_and_lets_pass() -> None:
    gateway = script(OPEN, policy_of(mode=Mode.OBSERVE))
    stream = ask(gateway)
    assert passed(stream)
    assert status(stream) == ["open"]
    assert "u1" in stream.metadata
    assert gateway.counters() == {REQUESTS + "offered": 1, REQUESTS + "would_limit~breaker": 1}


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (breaker(BreakerState.CLOSED), "{}"),
        (OPEN, '{["llama:r2"]={open_s=17,half_s=107,share=1.000,enforced=true}}'),
        (HALF_OPEN, '{["llama:r2"]={open_s=0,half_s=90,share=0.500,enforced=true}}'),
    ],
)
def test_only_what_is_not_closed_is_pushed(made: BreakerDecision, text: str) -> None:
    assert breakers(replace(decision_of(policy_of()), breakers={POOL: made}), Mode.ENFORCE) == text
