import io

import pytest
from rich.console import Console, RenderableType

from controlplane.cli.table import (
    GatewayRow,
    LimitRow,
    PoolRow,
    age,
    gateways_table,
    limits_table,
    pools_table,
    rate,
)


def row(model_version: str, tenant: str, **more: object) -> LimitRow:
    numbers: dict[str, object] = {
        "offered_per_s": 62.3,
        "admitted_per_s": 20.0,
        "limited_per_s": 42.3,
        "rate_per_s": 20.0,
        "burst_requests": 20.0,
        "why": "weighted share of the pool's rate",
    }
    return LimitRow(model_version=model_version, tenant=tenant, **(numbers | more))  # type: ignore[arg-type]


def drawn(what: RenderableType, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.005, "0.0050"),
        (0.25, "0.25"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (42.35, "42.4"),
        (99.96, "100"),
        (1234.5, "1,234"),
    ],
)
def test_rates_keep_about_three_digits(value: float | None, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.42, "0.4 s"), (12.3, "12 s"), (300.0, "5 min")]
)
def test_ages_are_readable(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_a_model_version_has_a_line_of_its_own_that_sums_its_tenants() -> None:
    lines = drawn(
        limits_table([row("chat:v1", "acme"), row("chat:v1", "globex"), row("chat:v2", "acme")]), 100
    )
    total = next(line for line in lines if line.startswith("chat:v1"))
    assert total.split()[1:6] == ["125", "40.0", "84.6", "40.0", "40.0"]
    assert [line.split()[0] for line in lines[2:]] == ["chat:v1", "acme", "globex", "chat:v2", "acme"]


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    lines = drawn(limits_table([row("chat:v1", "acme"), row("chat:v1", "globex", offered_per_s=None)]), 100)
    assert next(line for line in lines if line.startswith("chat:v1")).split()[1] == "-"


def test_in_observe_mode_the_column_says_that_nothing_was_refused() -> None:
    assert "would lim" in drawn(limits_table([row("chat:v1", "acme", would_limit=True)]), 100)[0]


def test_square_brackets_in_names_and_errors_are_text_and_not_markup() -> None:
    gateway = GatewayRow(
        node="gw", address="a", protocol="delta", settled=False, waiting=1, refused=1, last_nack="[red]:3: x"
    )
    assert "[red]:3: x" in "".join(drawn(gateways_table([gateway]), 120))
    assert "[b]" in "".join(drawn(limits_table([row("chat:v1", "[b]")]), 120))


@pytest.mark.parametrize("width", [80, 120])
def test_every_table_fits_and_shows_every_number(width: int) -> None:
    long = "a-rather-long-model-name-for-a-table:2024-06-01"
    pool = PoolRow(
        model_version=long,
        state="uninformative",
        utilisation_percent=100.0,
        factor=0.1,
        rate_per_s=1e6,
        age_s=1e4,
        why="the counter says 99 % while nothing waits and answers are quick: it lost its vote",
    )
    limits = drawn(limits_table([row(long, "a-rather-long-tenant-name", offered_per_s=123456.0)]), width)
    pools = drawn(pools_table([pool]), width)
    assert max(map(len, limits + pools)) <= width
    assert "123,456" in "".join(limits)
    assert "1,000,000" in "".join(pools)
    assert "uninformative" in "".join(pools)
