"""Whole-user LRU by bytes: growth, truncation, pins, limits, versions."""

from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.core.kv_cache import KvCache


def cache(limit_tokens: int, *, page_tokens: int = 1) -> KvCache:
    return KvCache(bytes_per_token=1, limit_bytes=limit_tokens, page_tokens=page_tokens)


def test_a_longer_history_hits_its_cached_prefix() -> None:
    kv = cache(100)
    assert kv.access(("u", "1"), 30) == 0
    assert kv.access(("u", "1"), 45) == 30
    assert kv.cached_tokens(("u", "1")) == kv.used_bytes == 45


def test_a_shorter_history_hits_whole_and_cuts_the_entry() -> None:
    kv = cache(100)
    kv.access(("u", "1"), 45)
    assert kv.access(("u", "1"), 20) == 20
    assert kv.used_bytes == 20
    assert kv.access(("u", "1"), 45) == 20


def test_versions_of_a_model_do_not_share_state() -> None:
    kv = cache(100)
    kv.access(("u", "1"), 30)
    assert kv.access(("u", "2"), 30) == 0


def test_entries_take_whole_pages() -> None:
    kv = KvCache(bytes_per_token=10, limit_bytes=10_000, page_tokens=32)
    kv.access(("u", "1"), 33)
    assert kv.used_bytes == 640


def test_a_user_that_cannot_fit_is_served_without_evicting_anybody() -> None:
    kv = cache(100)
    kv.access(("small", "1"), 60)
    assert kv.access(("huge", "1"), 101) == 0
    assert kv.cached_tokens(("small", "1")) == 60


def test_a_history_that_outgrows_the_cache_keeps_its_old_prefix() -> None:
    kv = cache(100)
    kv.access(("u", "1"), 90)
    assert kv.access(("u", "1"), 120) == 90
    assert kv.cached_tokens(("u", "1")) == 90


def test_a_pinned_user_survives_a_smaller_limit_until_released() -> None:
    kv = cache(100)
    kv.access(("pinned", "1"), 60)
    entry = kv.pin(("pinned", "1"))
    assert entry is not None
    kv.access(("other", "1"), 40)
    kv.set_limit(50)
    assert kv.trim() == 40
    assert kv.overage_bytes == 10
    assert kv.access(("third", "1"), 5) == 0
    assert kv.used_bytes == 60, "nothing is admitted above the limit"
    kv.unpin(("pinned", "1"), entry)
    assert kv.trim() == 60
    assert kv.overage_bytes == 0


def test_an_invalidated_user_in_service_hits_no_more_and_goes_when_released() -> None:
    kv = cache(100)
    kv.access(("u", "1"), 30)
    entry = kv.pin(("u", "1"))
    assert entry is not None
    assert kv.invalidate() == (1, 0)
    assert kv.cached_tokens(("u", "1")) == 0
    assert kv.unpin(("u", "1"), entry) == 30
    assert len(kv) == kv.used_bytes == 0


def test_invalidating_other_versions_keeps_the_named_one() -> None:
    kv = cache(100)
    kv.access(("a", "1"), 10)
    kv.access(("b", "2"), 10)
    assert kv.invalidate(keep_version="2") == (1, 10)
    assert kv.cached_tokens(("b", "2")) == 10


def test_a_prefix_that_is_evicted_unused_counts_as_wasted() -> None:
    kv = cache(100)
    kv.access(("u", "1"), 60)
    kv.mark_prefix(("u", "1"))
    assert kv.prefix_bytes == 60
    kv.access(("v", "1"), 60)
    assert (kv.prefixes_wasted, kv.prefix_bytes) == (1, 0)


ACCESSES = st.lists(
    st.tuples(st.sampled_from("abcdefg"), st.integers(0, 40), st.none() | st.integers(0, 120)),
    max_size=120,
)


@given(accesses=ACCESSES)
@settings(max_examples=150, deadline=None)
def test_hits_and_order_agree_with_a_plain_byte_lru(accesses: list[tuple[str, int, int | None]]) -> None:
    kv, limit = cache(100), 100
    plain: OrderedDict[str, int] = OrderedDict()
    for user, tokens, new_limit in accesses:
        if new_limit is not None:
            limit = new_limit
            kv.set_limit(limit)
            kv.trim()
            while sum(plain.values()) > limit:
                plain.popitem(last=False)
        held = plain.get(user, 0)
        assert kv.access((user, "1"), tokens) == min(held, tokens)
        if user in plain:
            plain.move_to_end(user)
        if tokens <= limit and (tokens or user in plain):
            while sum(plain.values()) - plain.get(user, 0) + tokens > limit:
                plain.pop(next(known for known in plain if known != user))
            plain[user] = tokens
            plain.move_to_end(user)
        assert kv.keys_oldest_first() == [(known, "1") for known in plain]
        assert kv.used_bytes == sum(plain.values()) <= limit
