"""Users that a shrink of the KV cache evicts are withdrawn from gateways before the shrink, and nothing else waits for it."""

import math
from typing import Any

import pytest
from dataplane_fakes import MIB, FakeClock
from dataplane_world import World
from hypothesis import given, settings
from hypothesis import strategies as st
from residents_of_engine import UP, Engine, Reader, user
from withdrawing import SLOW, wanting

from contract.residency import ResidencyReport, UserState
from dataplane.agent.residency import KEPT, Bound, ResidencyShelf, beyond_lru
from dataplane.agent.withdraw import HOLD_MS, LISTENS_MS
from policies.allocation.recovery import BLOCKING_PERCENT_PER_SECOND, Phase
from policies.allocation.types import Layer, Reason
from simulator.core.kv_cache import KvCache

POOL = 64 * MIB
SMALL = {"pool_bytes": POOL, "granule_bytes": MIB, "limits": (POOL // 2, POOL // 2)}
PER_TOKEN = 8192
USERS = POOL // 2 // PER_TOKEN // 32
"""Users of 32 tokens each that fill the KV cache at first."""


# -- which users ---------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=40), st.integers(0, 200))
def test_users_beyond_a_limit_are_those_that_the_cache_evicts(asked: list[tuple[int, int]], limit: int) -> None:
    cache = KvCache(bytes_per_token=1, limit_bytes=200, page_tokens=1)
    used: dict[bytes, float] = {}
    for at, (who, tokens) in enumerate(asked):
        cache.access((user(who), "1"), tokens)
        used[bytes.fromhex(user(who))] = float(at)
    states = [(key, at, cache.cached_tokens((key.hex(), "1"))) for key, at in used.items()]
    told = beyond_lru(states, tokens=limit)
    before = set(cache.keys_oldest_first())
    cache.set_limit(limit)
    cache.trim()
    assert told == {bytes.fromhex(key) for key, _ in before - set(cache.keys_oldest_first())}


def test_users_without_tokens_are_not_withdrawn() -> None:
    assert beyond_lru([(b"a", 2.0, 5), (b"b", 1.0, 0), (b"c", 0.0, 1)], tokens=5) == {b"c"}
    assert beyond_lru([], tokens=0) == frozenset()


def test_tokens_are_counted_by_what_they_really_take_if_all_of_them_are_known() -> None:
    bound = Bound(600, 1000, 1)
    assert bound.tokens(known=800) == 480
    assert bound.tokens(known=0) == 600
    assert bound.tokens(known=1200) == 600  # the figures are of two moments


async def test_users_beyond_those_kept_say_nothing_of_what_a_token_takes() -> None:
    class Many(Engine):
        async def residency(self, cursor: int, *, most: int) -> ResidencyReport | None:
            users = [UserState(key=user(n), tokens_hbm=1, age_ms=float(n)) for n in range(KEPT)]
            return ResidencyReport(start_id="s", generation=0, since=0, cursor=5, users=users)

    shelf = ResidencyShelf(Many(), monotonic_s=FakeClock())
    shelf.bound_to(Bound(1000, 10**9, 1))
    report = await shelf.report(0, uid="", load=UP)
    assert report is not None
    assert [state.key for state in report.users] == [user(n) for n in range(1000)]


# -- how they are told ---------------------------------------------------------------------------------------------------------


async def test_withdrawn_users_are_told_once_to_each_reader_and_come_back_when_the_bound_is_lifted() -> None:
    source, clock, readers = Engine(), FakeClock(), (Reader(), Reader())
    shelf = ResidencyShelf(source, monotonic_s=clock)
    for who in range(3):
        source.rank(who)
    for reader in readers:
        await reader.read(shelf)
    everybody = dict(readers[0].tokens)
    assert len(everybody) == 3
    each = everybody[user(0)][0]
    shelf.bound_to(Bound(2 * each, 3 * each, 1))
    source.rank(2)
    for reader in readers:
        await reader.read(shelf)
        assert set(reader.tokens) == {user(1), user(2)}
    again = await shelf.report(readers[0].cursor, uid="", load=UP)
    assert again is not None
    assert again.users == []
    # One that comes back meanwhile is as hot as any; the oldest of the others goes in its place.
    source.rank(0)
    clock.advance(1.0)
    await readers[0].read(shelf)
    assert set(readers[0].tokens) == {user(0), user(2)}
    shelf.bound_to(None)
    source.rank(2)
    for reader in readers:
        await reader.read(shelf)
        assert reader.tokens == source.held()


async def test_a_reader_that_begins_anew_hears_nothing_of_withdrawn_users_and_state_below_hbm_stays() -> None:
    states = [UserState(key=user(n), tokens_hbm=10, tokens_host=n % 2, age_ms=float(n)) for n in range(4)]

    class Two(Engine):
        async def residency(self, cursor: int, *, most: int) -> ResidencyReport | None:
            return ResidencyReport(start_id="s", generation=0, since=0, cursor=5, users=states)

    shelf = ResidencyShelf(Two(), monotonic_s=FakeClock())
    shelf.bound_to(Bound(20, 40, 1))
    report = await shelf.report(0, uid="", load=UP)
    assert report is not None
    assert {state.key: (state.tokens_hbm, state.tokens_host) for state in report.users} == {
        user(0): (10, 0),
        user(1): (10, 1),
        user(3): (0, 1),
    }


# -- when the split waits ------------------------------------------------------------------------------------------------------


class Gateway:
    """Asks an agent every two seconds, as one does, of an engine that holds as many users as fit."""

    def __init__(self, world: World) -> None:
        self.world, self.cursor, self.asks = world, 0, True
        self.claimed: dict[str, int] = {}
        self.shrinks: list[int] = []
        self.surprises = self.lived = 0
        self._reading = 0
        world.engine.residency = self._residency  # type: ignore[method-assign]  # the fake's own tells nothing

    async def _residency(self, cursor: int, *, most: int) -> ResidencyReport | None:
        self._reading += 1
        fits = self.world.engine.limits[1] // PER_TOKEN // 32
        users = [UserState(key=user(n), tokens_hbm=32 if n < fits else 0, age_ms=1000.0 * n) for n in range(USERS)]
        return ResidencyReport(start_id="start-1", generation=0, since=cursor, cursor=self._reading, users=users)

    async def ask(self) -> None:
        report = await self.world.agent.residency(self.cursor)
        if report is None:
            return
        if report.since == 0:
            self.claimed.clear()
        self.cursor = report.cursor
        for state in report.users:
            self.claimed[state.key] = state.tokens_hbm

    async def live(self, rounds: int) -> None:
        """Let rounds of a second pass, and note the EMB limit after each."""
        for number in range(rounds):
            before = self.fits
            await self.world.rounds(1)
            if self.fits < before:
                self.shrinks.append(number)
                self.surprises += max(0, self.claims - self.fits)
            self.lived += 1
            if self.asks and self.lived % 2 == 0:
                await self.ask()

    @property
    def claims(self) -> int:
        return sum(tokens > 0 for tokens in self.claimed.values())

    @property
    def fits(self) -> int:
        return self.world.engine.limits[1] // PER_TOKEN // 32


async def at_half(*, refill_blocks: bool = False) -> Gateway:
    """An agent whose split stands at the half, with a gateway that knows everybody."""
    world = World(**SMALL, used=[POOL // 2, POOL // 2], refill_blocks=refill_blocks)
    gateway = Gateway(world)
    world.static(50, step=SLOW)
    await gateway.live(4)
    assert (gateway.claims, gateway.shrinks) == (USERS, [])
    return gateway


async def test_no_shrink_is_written_before_gateways_have_heard_whom_it_evicts(monkeypatch: pytest.MonkeyPatch) -> None:
    wanting(monkeypatch)
    gateway = await at_half()
    gateway.world.static(80, step=SLOW)
    await gateway.live(30)
    assert gateway.surprises == 0
    # A granule in each round, as without a gateway: it waited at its begin, and nowhere else.
    first = math.ceil(HOLD_MS / 1000.0)
    assert gateway.shrinks == list(range(first, first + 19))
    assert 78 <= gateway.world.emb_percent <= 80
    assert gateway.claims == gateway.fits
    assert gateway.world.engine.violations == []
    records = gateway.world.agent.decisions.after(0).decisions
    waited = [record for record in records if record.inputs["round"].get("waitsForGateways")]
    assert 2 <= len(waited) <= 4
    assert not any(record.applied for record in waited)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([45, 52, 56, 65, 80]), min_size=5, max_size=30))
async def test_wherever_the_goal_wanders_nobody_is_surprised_and_no_wait_is_long(goals: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        wanting(patch)
        gateway = await at_half()
        longest = waits = 0
        for goal in goals:
            gateway.world.static(goal, step=SLOW)
            before = gateway.world.engine.limits
            await gateway.live(1)
            wants = goal > gateway.world.emb_percent + 2
            waits = waits + 1 if wants and gateway.world.engine.limits == before else 0
            longest = max(longest, waits)
    assert gateway.surprises == 0
    assert longest <= math.ceil(HOLD_MS / 1000.0)
    assert gateway.world.engine.violations == []


async def test_claims_are_withdrawn_a_few_seconds_ahead_and_not_for_the_whole_of_a_long_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanting(monkeypatch)
    gateway = await at_half()
    gateway.world.static(90, step=SLOW)
    await gateway.live(2)
    ahead = 2 * (2 * HOLD_MS / 1000.0 + 1.0) / 100.0 * POOL / PER_TOKEN / 32
    assert USERS - ahead - 2 * MIB / PER_TOKEN / 32 <= gateway.claims < USERS


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_move_that_earns_a_granule_only_in_some_rounds_gets_as_far_as_without_a_gateway(
    monkeypatch: pytest.MonkeyPatch, blocks: bool
) -> None:
    wanting(monkeypatch)
    moved = []
    for asks in (True, False):
        gateway = await at_half(refill_blocks=blocks)
        gateway.asks = asks
        await gateway.live(math.ceil(LISTENS_MS / 1000.0) + 1)
        gateway.world.static(90, step=SLOW | {"maxPercentPerSecond": 1})
        await gateway.live(40)
        moved.append(gateway.world.engine.limits[0] // MIB - POOL // 2 // MIB)
        assert gateway.world.engine.violations == []
        if asks:
            assert gateway.surprises == 0
    assert moved[0] >= moved[1] - 2 > 0, "it waits once, and is late by what it would have moved meanwhile"


@pytest.mark.parametrize("blocks", [False, True])
async def test_claims_are_withdrawn_at_the_pace_of_the_move_also_where_refill_blocks_serving(
    monkeypatch: pytest.MonkeyPatch, blocks: bool
) -> None:
    wanting(monkeypatch)
    gateway = await at_half(refill_blocks=blocks)
    gateway.world.static(90, step=SLOW)
    await gateway.live(2)
    while gateway.claims == USERS:  # a granule at a time: the first is due when the pace has earned it
        assert gateway.lived < 20
        await gateway.live(2)
    pace = BLOCKING_PERCENT_PER_SECOND if blocks else SLOW["maxPercentPerSecond"]
    told = (USERS - gateway.claims) * 32 * PER_TOKEN
    ahead = pace * (2 * HOLD_MS / 1000.0 + 1.0) / 100.0 * POOL
    assert 0 < told <= ahead + 2 * MIB
    assert told >= ahead - 2 * MIB


@pytest.mark.parametrize("percent", [50, 30])
async def test_a_move_that_is_given_up_or_turned_round_gives_the_claims_back(
    monkeypatch: pytest.MonkeyPatch, percent: int
) -> None:
    wanting(monkeypatch)
    gateway = await at_half()
    gateway.world.static(70, step=SLOW)
    await gateway.live(2)
    assert gateway.claims < USERS
    gateway.world.static(percent, step=SLOW)
    await gateway.live(2)
    assert (gateway.claims, gateway.shrinks) == (USERS, [])


async def test_a_move_that_is_held_up_for_long_gives_the_claims_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wanting(monkeypatch)
    gateway = await at_half()
    gateway.world.static(70, step=SLOW)
    await gateway.live(2)
    gateway.world.static(70, step=SLOW, paused=True)
    await gateway.live(4)
    assert gateway.claims < USERS
    await gateway.live(32)
    assert gateway.claims == USERS


@pytest.mark.parametrize("percent", [20, 50])
async def test_a_growing_kv_cache_withdraws_nobody_and_does_not_wait(monkeypatch: pytest.MonkeyPatch, percent: int) -> None:
    wanting(monkeypatch)
    gateway = await at_half()
    gateway.world.static(percent, step=SLOW)
    await gateway.live(1)
    assert (gateway.world.emb_percent < 50) is (percent < 50)
    await gateway.live(1)
    assert gateway.claims == USERS


async def test_without_a_gateway_that_asks_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    wanting(monkeypatch)
    gateway = await at_half()
    gateway.asks = False
    await gateway.live(round(LISTENS_MS / 1000.0) + 1)
    gateway.world.static(70, step=SLOW)
    await gateway.live(1)
    assert gateway.shrinks


async def test_users_that_no_cache_has_to_evict_make_nobody_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    wanting(monkeypatch)
    gateway = await at_half()
    engine = gateway.world.engine
    engine.used = [engine.used[0], POOL // 8]
    monkeypatch.setattr(engine, "_work", lambda: None)  # nor does it fill up
    gateway.world.static(70, step=SLOW)
    await gateway.live(1)
    assert gateway.shrinks


@pytest.mark.parametrize(
    "changed",
    [
        {"layer": Layer.STATIC, "reason": Reason.STATIC_TARGET},
        {"layer": Layer.FALLBACK, "reason": Reason.ESTIMATE_NOT_TRUSTED},
        {"phase": Phase.BURST},
        {"phase": Phase.RECOVERING},
        {"reason": Reason.OUT_OF_DISTRIBUTION},
        {"reason": Reason.MODEL_MISSING},
    ],
    ids=lambda changed: "-".join(str(value.value) for value in changed.values()),
)
async def test_what_is_ordered_or_gets_out_of_harms_way_is_told_and_goes_at_once(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    wanting(monkeypatch, **changed)
    gateway = await at_half()
    gateway.world.static(70, step=SLOW)
    await gateway.live(1)
    assert gateway.shrinks
    await gateway.live(1)
    assert gateway.claims < gateway.fits


async def test_a_pool_that_becomes_smaller_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    wanting(monkeypatch)
    gateway = await at_half()
    gateway.world.static(50, step=SLOW, usableBytes=POOL * 3 // 4)
    await gateway.live(1)
    assert sum(gateway.world.engine.limits) <= POOL * 3 // 4


async def test_after_another_strategy_was_ordered_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = await at_half()
    wanting(monkeypatch)  # Static before, another one now
    gateway.world.static(70, step=SLOW)
    await gateway.live(1)
    assert gateway.shrinks
