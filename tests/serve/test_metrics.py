import pytest
from fake_view import NOW_S, FakeView, decision, observation, policy, xds_status
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.model.policy import Mode
from controlplane.model.signal import KeyTraffic, Observation
from controlplane.serve.collector import ViewCollector
from controlplane.serve.metrics import ACK_BUCKETS_S, Metrics
from controlplane.serve.view import Control, Moment

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(registry: CollectorRegistry) -> Series:
    text = generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float | None:
    return series.get((name, frozenset(labels.items())))


def of_view(view: FakeView, **options: int) -> tuple[ViewCollector, Series]:
    registry = CollectorRegistry()
    collector = ViewCollector(view, **options)
    registry.register(collector)
    return collector, scraped(registry)


def test_a_pool_shows_rate_target_factor_and_utilisation_as_a_ratio() -> None:
    _, series = of_view(FakeView.running())
    at = {"model_version": "chat:v1"}
    assert value(series, "tidegate_pool_rate_per_second", **at) == 40.0
    assert value(series, "tidegate_pool_target_per_second", **at) == 40.0
    assert value(series, "tidegate_pool_factor_ratio", **at) == 0.4
    assert value(series, "tidegate_pool_utilisation_ratio", **at) == 0.6


def test_exactly_one_state_of_a_pool_is_one() -> None:
    _, series = of_view(FakeView.running())
    states = {
        dict(labels)["state"]: number
        for (name, labels), number in series.items()
        if name == "tidegate_pool_state" and ("model_version", "chat:v1") in labels
    }
    assert states.pop("live") == 1.0
    assert set(states.values()) == {0.0}


def test_a_breaker_shows_its_state_and_threshold() -> None:
    _, series = of_view(FakeView.running())
    states = {
        state: value(series, "tidegate_breaker_state", model_version="chat:v1", state=state)
        for state in ("closed", "open", "half-open")
    }
    assert states == {"closed": 1.0, "open": 0.0, "half-open": 0.0}
    assert value(series, "tidegate_breaker_threshold_seconds", model_version="chat:v1") == 0.5


def test_a_key_shows_its_limit_and_burst() -> None:
    _, series = of_view(FakeView.running())
    at = {"route": "chat", "tenant": "acme", "model_version": "chat:v1"}
    assert value(series, "tidegate_limit_per_second", **at) == 20.0
    assert value(series, "tidegate_limit_burst", **at) == 20.0


def test_what_is_not_known_has_no_series_and_never_a_zero() -> None:
    _, series = of_view(FakeView.running())
    assert value(series, "tidegate_signal_value", model_version="chat:v2", signal="gpu_util_percent") is None
    assert value(series, "tidegate_signal_absent", model_version="chat:v2", signal="gpu_util_percent") == 1.0
    assert value(series, "tidegate_signal_absent", model_version="chat:v1", signal="gpu_util_percent") == 0.0
    age = value(series, "tidegate_signal_age_seconds", model_version="chat:v1", signal="kv_cache_usage_ratio")
    assert age == 60.0
    last = policy().keys[-1]
    at = {"route": last.route, "tenant": last.tenant, "model_version": last.pool}
    assert value(series, "tidegate_demand_per_second", **at) is None


def test_before_the_first_tick_only_the_process_and_its_state_are_shown() -> None:
    _, series = of_view(FakeView.starting())
    assert value(series, "tidegate_ready") == 0.0
    assert not any(name.startswith(("tidegate_pool", "tidegate_limit")) for name, _ in series)


@pytest.mark.parametrize("cap", [0, 3, 1000])
def test_key_series_stay_under_the_cap_and_the_rest_is_summed(cap: int) -> None:
    many = policy(tenants=tuple(f"t{number:04d}" for number in range(500)))
    tick = Moment(policy=many, decision=decision(many), observation=observation(many, traffic=False))
    view = FakeView(in_force=many, tick=tick)
    _, series = of_view(view, key_series=cap)
    rates = {
        labels: number for (name, labels), number in series.items() if name == "tidegate_limit_per_second"
    }
    assert len(rates) <= cap + len(many.pools)
    assert sum(rates.values()) == pytest.approx(2 * 40.0)
    assert (value(series, "tidegate_keys_without_series") or 0) == max(0, len(many.keys) - cap)


