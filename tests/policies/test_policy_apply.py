"""Shrink, confirm, grow: never above the pool, nothing grows while deferred, and it arrives when the engine settles."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.allocation.apply import Answer, ApplyState, Phase, SplitPut, next_put, refill_cap
from policies.allocation.types import SplitInForce

POOL = 1000


class ToyEngine:
    """Accepts limits at once and frees at most `pace` bytes of a shrunk side per tick; refuses what breaks the contract."""

    def __init__(self, emb: int, kv: int, *, pace: int, start_id: str = "a") -> None:
        self.split = SplitInForce(start_id=start_id, revision=3, emb_bytes=emb, kv_bytes=kv, emb_used_bytes=emb, kv_used_bytes=kv)
        self.pace = pace
        self.highest = self.in_memory()

    def in_memory(self) -> int:
        """What the two sides may hold at this instant: each counts as the greater of limit and use."""
        return max(self.split.emb_bytes, self.split.emb_used_bytes) + max(self.split.kv_bytes, self.split.kv_used_bytes)

    def put(self, put: SplitPut) -> Answer:
        before = self.split
        if put.start_id != before.start_id or put.revision != before.revision + 1:
            return Answer.CONFLICT
        grows = put.emb_bytes > before.emb_bytes or put.kv_bytes > before.kv_bytes
        assert not (before.deferring and grows), "grew while deferred"
        self.split = msgspec.structs.replace(before, revision=put.revision, emb_bytes=put.emb_bytes, kv_bytes=put.kv_bytes)
        self.highest = max(self.highest, self.in_memory())
        return Answer.DEFERRED if self.split.deferring else Answer.APPLIED

    def tick(self, *, fill: bool = True) -> None:
        used = {}
        for side in ("emb", "kv"):
            limit, use = getattr(self.split, f"{side}_bytes"), getattr(self.split, f"{side}_used_bytes")
            used[f"{side}_used_bytes"] = max(limit, use - self.pace) if use > limit else limit if fill else use
        self.split = msgspec.structs.replace(self.split, **used)
        self.highest = max(self.highest, self.in_memory())


def step(
    engine: ToyEngine,
    state: ApplyState,
    *,
    target: int | None,
    answer: Answer,
    now_ms: float,
    max_change: int | None = None,
) -> tuple[SplitPut | None, ApplyState]:
    return next_put(
        engine.split,
        pool_bytes=POOL,
        target_emb_bytes=target,
        refill_bytes_per_second=5,
        answer=answer,
        state=state,
        now_ms=now_ms,
        max_change_bytes=max_change,
    )


def test_a_move_shrinks_one_side_waits_until_it_is_free_and_only_then_grows_the_other() -> None:
    engine, state, answer = ToyEngine(600, 400, pace=100), ApplyState(), Answer.NONE
    sent: list[tuple[int, int]] = []
    phases: list[Phase] = []
    for tick in range(8):
        put, state = step(engine, state, target=350, answer=answer, now_ms=tick)
        answer = engine.put(put) if put else Answer.NONE
        phases.append(state.phase)
        if put:
            sent.append((put.emb_bytes, put.kv_bytes))
        engine.tick()
    assert sent == [(350, 400), (350, 650)]
    assert phases[:4] == [Phase.SHRINKING, Phase.CONFIRMING, Phase.CONFIRMING, Phase.GROWING]
    assert phases[-1] is Phase.SETTLED


@settings(max_examples=150, deadline=None)
@given(
    emb=st.integers(0, POOL),
    pace=st.integers(1, 400),
    plan=st.lists(
        st.tuples(st.integers(0, POOL), st.integers(0, 6), st.sampled_from(["ok", "lost", "deaf"])), min_size=1, max_size=20
    ),
    max_change=st.none() | st.integers(50, 400),
)
def test_the_pool_is_never_exceeded_and_the_last_target_is_reached_once_the_engine_settles(
    emb: int, pace: int, plan: list[tuple[int, int, str]], max_change: int | None
) -> None:
    engine, state, answer, now = ToyEngine(emb, POOL - emb, pace=pace), ApplyState(), Answer.NONE, 0.0
    target = emb
    for target, ticks, network in plan:
        for _ in range(ticks):
            now += 100.0
            put, state = step(engine, state, target=target, answer=answer, now_ms=now, max_change=max_change)
            answer = Answer.NONE
            if put and network != "deaf":  # "deaf": the write never arrives; "lost": it does, its answer does not
                given_answer = engine.put(put)
                answer = given_answer if network == "ok" else Answer.NONE
            engine.tick()
            assert engine.highest <= POOL
    for _ in range(3 + 2 * POOL // 50 + POOL // pace):
        now += 100.0
        put, state = step(engine, state, target=target, answer=answer, now_ms=now, max_change=max_change)
        answer = engine.put(put) if put else Answer.NONE
        engine.tick()
        assert engine.highest <= POOL
    assert (engine.split.emb_bytes, engine.split.kv_bytes) == (target, POOL - target)
    assert not state.second_writer


def test_an_engine_that_never_settles_is_never_grown() -> None:
    engine, state, answer = ToyEngine(600, 400, pace=0), ApplyState(), Answer.NONE
    for tick in range(50):
        put, state = step(engine, state, target=200 if tick % 2 else 900, answer=answer, now_ms=tick)
        answer = engine.put(put) if put else Answer.NONE  # asserts that nothing grows
        engine.tick()
    assert engine.highest <= POOL


def test_a_pool_that_became_smaller_takes_from_both_sides_before_anything_grows() -> None:
    engine = ToyEngine(600, 400, pace=1000)
    put, _ = next_put(
        engine.split,
        pool_bytes=700,
        target_emb_bytes=450,
        refill_bytes_per_second=0,
        answer=Answer.NONE,
        state=ApplyState(),
        now_ms=0,
    )
    assert put is not None
    assert (put.emb_bytes, put.kv_bytes) == (450, 250)


def test_a_new_process_or_a_conflict_is_adopted_and_the_move_goes_on_from_there() -> None:
    engine, state = ToyEngine(600, 400, pace=1000), ApplyState()
    _, state = step(engine, state, target=600, answer=Answer.NONE, now_ms=0)
    engine.split = msgspec.structs.replace(engine.split, revision=9, emb_bytes=500)
    put, state = step(engine, state, target=400, answer=Answer.CONFLICT, now_ms=100)
    assert put is not None
    assert put.revision == 10
    reborn = ToyEngine(300, 700, pace=1000, start_id="b")
    put, state = step(reborn, state, target=400, answer=Answer.NONE, now_ms=200)
    assert put is not None
    assert (put.start_id, put.revision) == ("b", 4)
    assert state.conflicts_at_ms == ()


def test_conflicts_that_keep_coming_freeze_with_second_writer_and_a_quiet_minute_thaws() -> None:
    engine, state = ToyEngine(600, 400, pace=1000), ApplyState()
    _, state = step(engine, state, target=600, answer=Answer.NONE, now_ms=0)
    for n in range(3):
        engine.split = msgspec.structs.replace(engine.split, revision=engine.split.revision + 5)
        put, state = step(engine, state, target=500, answer=Answer.NONE, now_ms=1000.0 * n)
    assert put is None
    assert state.phase is Phase.SECOND_WRITER
    assert step(engine, state, target=500, answer=Answer.NONE, now_ms=30_000)[0] is None
    put, state = step(engine, state, target=500, answer=Answer.NONE, now_ms=62_500)
    assert put is not None
    assert not state.second_writer


def test_two_conflicts_an_hour_are_not_a_second_writer() -> None:
    engine, state = ToyEngine(600, 400, pace=1000), ApplyState()
    for n in range(10):
        put, state = step(engine, state, target=500, answer=Answer.CONFLICT if n else Answer.NONE, now_ms=1.8e6 * n)
        assert put is not None


def test_a_lost_answer_is_no_foreign_write() -> None:
    engine, state = ToyEngine(600, 400, pace=1000), ApplyState()
    put, state = step(engine, state, target=500, answer=Answer.NONE, now_ms=0)
    assert put is not None
    engine.put(put)
    _, state = step(engine, state, target=500, answer=Answer.NONE, now_ms=100)
    assert state.conflicts_at_ms == ()


def test_an_engine_that_cannot_resize_is_left_alone_until_it_restarts() -> None:
    engine, state = ToyEngine(600, 400, pace=1000), ApplyState()
    _, state = step(engine, state, target=500, answer=Answer.NONE, now_ms=0)
    put, state = step(engine, state, target=500, answer=Answer.UNSUPPORTED, now_ms=100)
    assert put is None
    assert state.phase is Phase.UNSUPPORTED
    assert step(engine, state, target=500, answer=Answer.NONE, now_ms=1e9)[0] is None
    put, _ = step(ToyEngine(600, 400, pace=1, start_id="b"), state, target=500, answer=Answer.NONE, now_ms=200)
    assert put is not None


def test_without_a_target_nothing_is_sent() -> None:
    assert step(ToyEngine(600, 300, pace=1), ApplyState(), target=None, answer=Answer.NONE, now_ms=0)[0] is None


@given(link=st.integers(0, 10**12), percent=st.floats(-5, 200, allow_nan=False), most=st.none() | st.integers(0, 10**12))
def test_refill_never_exceeds_its_share_of_the_link_nor_its_absolute_cap(link: int, percent: float, most: int | None) -> None:
    cap = refill_cap(link_bytes_per_second=link, max_link_percent=percent, max_bytes_per_second=most)
    assert 0 <= cap <= link * min(max(percent, 0.0), 100.0) / 100.0
    assert most is None or cap <= most


@pytest.mark.parametrize("answer", list(Answer))
def test_every_write_carries_the_refill_rate_it_was_given(answer: Answer) -> None:
    put, _ = step(ToyEngine(600, 400, pace=1), ApplyState(), target=100, answer=answer, now_ms=0)
    assert put is None or put.refill_bytes_per_second == 5
