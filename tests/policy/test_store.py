"""What every store does, on memory and on a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from controlplane.policy.calendar import window
from controlplane.policy.quota import Account, Line, Verdict
from controlplane.policy.store import Reservation, Settled, Settlement, Store

LEASE_S, DAY_S = 3600.0, 86_400.0
_attempts = count()


def account(*limits: int, pool: str = "chat:v1", periods: Sequence[str] = ("daily", "monthly")) -> Account:
    lines = (Line(period=period, limit_tokens=limit) for period, limit in zip(periods, limits, strict=False))
    return Account(tenant="acme", pool=pool, lines=tuple(lines))


def asking(request: str, tokens: int, **more: Any) -> Reservation:
    more.setdefault("attempt", f"test-{next(_attempts)}")
    return Reservation(request=request, tokens=tokens, **more)


async def reserve(store: Store, of: Account, request: str, tokens: int, **more: Any) -> Verdict:
    return await store.reserve(of, asking(request, tokens, **more))


async def settle(store: Store, of: Account, request: str, tokens: int) -> Settled:
    return (await store.settle(of, Settlement(request=request, tokens=tokens))).settled


async def used(store: Store, of: Account, place: int = 0) -> tuple[int, int]:
    balance = (await store.show(of))[place]
    return balance.used_tokens, balance.reserved_tokens


async def test_what_is_used_takes_the_place_of_what_was_reserved(store: Store) -> None:
    of = account(1000)
    assert (await reserve(store, of, "r1", 300)).admitted
    assert await used(store, of) == (0, 300)
    assert await settle(store, of, "r1", 120) is Settled.SETTLED
    assert await used(store, of) == (120, 0)


async def test_usage_above_the_estimate_is_a_debit_and_nothing_gets_negative(store: Store) -> None:
    of = account(1000)
    await reserve(store, of, "r1", 900)
    await settle(store, of, "r1", 1500)
    (balance,) = await store.show(of)
    assert (balance.used_tokens, balance.remaining_tokens) == (1500, 0)
    assert not (await reserve(store, of, "r2", 1)).admitted


async def test_the_limit_itself_still_fits_and_one_more_does_not(store: Store) -> None:
    of = account(1000)
    assert (await reserve(store, of, "r1", 1000)).admitted
    assert not (await reserve(store, of, "r2", 1)).admitted


@pytest.mark.parametrize(("limit", "admitted"), [(0, False), (1, True)])
async def test_an_estimate_of_nothing_still_needs_something_left(
    store: Store, limit: int, admitted: bool
) -> None:
    assert (await reserve(store, account(limit), "r1", 0)).admitted is admitted


@pytest.mark.parametrize("limits", [(1000, 100), (100, 1000)])
async def test_refused_by_one_quota_is_charged_to_none(store: Store, limits: tuple[int, int]) -> None:
    of = account(*limits)
    assert not (await reserve(store, of, "r1", 500)).admitted
    assert [await used(store, of, place) for place in (0, 1)] == [(0, 0), (0, 0)]


async def test_settled_once_whatever_arrives(store: Store) -> None:
    of = account(1000)
    await reserve(store, of, "r1", 300)
    outcomes = [await settle(store, of, "r1", 100) for _ in range(3)]
    assert outcomes == [Settled.SETTLED, Settled.DUPLICATE, Settled.DUPLICATE]
    assert await used(store, of) == (100, 0)


async def test_a_request_that_was_never_reserved_is_charged_once(store: Store) -> None:
    of = account(1000, 5000)
    outcomes = [await settle(store, of, "r1", 100) for _ in range(2)]
    assert outcomes == [Settled.UNRESERVED, Settled.DUPLICATE]
    assert [await used(store, of, place) for place in (0, 1)] == [(100, 0), (100, 0)]


async def test_a_refused_request_costs_nothing_when_its_stream_ends(store: Store) -> None:
    of = account(100)
    await reserve(store, of, "r1", 500)
    assert [await settle(store, of, "r1", 500) for _ in range(2)] == [Settled.REFUSED, Settled.DUPLICATE]
    assert await used(store, of) == (0, 0)


async def test_a_request_id_that_a_client_repeats_is_charged_each_time(store: Store) -> None:
    of = account(1000)
    for tokens in (100, 200, 300):
        assert (await reserve(store, of, "same", tokens)).admitted
    assert await used(store, of) == (0, 600)
    for tokens in (50, 60, 70):
        assert await settle(store, of, "same", tokens) is Settled.SETTLED
    assert await settle(store, of, "same", 80) is Settled.DUPLICATE
    assert await used(store, of) == (180, 0)


async def test_the_same_attempt_sent_again_is_counted_once(open_store: Callable[[], Store]) -> None:
    of, ask = account(1000), asking("r1", 300)
    one, other = open_store(), open_store()
    assert (await one.reserve(of, ask)).admitted
    assert (await other.reserve(of, ask)).admitted
    assert await used(one, of) == (0, 300)
    await settle(other, of, "r1", 10)
    assert (await one.reserve(of, ask)).admitted
    assert await used(one, of) == (10, 0)


async def test_a_reservation_nobody_settles_is_charged_when_its_lease_ends(store: Store, clock: Any) -> None:
    of = account(10_000, periods=("monthly",))
    await reserve(store, of, "r1", 300)
    clock.now_s += LEASE_S - 1
    assert await used(store, of) == (0, 300)
    clock.now_s += 2
    assert await used(store, of) == (300, 0)


async def test_a_settlement_after_the_lease_corrects_what_was_charged(store: Store, clock: Any) -> None:
    of = account(10_000, periods=("monthly",))
    await reserve(store, of, "r1", 300)
    clock.now_s += LEASE_S + 1
    assert await settle(store, of, "r1", 120) is Settled.LATE
    assert await settle(store, of, "r1", 120) is Settled.DUPLICATE
    assert await used(store, of) == (120, 0)


async def test_fifty_requests_of_a_gateway_that_died_are_back_within_the_lease(
    store: Store, clock: Any
) -> None:
    of = account(10_000)
    for number in range(50):
        await reserve(store, of, f"r{number}", 10)
    clock.now_s += LEASE_S + 1
    assert (await used(store, of))[1] == 0


async def test_usage_belongs_to_the_window_it_was_reserved_in(store: Store, clock: Any) -> None:
    of = account(1000)
    clock.now_s = window(clock.now_s, "daily", "UTC").end_s - 1
    await reserve(store, of, "r1", 300)
    clock.now_s += 2
    assert await used(store, of) == (0, 0)
    await settle(store, of, "r1", 100)
    assert await used(store, of) == (0, 0)
    clock.now_s -= 2  # the clock is stepped back: the window is the old one, with what it has seen
    assert await used(store, of) == (100, 0)


async def test_a_clock_that_steps_back_over_midnight_grants_nothing(store: Store, clock: Any) -> None:
    of = account(1000)
    midnight = window(clock.now_s, "daily", "UTC").end_s
    for now_s, admitted in [(midnight - 10, True), (midnight + 10, True), (midnight - 5, False)] * 2:
        clock.now_s = now_s
        verdict = await reserve(store, of, f"r{now_s}-{next(_attempts)}", 1000)
        assert verdict.admitted is admitted or now_s != midnight - 5
    assert (await used(store, of)) == (0, 1000)


async def test_a_raised_limit_admits_at_once_and_a_lowered_one_leaves_no_more(
    store: Store,
) -> None:
    await reserve(store, account(1000), "r1", 1000)
    assert not (await reserve(store, account(1000), "r2", 500)).admitted
    assert (await reserve(store, account(1500), "r2", 500)).admitted
    (balance,) = await store.show(account(10))
    assert balance.remaining_tokens == 0
    assert (await store.show(account(2000)))[0].remaining_tokens == 500


async def test_grants_and_resets_are_for_the_window_of_now(store: Store, clock: Any) -> None:
    of = account(1000, 5000)
    await reserve(store, of, "r1", 1000)
    await settle(store, of, "r1", 1000)
    (daily, monthly) = await store.adjust(of, "daily", grant_tokens=500)
    assert (daily.remaining_tokens, monthly.remaining_tokens) == (500, 4000)
    (daily, monthly) = await store.adjust(of, "daily", grant_tokens=None)
    assert (daily.remaining_tokens, monthly.remaining_tokens) == (1500, 4000)
    clock.now_s = daily.window.end_s
    assert (await store.show(of))[0].remaining_tokens == 1000


async def test_what_is_forced_is_counted_though_it_does_not_fit(store: Store) -> None:
    of = account(100)
    verdict = await reserve(store, of, "r1", 500, forced=True)
    assert not verdict.admitted
    assert await used(store, of) == (0, 500)
    assert await settle(store, of, "r1", 20) is Settled.SETTLED
    assert await used(store, of) == (20, 0)


async def test_a_transfer_that_its_settlement_overtook_reserves_nothing(store: Store) -> None:
    of, ask = account(1000), asking("r1", 300, forced=True, is_transfer=True)
    assert await settle(store, of, "r1", 80) is Settled.UNRESERVED
    for _ in range(2):
        await store.reserve(of, ask)
    assert await used(store, of) == (80, 0)


async def test_usage_counted_elsewhere_goes_to_the_windows_it_names(store: Store, clock: Any) -> None:
    of = account(1000)
    yesterday = window(clock.now_s - DAY_S, "daily", "UTC")
    for _ in range(2):
        await store.settle(of, Settlement(request="batch", tokens=70, windows=(("daily", yesterday),)))
    assert await used(store, of) == (0, 0)
    clock.now_s -= DAY_S
    assert await used(store, of) == (70, 0)


async def test_numbers_up_to_53_bits_are_exact(store: Store) -> None:
    of = account(2**53 - 1)
    await reserve(store, of, "r1", 2**53 - 3)
    assert (await store.show(of))[0].remaining_tokens == 2
    assert (await reserve(store, of, "r2", 2)).admitted
    assert not (await reserve(store, of, "r3", 1)).admitted


async def test_many_at_once_never_admit_more_than_the_limit(open_store: Callable[[], Store]) -> None:
    of, stores = account(1000), [open_store() for _ in range(3)]
    asked = (reserve(stores[number % 3], of, f"r{number}", 10) for number in range(300))
    verdicts = await asyncio.gather(*asked)
    assert sum(verdict.admitted for verdict in verdicts) == 100
    assert await used(stores[0], of) == (0, 1000)


async def test_five_hundred_requests_of_a_thousand_tokens_pass_and_the_next_is_refused(store: Store) -> None:
    older = account(500_000, pool="gpt-4-turbo:2024-06-01")
    newer = account(800_000, pool="gpt-4-turbo:2024-07-15")
    for number in range(500):
        assert (await reserve(store, older, f"r{number}", 1000)).admitted
        await settle(store, older, f"r{number}", 1000)
    assert not (await reserve(store, older, "r500", 1000)).admitted
    assert (await reserve(store, newer, "r501", 1000)).admitted
    assert (await store.show(newer))[0].remaining_tokens == 799_000
