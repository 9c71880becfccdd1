"""A policy, a decision and a fleet for each folder of tests/golden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from policies import CHAT, POOL, decision, policy, tenant

from controlplane.model.decision import Decision
from controlplane.model.gateway import GatewayMember
from controlplane.model.policy import (
    Endpoint,
    Gateways,
    IdentityMode,
    JwtProvider,
    Listener,
    Mode,
    ModelFrom,
    Policy,
    PolicyService,
    Pool,
    Priority,
    Quota,
    Route,
    SourceRef,
    WindowLimit,
)

_ONE = (GatewayMember(id="gw0", address="10.0.0.1", port=8080),)
_JWKS = (
    '{"keys":[{"kty":"oct","alg":"HS256","kid":"k","k":"c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ1Njc4"}]}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is translated."""

    policy: Policy
    decision: Decision
    members: tuple[GatewayMember, ...] = _ONE


def minimal() -> Case:
    made = policy()
    return Case(policy=made, decision=decision(made, 10.0))


def two_versions() -> Case:
    second = replace(POOL, version="r2", endpoints=(Endpoint(address="127.0.0.1", port=9002),))
    made = policy(["acme", "zeta"], pools=(POOL, second), gateways=Gateways(max_count=4))
    rates = {"m:r1": 37.5, "m:r2": 0.0}
    members = tuple(GatewayMember(id=f"gw{n}", address=f"10.0.0.{n}", port=8080) for n in (2, 1))
    return Case(
        policy=made, decision=decision(made, lambda key: rates[key.pool], gateways=2), members=members
    )


def dns_pool() -> Case:
    pool = Pool(
        model="m",
        version="r1",
        dns=True,
        http2=True,
        endpoints=(Endpoint(address="b.models", port=80), Endpoint(address="a.models", port=80)),
        max_requests=64,
        connect_timeout_s=0.5,
    )
    made = policy(pools=(pool,))
    return Case(policy=made, decision=decision(made, 10.0))


def free_route() -> Case:
    routes = (
        Route(id="models", pattern="/v1/models", models=(), free=True, identity=IdentityMode.NONE),
        Route(id="mine", pattern="/v1/mine", models=(), free=True),
        Route(id="embeddings", pattern="/v1/embeddings", models=("m",), free=True),
        Route(id="fixed", pattern="/infer/*", models=("m",), model_from=ModelFrom.FIXED, fixed_model="m:r1"),
        Route(
            id="grpc", pattern="/i.Infer/*", models=("m",), model_from=ModelFrom.HEADER, model_header="x-m"
        ),
        replace(CHAT, idle_timeout_s=30.0, max_stream_duration_s=600.0),
        Route(id="all", pattern="/*", models=("m",), identity=IdentityMode.DEFAULT_TENANT),
    )
    made = policy(["acme", "guest"], routes=routes, default_tenant="guest")
    return Case(policy=made, decision=decision(made, 10.0))


def jwt() -> Case:
    providers = (
        JwtProvider(name="second", issuer="https://b.example", audiences=(), jwks_json=_JWKS),
        JwtProvider(
            name="first",
            issuer="https://a.example",
            audiences=("gateway", "other"),
            jwks_json=_JWKS,
            tenant_claim="org.tenant",
        ),
    )
    made = policy([tenant("acme", jwt_values=("acme-inc", "acme-labs"))], jwt=providers)
    return Case(policy=made, decision=decision(made, 10.0))


def windows() -> Case:
    limits = (
        WindowLimit(
            name="per-minute",
            tokens=1000,
            window_s=60,
            burst_tokens=100,
            key_fields=("tenant_id", "model_version"),
        ),
        WindowLimit(
            name="hourly",
            tokens=3600,
            window_s=3600,
            burst_tokens=360,
            key_fields=("tenant_id", "path"),
            tenant_id="acme",
        ),
    )
    made = policy(["acme", "zeta"], windows=limits)
    return Case(policy=made, decision=decision(made, 10.0))


def observe() -> Case:
    made = policy(mode=Mode.OBSERVE)
    return Case(policy=made, decision=decision(made, 10.0))


def nasty_names() -> Case:
    pools = tuple(
        Pool(model=name, version=version, endpoints=(Endpoint(address="::1", port=9),))
        for name, version in (("n", "on"), ("1e3", "null"), ("org/m-3.1_x", "2024-06.b"), ("a.b", "v.1"))
    )
    route = Route(id="yes", pattern="/v1/chat/completions", models=tuple(pool.model for pool in pools))
    names = ["n", "on", "1e3", "null", "0x10", "x" * 128, "a.b-c_d"]
    made = policy(
        [tenant(name, priority=Priority.BATCH) for name in names],
        pools=pools,
        routes=(replace(route, ref=SourceRef(file="tidegate.yaml", line=7)),),
        listener=Listener(address="::", port=1, max_request_bytes=4096, health_path="/on"),
    )
    return Case(policy=made, decision=decision(made, 0.005))


def many_tenants() -> Case:
    made = policy([f"tenant-{number:03d}" for number in range(200)], gateways=Gateways(max_count=3))
    rates = {f"tenant-{number:03d}": number / 8 for number in range(200)}
    return Case(policy=made, decision=decision(made, rates, floor_per_s=0.1), members=())


def quotas() -> Case:
    second = replace(POOL, version="r2")
    bought = (Quota(model_version="m:r2", tokens=800_000, period="daily"),)
    made = policy(
        [tenant("acme", quotas=bought), "zeta"],
        pools=(POOL, second),
        policy_service=PolicyService(address="tidegate-policy.svc", port=18001),
    )
    return Case(policy=made, decision=decision(made, 10.0))


def cors() -> Case:
    made = policy(cors_allow_origins=("https://app.example", "*"))
    return Case(policy=made, decision=decision(made, 10.0))


CASES: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        minimal,
        two_versions,
        dns_pool,
        free_route,
        jwt,
        windows,
        observe,
        nasty_names,
        many_tenants,
        cors,
        quotas,
    )
}
