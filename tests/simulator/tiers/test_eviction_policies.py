"""Policies and tiers on small made-up traces: bounds by brute force, bytes conserved, libraries agree, the same twice."""

from collections.abc import Callable
from itertools import combinations

import libcachesim
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tier_traces import ROWS, visits

from simulator.request_log import RequestLog
from simulator.tiers.bounds import bounds
from simulator.tiers.eviction import Fifo, LookAhead, Lru, SizeAware
from simulator.tiers.replaying import POLICIES, replay
from simulator.tiers.tier import Tier
from simulator.tiers.visits import NEVER, Visits
from simulator.tiers.waiting import WaitingQueue

WINDOWS = st.sampled_from([0, 1, 3, None])


@given(rows=ROWS, limit=st.integers(0, 150), window=WINDOWS)
@settings(max_examples=100, deadline=None)
def test_no_policy_beats_the_bound_and_no_tier_its_limit(rows: list[tuple[str, int]], limit: int, window: int | None) -> None:
    trace = visits(*rows)
    best = bounds(trace, limit_bytes=limit, steps=50)
    assert best.feasible <= best.relaxed + 1e-9 <= best.fractional + 2e-9
    for policy in POLICIES:
        outcome = replay(trace, policy, limit_bytes=limit, window=window)
        assert outcome.peak_bytes <= limit
        assert outcome.hit_ratio <= best.relaxed + 1e-9, policy
        assert not outcome.hit[~trace.returning].any()
        again = replay(trace, policy, limit_bytes=limit, window=window)
        assert (again.hit == outcome.hit).all()


@given(rows=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9)), min_size=1, max_size=12), limit=st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_the_bounds_enclose_the_best_choice_of_stays_found_by_trying_all(rows: list[tuple[str, int]], limit: int) -> None:
    trace = visits(*rows)
    best = bounds(trace, limit_bytes=limit, steps=200)
    returns = int(trace.returning.sum())
    optimum = _by_trying_all(trace, limit) / max(1, returns)
    assert best.feasible <= optimum + 1e-9
    assert optimum <= best.relaxed + 1e-9


def _by_trying_all(trace: Visits, limit: int) -> int:
    stays = [(i, int(trace.next_visit[i])) for i in range(len(trace)) if trace.next_visit[i] < NEVER]
    for count in range(len(stays), 0, -1):
        for chosen in combinations(stays, count):
            if all(sum(int(trace.state_bytes[a]) for a, b in chosen if a <= at < b) <= limit for at in range(len(trace))):
                return count
    return 0


@given(rows=ROWS, limit=st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_farthest_use_is_the_optimum_where_all_entries_have_one_size(rows: list[tuple[str, int]], limit: int) -> None:
    trace = visits(*[(user, 1) for user, _ in rows])
    farthest = replay(trace, "look-ahead", limit_bytes=limit, window=None).hit_ratio
    assert farthest == pytest.approx(replay(trace, "size-aware", limit_bytes=limit, window=None).hit_ratio)
    assert all(replay(trace, policy, limit_bytes=limit, window=0).hit_ratio <= farthest for policy in POLICIES)


@pytest.mark.parametrize("policy", ["fifo", "lru", "arc"])
@given(rows=ROWS, limit=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_entries_of_one_size_hit_as_libcachesim_says(policy: str, rows: list[tuple[str, int]], limit: int) -> None:
    trace = visits(*[(user, 1) for user, _ in rows])
    cache = {"fifo": libcachesim.FIFO, "lru": libcachesim.LRU, "arc": libcachesim.ARC}[policy](cache_size=limit)
    known = []
    for index, user in enumerate(trace.user.tolist()):
        request = libcachesim.Request()
        request.obj_id, request.obj_size, request.clock_time = user + 1, 1, index
        known.append(bool(cache.get(request)))
    assert replay(trace, policy, limit_bytes=limit).hit.tolist() == known


def test_fifo_forgets_by_arrival_lru_by_use() -> None:
    rows = [("a", 1), ("b", 1), ("a", 1), ("c", 1), ("a", 1)]
    assert replay(visits(*rows), "fifo", limit_bytes=2).hit.tolist() == [False, False, True, False, False]
    assert replay(visits(*rows), "lru", limit_bytes=2).hit.tolist() == [False, False, True, False, True]


def test_look_ahead_spares_whoever_waits_and_gives_up_the_tail_of_the_queue_first() -> None:
    queue = WaitingQueue(4)
    policy = LookAhead(queue)
    for user in range(4):
        policy.put(user, 1)
    for user in (0, 2, 1):
        queue.announce(user)
    assert list(policy.order()) == [3, 1, 2, 0]
    queue.leave(0)
    assert list(policy.order()) == [0, 3, 1, 2], "an announcement that was served protects no longer; 0 was used first"


def test_size_aware_gives_up_the_dearest_stay_first() -> None:
    queue = WaitingQueue(3)
    policy = SizeAware(queue)
    for user, size in ((0, 100), (1, 10), (2, 1)):
        policy.put(user, size)
        queue.announce(user)
    assert list(policy.order()) == [0, 1, 2], "100 x 1, 10 x 2, 1 x 3"


def test_where_hits_are_worth_their_bytes_size_plays_no_role() -> None:
    queue = WaitingQueue(3)
    ranked = []
    for policy in (LookAhead(queue), SizeAware(queue, worth_exponent=1.0)):
        for user, size in ((0, 100), (1, 10), (2, 1)):
            policy.put(user, size)
        ranked.append(list(policy.order()))
    queue.announce(1)
    queue.announce(0)
    ranked += [list(policy.order()), list(LookAhead(queue).order())]
    assert ranked == [[0, 1, 2], [0, 1, 2], [2, 0, 1], []]
    with pytest.raises(ValueError, match="worth_exponent"):
        SizeAware(queue, worth_exponent=1.5)


def test_a_full_queue_refuses_and_counts() -> None:
    queue = WaitingQueue(3, limit=2)
    assert [queue.announce(user) for user in (0, 1, 2)] == [True, True, False]
    assert (queue.refused, len(queue)) == (1, 2)
    assert not queue.leave(2)
    assert queue.leave(0)
    assert queue.announce(2)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "use", "take", "pin", "unpin", "trim", "announce", "leave"]),
        st.integers(0, 5),
        st.integers(0, 50),
    ),
    max_size=80,
)
MAKERS: dict[str, Callable[[WaitingQueue], object]] = {
    "fifo": lambda queue: Fifo(),
    "lru": lambda queue: Lru(),
    "arc": lambda queue: POLICIES["arc"](queue, 100),
    "look-ahead": LookAhead,
    "size-aware": SizeAware,
}