def test_requests_are_counted_from_rates_and_ticks() -> None:
    view = FakeView.running()
    registry = CollectorRegistry()
    collector = ViewCollector(view)
    registry.register(collector)
    of = policy()
    seen = Observation(
        now_s=NOW_S,
        loads={},
        traffic={
            of.keys[0].id: KeyTraffic(
                offered_per_s=30.0, limited_per_s=10.0, would_limit_per_s=2.0, by_rule={"adaptive": 12.0}
            ),
            "gone|from|policy:v1": KeyTraffic(offered_per_s=1.0),
        },
    )
    for _ in range(3):
        collector.count_traffic(of, seen, 2.0)
    series = scraped(registry)
    at = {"route": "chat", "tenant": "acme", "model_version": "chat:v1"}
    assert value(series, "tidegate_offered_total", **at) == pytest.approx(180.0)
    assert value(series, "tidegate_limited_total", **at) == pytest.approx(60.0)
    assert value(series, "tidegate_would_limit_total", **at) == pytest.approx(12.0)
    assert value(series, "tidegate_over_limit_total", **at, rule="adaptive") == pytest.approx(72.0)
    assert not any(("tenant", "from") in labels for _, labels in series)


def test_mode_and_freeze_are_shown() -> None:
    _, series = of_view(FakeView.running(switches=Control(mode=Mode.OBSERVE, frozen=True)))
    assert value(series, "tidegate_mode", mode="observe") == 1.0
    assert value(series, "tidegate_mode", mode="enforce") == 0.0
    assert value(series, "tidegate_frozen") == 1.0


def test_gateways_and_quarantine_are_shown() -> None:
    _, series = of_view(FakeView.running(xds=xds_status(nack="bad")))
    assert value(series, "tidegate_xds_gateways") == 1.0
    assert value(series, "tidegate_xds_unsettled_gateways") == 1.0
    assert value(series, "tidegate_xds_quarantined_resources") == 1.0
    assert value(series, "tidegate_xds_resources", type="ECDS") == 3.0


def test_events_are_counted_in_base_units() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, version="1.2.3")
    metrics.tick_done(duration_s=0.02, cpu_s=0.01)
    metrics.tick_failed()
    metrics.pushed("ECDS", 2)
    metrics.acked("ECDS", publish_to_ack_s=0.03)
    metrics.nacked("NEW")
    metrics.visible_to_acked(0.09)
    metrics.config_read("rejected")
    metrics.limits_changed({"key": 5})
    series = scraped(registry)
    assert value(series, "tidegate_build_info", version="1.2.3") == 1.0
    assert value(series, "tidegate_tick_duration_seconds_count") == 1.0
    assert value(series, "tidegate_tick_cpu_seconds_total") == 0.01
    assert value(series, "tidegate_tick_failures_total") == 1.0
    assert value(series, "tidegate_xds_pushes_total", type="ECDS") == 2.0
    assert value(series, "tidegate_xds_pushes_total", type="CDS") == 0.0
    assert value(series, "tidegate_xds_nacks_total", type="other") == 1.0
    assert value(series, "tidegate_xds_publish_to_ack_seconds_bucket", le="0.05") == 1.0
    assert value(series, "tidegate_signal_visible_to_ack_seconds_bucket", le="0.1") == 1.0
    assert value(series, "tidegate_signal_visible_to_ack_seconds_bucket", le="0.05") == 0.0
    assert value(series, "tidegate_config_reloads_total", outcome="rejected") == 1.0
    assert value(series, "tidegate_limit_changes_total", kind="key") == 5.0


def test_the_promised_reaction_times_are_bucket_boundaries() -> None:
    assert {0.005, 0.1, 0.8, 2.0} <= set(ACK_BUCKETS_S)


def test_the_counters_of_tenants_that_left_are_dropped() -> None:
    registry = CollectorRegistry()
    collector = ViewCollector(FakeView.running())
    registry.register(collector)
    for number in range(50):
        of = policy(tenants=(f"t{number}", "acme"))
        traffic = {key.id: KeyTraffic(offered_per_s=1.0, by_rule={"adaptive": 1.0}) for key in of.keys}
        collector.count_traffic(of, Observation(now_s=NOW_S, loads={}, traffic=traffic), 1.0)
    series = scraped(registry)
    at = {"route": "chat", "tenant": "acme", "model_version": "chat:v1"}
    assert value(series, "tidegate_offered_total", **at) == 50.0
    offered = [
        labels for name, labels in series if name in ("tidegate_offered_total", "tidegate_over_limit_total")
    ]
    assert len(offered) == 2 * len(policy(tenants=("t49", "acme")).keys)
