"""Bounds of hedges by number, and the door: which key an id is hashed with, which ids are refused, and that none is kept."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import httpx
import pytest
from client_tables import KEY, SECRET, Fed, HandClock, table
from hypothesis import given
from hypothesis import strategies as st
from loopback_servers import HTTP_FAILURES, USER, learned, two_instances

from contract.keys import user_key
from grfleet.client import AsyncClient, BadUserId, Choice, ClientError, HedgePolicy, KeptMetrics, KeyMismatch, Metric, PoolKey
from grfleet.client.face import Try
from grfleet.client.hedge import HedgeBudget, Latencies

# ---------------------------------------------------------------- hedges by number


@given(st.floats(0.0, 100.0), st.floats(1.0, 50.0), st.lists(st.booleans(), max_size=300))
def test_hedges_are_at_no_moment_more_than_their_share_of_the_requests(percent: float, hoard: float, wanted: list[bool]) -> None:
    budget, taken = HedgeBudget(percent=percent, hoard=hoard), 0
    for requests, wants in enumerate(wanted, start=1):
        budget.request()
        taken += wants and budget.take()
        assert taken <= requests * percent / 100.0 + 1e-6


def test_quiet_hours_save_up_only_a_hoard_of_hedges() -> None:
    budget = HedgeBudget(percent=10.0, hoard=10.0)
    for _ in range(10_000):
        budget.request()
    assert sum(budget.take() for _ in range(100)) == 10


@given(st.lists(st.floats(0.0, 1e6), min_size=50, max_size=50))
def test_the_p99_is_that_of_the_answers_seen(latencies: list[float]) -> None:
    seen = Latencies()
    for latency in latencies[:-1]:
        seen.add(latency)
    assert seen.p99_ms(samples=50) is None
    seen.add(latencies[-1])
    assert seen.p99_ms(samples=50) == sorted(latencies)[49]


async def test_the_delay_of_a_hedge_is_a_share_of_the_p99_and_tries_given_up_count_too() -> None:
    clock = HandClock()
    client = AsyncClient(Fed(), KEY, hedge=HedgePolicy(delay_percent=150.0, samples=50), clock=clock)
    assert client.hedge_delay_ms() is None
    learned(client, latency_ms=40.0)
    assert client.hedge_delay_ms() == pytest.approx(60.0)
    client.router.accept(table(1))
    choice = client.pick(USER)
    slow, quick = Try(choice, clock.now_ms, hedge=False), Try(choice, clock.now_ms + 90.0, hedge=True)
    clock.now_ms += 100.0
    for _ in range(50):
        client.won(quick, others=[slow])
    assert client.hedge_delay_ms() == pytest.approx(150.0)


@pytest.mark.parametrize("wrong", [{"budget_percent": 101.0}, {"delay_percent": 0.0}, {"samples": 0}, {"hoard": 0.5}])
def test_a_hedge_policy_out_of_bounds_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="hedge"):
        HedgePolicy(**wrong)


# ---------------------------------------------------------------- keys and ids


async def test_the_key_that_the_table_names_is_used_and_another_one_is_told_or_refused() -> None:
    old, new = PoolKey("old", b"o" * 16), PoolKey("new", b"n" * 16)
    metrics = KeptMetrics()
    client = AsyncClient(Fed(), [old, new], metrics=metrics, strict_key=True)
    for generation, held in ((1, old), (2, new)):
        client.router.accept(table(generation, key_id=held.key_id))
        choice = client.pick(USER)
        assert (choice.user_key, choice.key_id) == (user_key(held.secret, USER), held.key_id)
        assert client.key_fits
    client.router.accept(table(3, key_id="foreign"))
    assert not client.key_fits
    assert metrics.total(Metric.KEY_MISMATCHES) == 1
    with pytest.raises(KeyMismatch, match="'foreign'"):
        client.pick(USER)
    assert client.pick_any().headers.keys() == {"x-gr-instance"}
    lenient = AsyncClient(Fed(), [old, new])
    lenient.router.accept(table(3, key_id="foreign"))
    assert lenient.pick(USER).key_id == "old", "served, though it will miss"


@pytest.mark.parametrize("wrong", ["", "lone \ud800 surrogate"])
def test_an_id_that_cannot_be_hashed_is_refused_without_being_repeated(wrong: str) -> None:
    client = AsyncClient(Fed(), KEY)
    client.router.accept(table(1))
    with pytest.raises(BadUserId) as refused:
        client.pick(wrong)
    error: BaseException | None = refused.value
    while error is not None:
        assert "surrogate" not in repr(error)
        assert not isinstance(error, UnicodeEncodeError), "it holds the whole id"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("odd", ["\u00a0", "a b", "ü☃", "x" * 10_000, "a\nb", "\x00"])
def test_odd_ids_are_users_like_others(odd: str) -> None:
    client = AsyncClient(Fed(), KEY)
    client.router.accept(table(1))
    assert client.pick(odd).user_key == user_key(SECRET, odd)


def test_spaces_at_the_ends_of_an_id_do_not_count_as_no_gateway_sees_them() -> None:
    client = AsyncClient(Fed(), KEY)
    client.router.accept(table(1))
    assert client.pick(" \ta b ").user_key == user_key(SECRET, "a b")
    for nobody in (" ", "\t \t"):
        with pytest.raises(BadUserId, match="empty"):
            client.pick(nobody)


def test_keys_are_checked_and_do_not_show() -> None:
    assert "0123456789abcdef" not in repr(KEY)
    with pytest.raises(ValueError, match="16 bytes") as short:
        PoolKey("short", b"seven77")
    assert "seven77" not in str(short.value)
    for wrong in ([], [KEY, KEY]):
        with pytest.raises(ValueError, match="keys"):
            AsyncClient(Fed(), wrong)


async def test_no_raw_user_id_gets_into_answers_errors_metrics_logs_or_the_client_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    secret_user, problems, shown = "raw-user-4711", list[str](), list[str]()

    class Shown(KeptMetrics):
        def count(self, name: str, value: int = 1, **labels: str) -> None:
            shown.append(f"{name} {labels}")

    async with two_instances() as (a, b, fleet):
        client = AsyncClient(Fed(fleet), KEY, failures=HTTP_FAILURES, metrics=Shown(), on_problem=problems.append)
        async with client, httpx.AsyncClient(trust_env=False) as http:
            await client.ready(timeout_seconds=10)

            async def send(choice: Choice) -> str:
                return (await http.get(choice.instance.address, headers=choice.headers)).text

            await client.call(secret_user, send)
            a.failing = b.failing = True
            with pytest.raises(ClientError) as failed:
                await client.call(secret_user, send)
            client.router.overrides.put(client.pick(secret_user).user_key, "uid-b", until_ms=1e18)
            shown += [
                repr(client.pick(secret_user)),
                repr(client.status()),
                repr(vars(client)),
                repr(client.router.overrides.held.uids),
            ]
            shown += ["".join(traceback.format_exception(failed.value)), *a.users, *b.users, *problems, caplog.text]
    assert not [each for each in shown if secret_user in each]