@pytest.mark.parametrize("policy", MAKERS)
@given(operations=OPERATIONS, granule=st.sampled_from([1, 8]))
@example(operations=[("put", 0, 0), ("take", 0, 0), ("put", 0, 0)], granule=1)
@example(operations=[("put", 0, 0), ("put", 0, 0), ("take", 0, 0), ("put", 0, 0)], granule=1)
@example(operations=[("put", 0, 1), ("put", 4, 50), ("pin", 0, 0), ("pin", 4, 0), ("trim", 0, 0), ("unpin", 0, 0)], granule=1)
@settings(max_examples=60, deadline=None)
def test_bytes_are_conserved_and_bounded_and_pinned_entries_stay(
    policy: str, operations: list[tuple[str, int, int]], granule: int
) -> None:
    queue = WaitingQueue(6)
    tier = Tier(limit_bytes=100, granule_bytes=granule, policy=MAKERS[policy](queue))  # type: ignore[arg-type]  # a policy
    came, went = 0, 0
    for what, user, size in operations:
        before = {other: tier.bytes_of(other) for other in range(6)}
        if what == "put":
            outcome = tier.put(user, size)
            lost = sum(size for _, size in outcome.gone)
            assert outcome.kept == (user in tier and tier.bytes_of(user) == tier.granules(size)) or tier.pinned(user)
            came += tier.used_bytes - sum(before.values()) + lost
            went += lost
            assert all(not tier.pinned(other) for other, _ in outcome.gone)
            assert all(other not in tier for other, _ in outcome.gone)
        elif what == "take":
            went += tier.take(user)
        elif what == "trim":
            went += sum(size for _, size in tier.trim(size + 50))
        else:
            {"use": tier.use, "pin": tier.pin, "unpin": tier.unpin, "announce": queue.announce, "leave": queue.leave}[what](user)
        assert tier.used_bytes == sum(tier.bytes_of(other) for other in tier.users()) == came - went
        pinned = sum(tier.bytes_of(other) for other in tier.users() if tier.pinned(other))
        stuck = pinned if what == "trim" else sum(before.values())  # above a lowered limit it may stay, and never grows
        assert tier.used_bytes <= max(tier.limit_bytes, stuck)


def test_a_request_log_and_a_trace_make_the_same_visits() -> None:
    import numpy as np

    from simulator.request_log import RowLaw
    from simulator.tiers.visits import visits_of_log

    log = RequestLog(
        arrival_ms=np.array([0.0, 1.0, 2.0]),
        user=np.array([0, 1, 0], dtype=np.uint32),
        history_tokens=np.array([5, 7, 6], dtype=np.int32),
        candidates=np.zeros(3, dtype=np.int32),
        signal_lead_ms=np.zeros(3, dtype=np.float32),
        law=np.zeros(3, dtype=np.uint8),
        user_slots=np.zeros(2, dtype=np.uint16),
        laws=(RowLaw(exponent=1.0, catalog_rows=10),),
        rows_per_token=1,
    )
    made = visits_of_log(log, bytes_per_token=1)
    plain = visits(("a", 5), ("b", 7), ("a", 6))
    assert made.user.tolist() == plain.user.tolist()
    assert made.state_bytes.tolist() == plain.state_bytes.tolist()
    assert made.final_bytes == plain.final_bytes == 13


def test_visits_that_cannot_be_are_refused() -> None:
    import numpy as np

    good = visits(("a", 1), ("b", 2))
    for changes, message in (
        ({"state_bytes": np.array([1, -1])}, "negative"),
        ({"user": np.array([0, 2])}, "outside"),
        ({"time_ms": np.array([1.0, 0.0])}, "sorted"),
        ({"time_ms": np.array([0.0, np.nan])}, "finite"),
        ({"time_ms": np.array([0.0])}, "lengths"),
    ):
        columns = {"user": good.user, "state_bytes": good.state_bytes, "time_ms": good.time_ms} | changes
        with pytest.raises(ValueError, match=message):
            Visits(users=2, **columns)  # type: ignore[arg-type]  # wrong on purpose
