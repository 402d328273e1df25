"""The split's state machine: what each revision answers, and that no moment has more than the pool in limits or in use."""

import pytest
from core_requests import MIB, config, rank, split, user
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from contract.engine import SplitStatus
from simulator.core.instance import GRInstanceCore

POOL = 64 * MIB


def core(**changes: object) -> GRInstanceCore:
    return GRInstanceCore(config(**changes), seed=1)


def test_the_successor_of_the_revision_in_force_is_applied_and_answered() -> None:
    engine = core()
    answer = engine.put_split(split(engine, 1, 16 * MIB, 48 * MIB, refill=1000), now_ms=0.0)
    assert (answer.status, answer.split.revision) == (SplitStatus.APPLIED, 1)
    assert (answer.split.limits.emb_bytes, answer.split.limits.kv_bytes) == (16 * MIB, 48 * MIB)
    assert answer.split.refill_bytes_per_second == 1000


def test_the_same_revision_and_value_gives_the_same_answer() -> None:
    engine = core()
    change = split(engine, 1, 16 * MIB, 48 * MIB)
    assert engine.put_split(change, now_ms=0.0) == engine.put_split(change, now_ms=0.0)


@pytest.mark.parametrize(
    ("revision", "emb", "kv", "refill", "status", "reason"),
    [
        (0, 32 * MIB, 32 * MIB, 0, SplitStatus.STALE, "older"),
        (1, 20 * MIB, 44 * MIB, 0, SplitStatus.CONFLICT, "another value"),
        (1, 16 * MIB, 48 * MIB, 5, SplitStatus.CONFLICT, "another value"),
        (3, 16 * MIB, 48 * MIB, 0, SplitStatus.CONFLICT, "does not follow"),
        (2, 32 * MIB, 32 * MIB + 1, 0, SplitStatus.UNSUPPORTED, "pool"),
        (2, 32 * MIB, 32 * MIB, 1 << 60, SplitStatus.UNSUPPORTED, "link"),
        (2, 32 * MIB, 32 * MIB, 0, SplitStatus.UNSUPPORTED, "at most"),
    ],
)
def test_a_refusal_says_why_and_carries_the_split_in_force(
    revision: int, emb: int, kv: int, refill: int, status: SplitStatus, reason: str
) -> None:
    engine = core(emb_percent=25, max_split_change_bytes=8 * MIB)
    engine.put_split(split(engine, 1, 16 * MIB, 48 * MIB), now_ms=0.0)
    answer = engine.put_split(split(engine, revision, emb, kv, refill=refill), now_ms=0.0)
    assert answer.status == status
    assert reason in answer.reason
    assert (answer.split.revision, answer.split.limits.emb_bytes) == (1, 16 * MIB)


def test_a_request_for_another_process_is_a_conflict_that_names_both() -> None:
    engine = core()
    answer = engine.put_split(split(engine, 1, 0, POOL, start_id="before-the-restart"), now_ms=0.0)
    assert answer.status == SplitStatus.CONFLICT
    assert "before-the-restart" in answer.reason
    assert answer.start_id == engine.start_id


def test_a_shrink_below_what_is_in_service_is_deferred_and_growth_waits_for_it() -> None:
    # given a user of 32 MiB whose request is in service
    engine = core()
    served = engine.rank(rank(1, tokens=4000), 0.0)
    # when the KV cache must give half of it away
    change = split(engine, 1, 48 * MIB, 16 * MIB)
    answer = engine.put_split(change, now_ms=served.latency_ms / 2)
    # then the donor is lowered, the receiver does not grow, and the overage is said
    assert answer.status == SplitStatus.DEFERRED
    assert (answer.split.limits.emb_bytes, answer.split.limits.kv_bytes) == (32 * MIB, 16 * MIB)
    assert answer.split.overage_bytes > 0
    assert not answer.split.settled
    # and once the request is done the same revision is applied in full
    answer = engine.put_split(change, now_ms=served.latency_ms + 1)
    assert answer.status == SplitStatus.APPLIED
    assert (answer.split.limits.emb_bytes, answer.split.limits.kv_bytes) == (48 * MIB, 16 * MIB)
    assert engine.observe(0.0).counters.evictions.resize > 0


def test_a_deferred_change_may_be_taken_back() -> None:
    engine = core()
    served = engine.rank(rank(1, tokens=4000), 0.0)
    engine.put_split(split(engine, 1, 48 * MIB, 16 * MIB), now_ms=1.0)
    engine.put_split(split(engine, 2, 32 * MIB, 32 * MIB), now_ms=1.0)
    later = engine.observe(served.latency_ms + 1).split
    assert (later.limits.emb_bytes, later.limits.kv_bytes, later.overage_bytes) == (32 * MIB, 32 * MIB, 0)


def test_an_engine_told_to_defer_holds_a_shrink_that_long() -> None:
    engine = core(defer_shrinks_ms=500.0)
    for who in range(4):
        engine.rank(rank(who, who=who), who * 100.0)
    now = 10_000.0
    engine.put_split(split(engine, 1, 60 * MIB, 4 * MIB), now_ms=now)
    assert engine.observe(now + 499).split.overage_bytes > 0
    assert engine.observe(now + 501).split.overage_bytes == 0


class AnySequence(RuleBasedStateMachine):
    """Requests, evictions, invalidations and split changes in any order, at any pace."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = core()
        self.now = 0.0
        self.number = 0

    @rule(who=st.integers(0, 6), tokens=st.integers(0, 3000), gap=st.floats(0, 60))
    def request(self, who: int, tokens: int, gap: float) -> None:
        self.now += gap
        self.number += 1
        self.engine.rank(rank(self.number, who=who, tokens=tokens), self.now)

    @rule(emb=st.integers(0, 64), kv=st.integers(0, 64), refill=st.sampled_from([0, 10 * MIB]), gap=st.floats(0, 5))
    def change(self, emb: int, kv: int, refill: int, gap: float) -> None:
        self.now += gap
        before = self.engine.split.revision
        answer = self.engine.put_split(split(self.engine, before + 1, emb * MIB, kv * MIB, refill=refill), now_ms=self.now)
        accepted = answer.status in (SplitStatus.APPLIED, SplitStatus.DEFERRED)
        assert accepted == (emb + kv <= 64)
        assert answer.split.revision == before + accepted
        if answer.status == SplitStatus.APPLIED:
            assert (answer.split.limits.emb_bytes, answer.split.limits.kv_bytes) == (emb * MIB, kv * MIB)

    @rule(who=st.integers(0, 6))
    def evict(self, who: int) -> None:
        self.engine.evict([user(who)])

    @rule(gap=st.floats(0, 200))
    def wait(self, gap: float) -> None:
        self.now += gap
        self.engine.advance(self.now)

    @invariant()
    def the_pool_is_never_exceeded(self) -> None:
        emb, kv = self.engine.emb, self.engine.kv
        assert emb.limit_bytes + kv.limit_bytes <= POOL
        assert max(emb.limit_bytes, emb.used_bytes) + max(kv.limit_bytes, kv.used_bytes) <= POOL
        assert emb.used_bytes >= 0 <= kv.used_bytes

    def teardown(self) -> None:
        # When all work is done, whatever was accepted is settled.
        self.engine.advance(self.now + 1e6)
        assert not self.engine.split.deferred


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
