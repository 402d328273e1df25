"""The bounded off-load queue: no holes under any pressure, drops counted and offered again, sources kept until copied."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.tiers.offload import OffloadQueue, Range, Rule

CHUNK = 4
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["grow", "grow", "grow", "take", "copied", "copied", "failed", "again", "host_lost", "evict", "cut"]),
        st.integers(0, 3),
        st.integers(1, 30),
    ),
    max_size=80,
)


class World:
    """Users in HBM, a copier that may stall or fail, and a host that writes down which tokens it really got."""

    def __init__(self, *, limit: int, buffer: int, rule: Rule = Rule.ON_ACCEPT) -> None:
        self.queue = OffloadQueue(chunk_tokens=CHUNK, limit_tokens=limit, write_buffer_tokens=buffer, rule=rule)
        self.hbm = dict.fromkeys(range(4), 0)
        self.host: dict[int, set[int]] = {user: set() for user in range(4)}
        self.copying: list[Range] = []

    def step(self, what: str, user: int, tokens: int) -> None:
        queue = self.queue
        if what == "grow":
            if not self.hbm[user]:  # evicted or new: what the host has is loaded back
                self.hbm[user] = queue.on_host(user)
            self.hbm[user] += tokens
            queue.offer(user, self.hbm[user])
        elif what == "take":
            taken = queue.next_range()
            self.copying += [taken] if taken else []
        elif what in ("copied", "failed") and self.copying:
            item = self.copying[tokens % len(self.copying)]
            if what == "copied":  # users end in any order, one user's ranges in theirs
                item = next(other for other in self.copying if other.user == item.user)
            self.copying.remove(item)
            if what == "failed":
                queue.failed(item, have_tokens=self.hbm[item.user])
            elif queue.copied(item):
                self.host[item.user] |= set(range(item.start, item.stop))
        elif what == "again":
            queue.offer_again()
        elif what == "host_lost":
            queue.host_lost(user, have_tokens=self.hbm[user])
            self.host[user] = set()
        elif what == "evict" and not queue.frozen(user):
            queue.owe_nothing(user)
            self.hbm[user] = 0
        elif what == "cut" and self.hbm[user] > CHUNK:
            self.hbm[user] -= CHUNK
            queue.cut(user, CHUNK, have_tokens=self.hbm[user])
            self.host[user] = {token - CHUNK for token in self.host[user] if token >= CHUNK}


@given(steps=STEPS, limit=st.integers(0, 40), buffer=st.sampled_from([0, 8, 100]))
@settings(max_examples=300, deadline=None)
def test_what_the_host_has_is_always_one_prefix_whatever_fails(
    steps: list[tuple[str, int, int]], limit: int, buffer: int
) -> None:
    world = World(limit=limit, buffer=buffer)
    queue = world.queue
    for step in steps:
        world.step(*step)
        counts = queue.counts
        assert not counts.holed_users
        assert counts.accepted == counts.copied + counts.cancelled + queue.held_tokens
        assert 0 <= queue.held_tokens <= limit
        assert 0 <= queue.buffered_tokens <= min(buffer, queue.held_tokens)
        for user in range(4):
            assert world.host[user] == set(range(queue.on_host(user)))
            assert not (queue.frozen(user) and not queue.pending(user))
    # Pressure ends: everything that HBM still has, but for tails below a chunk, arrives.
    if limit < CHUNK:
        return
    for _ in range(200):
        world.step("again", 0, 1)
        world.step("take", 0, 1)
        world.step("copied", 0, 1)
    for user in range(4):
        assert queue.on_host(user) >= world.hbm[user] // CHUNK * CHUNK
        assert not queue.frozen(user)
    assert queue.held_tokens == 0
    assert not queue.owed_users


def under_pressure(rule: Rule) -> World:
    """Four users grow; the queue takes one chunk at a time and is emptied now and then."""
    world = World(limit=2 * CHUNK, buffer=0, rule=rule)
    for visit in range(12):
        for user in range(4):
            world.step("grow", user, CHUNK)
        if visit % 2:
            for what in ("take", "copied", "take", "copied"):
                world.step(what, 0, 1)
    for _ in range(40):
        for what in ("again", "take", "copied"):
            world.step(what, 0, 1)
    return world


def test_moving_positions_on_preparation_leaves_holes_and_on_acceptance_none() -> None:
    prepared, accepted = under_pressure(Rule.ON_PREPARE), under_pressure(Rule.ON_ACCEPT)
    assert prepared.queue.counts.drops > 0
    assert prepared.queue.counts.holed_users
    assert accepted.queue.counts.drops > 0
    assert not accepted.queue.counts.holed_users
    assert all(accepted.queue.on_host(user) == 12 * CHUNK for user in range(4))


def test_a_dropped_range_is_counted_and_offered_again_from_where_it_began() -> None:
    queue = OffloadQueue(chunk_tokens=CHUNK, limit_tokens=CHUNK)
    assert queue.offer(1, 2 * CHUNK) == (Range(1, 0, CHUNK, 0),)
    assert (queue.counts.dropped, queue.counts.drops, queue.owed_users) == (CHUNK, 1, [1])
    assert queue.offer_again() == (), "still full"
    first = queue.next_range()
    assert first is not None
    assert queue.copied(first)
    assert queue.offer_again() == (Range(1, CHUNK, 2 * CHUNK, 0),)


def test_a_user_may_leave_hbm_at_once_when_the_write_buffer_has_its_state_and_not_before() -> None:
    queue = OffloadQueue(chunk_tokens=CHUNK, limit_tokens=100, write_buffer_tokens=CHUNK)
    queue.offer(1, CHUNK)
    queue.offer(2, CHUNK)
    assert not queue.frozen(1)
    assert queue.frozen(2)
    first = queue.next_range()
    assert first is not None
    queue.copied(first)
    assert not queue.frozen(2), "room in the buffer goes to whoever waits longest"


def test_a_copy_that_ends_after_its_user_was_given_up_changes_nothing() -> None:
    queue = OffloadQueue(chunk_tokens=CHUNK, limit_tokens=100)
    queue.offer(1, CHUNK)
    old = queue.next_range()
    assert old is not None
    queue.host_lost(1, have_tokens=CHUNK)
    queue.offer_again()
    assert not queue.copied(old)
    assert queue.on_host(1) == 0
    new = queue.next_range()
    assert new is not None
    assert queue.copied(new)
    assert queue.on_host(1) == CHUNK


def test_a_user_is_copied_by_one_copier_at_a_time_so_that_ranges_end_in_order() -> None:
    queue = OffloadQueue(chunk_tokens=CHUNK, limit_tokens=100)
    queue.offer(1, CHUNK)
    queue.offer(1, 2 * CHUNK)
    queue.offer(2, CHUNK)
    first, stranger, nothing = queue.next_range(), queue.next_range(), queue.next_range()
    assert first == Range(1, 0, CHUNK, 0)
    assert stranger == Range(2, 0, CHUNK, 0)
    assert nothing is None
    assert queue.copied(stranger)
    assert queue.next_range() is None
    assert queue.copied(first)
    second = queue.next_range()
    assert second == Range(1, CHUNK, 2 * CHUNK, 0)
    assert queue.copied(second)
    assert queue.on_host(1) == 2 * CHUNK


def test_cuts_that_are_not_whole_chunks_and_impossible_sizes_are_refused() -> None:
    queue = OffloadQueue(chunk_tokens=CHUNK, limit_tokens=100)
    with pytest.raises(ValueError, match="multiple"):
        queue.cut(1, CHUNK + 1, have_tokens=0)
    with pytest.raises(ValueError, match="at least"):
        OffloadQueue(chunk_tokens=0, limit_tokens=1)
