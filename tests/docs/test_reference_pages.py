"""The reference pages name everything that there is, and nothing else."""

import re
from pathlib import Path

import pytest
from fake_view import FakeView, policy, xds_status
from prometheus_client import CollectorRegistry

from controlplane.model.decision import KEY_REASON_CODES, BreakerState, PoolState
from controlplane.policy.metrics import PolicyMetrics, QuotaCollector
from controlplane.serve.admin import admin_app
from controlplane.serve.collector import ViewCollector
from controlplane.serve.metrics import Metrics

DOCS = Path(__file__).parents[2] / "docs"
METRICS = (DOCS / "metrics.md").read_text()
ADMIN = (DOCS / "admin-api.md").read_text()


def exported() -> set[str]:
    """Names of all metrics of ours, as they are queried."""
    registry = CollectorRegistry()
    Metrics(registry, version="0")
    collector = ViewCollector(FakeView.running(xds=xds_status()), key_series=1)
    collector.count_traffic(policy(), FakeView.running().tick.observation, 1.0)  # type: ignore[union-attr,arg-type]
    registry.register(collector)
    PolicyMetrics(registry)
    registry.register(QuotaCollector(dict, lambda: False, lambda: 0.0))
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in registry.collect()
        if family.name.startswith("tidegate_")
    }


def described() -> set[str]:
    """Names in the tables of the page; `_x` after a name replaces its last words."""
    names: set[str] = set()
    for row in re.findall(r"^\| (`[^|]*`) \|", METRICS, re.M):
        whole, *more = re.findall(r"`([^`]+)`", row)
        names |= {name if name[0] != "_" else whole.replace("_pushes_total", name) for name in (whole, *more)}
    return {name for name in names if name.startswith("tidegate_")}


def test_every_metric_is_described_and_every_described_one_exists() -> None:
    assert described() == exported()


def test_every_address_of_the_admin_api_is_described() -> None:
    app = admin_app(FakeView.running(), registry=CollectorRegistry(), token=lambda: None)
    paths = {route.resource.canonical for route in app.router.routes() if route.resource} - {"/"}
    missing = {path for path in paths if f"{path}`" not in ADMIN}
    assert missing == set()


@pytest.mark.parametrize("word", [*KEY_REASON_CODES, *PoolState, *BreakerState])
def test_every_reason_and_state_is_described(word: str) -> None:
    assert f"`{word}`" in ADMIN


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []
