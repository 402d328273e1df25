"""The three tiers together: who owns what, bounded bytes, promotion, loss, versions, cuts."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.physics.transfer import TransferCost
from simulator.tiers.freshness import Freshness
from simulator.tiers.ssd import SsdCost
from simulator.tiers.store import TieredStore
from simulator.tiers.store_types import StoreConfig

CHUNK, PAGE = 4, 2


def link(bytes_per_second: int = 1_000_000) -> TransferCost:
    return TransferCost(
        name="test",
        to_device_fixed_ms=0.0,
        to_device_bytes_per_second=bytes_per_second,
        to_host_fixed_ms=0.0,
        to_host_bytes_per_second=bytes_per_second,
        to_device_duplex_share=0.5,
        to_host_duplex_share=1.0,
    )


def config(**changes: object) -> StoreConfig:
    base = StoreConfig(
        users=6,
        bytes_per_token=1,
        hbm_bytes=40,
        dram_bytes=60,
        ssd_bytes=120,
        link=link(),
        page_tokens=PAGE,
        chunk_tokens=CHUNK,
        offload_limit_tokens=64,
        write_buffer_tokens=16,
        promoted_percent=34,
        exclusive=False,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]  # fields by name


def sound(store: TieredStore) -> None:
    """What must hold between any two steps."""
    limits = store.config
    for tier in (store.hbm, store.dram, store.ssd):
        assert tier.used_bytes == sum(tier.bytes_of(user) for user in tier.users())
        staying = sum(tier.bytes_of(user) for user in tier.users() if tier.pinned(user))
        assert tier.used_bytes <= max(tier.limit_bytes, staying), "only what is being copied may lie above a lowered limit"
    for user in range(limits.users):
        assert not (user in store.dram and user in store.ssd), "host memory and SSD exclude each other"
        if limits.exclusive and user in store.hbm:
            assert (store.host_tokens(user), store.offload.pending(user)) == (0, False), "HBM excludes both"
        on_host = store.dram.bytes_of(user) + store.ssd.bytes_of(user)
        assert on_host == store.host_tokens(user) * limits.bytes_per_token
        assert store.hbm.bytes_of(user) == -(-store.hbm_tokens(user) // PAGE) * PAGE * limits.bytes_per_token
        assert not (store.offload.frozen(user) and not store.offload.pending(user))
    assert store.promotions.held_bytes >= 0
    fates = store.counts.promoted_used + store.counts.promoted_wasted
    assert fates <= store.counts.promoted
    held = store.offload.held_tokens
    counts = store.offload.counts
    assert counts.accepted == counts.copied + counts.cancelled + held
    assert not counts.holed_users


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["serve", "serve", "serve", "announce", "announce", "withdraw", "cut", "forget", "emb", "model", "shrink", "resize"]
        ),
        st.integers(0, 5),
        st.integers(0, 30),
        st.sampled_from([0.0, 0.001, 0.01, 0.1, 30.0]),
    ),
    max_size=60,
)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("hbm_bytes", [0, 400])
def test_a_short_copy_behind_a_long_one_of_the_same_user_waits_for_it(exclusive: bool, hbm_bytes: int) -> None:
    """The second range comes in the very moment in which the first has crossed the link, but for a rounding error."""
    sizes = config(
        exclusive=exclusive,
        hbm_bytes=hbm_bytes,
        dram_bytes=400,
        link=link(1_000_000),
        offload_limit_tokens=64,
        write_buffer_tokens=0,
    )
    store = TieredStore(sizes)
    store.serve(1, 20, now_ms=0.001)
    store.serve(1, 24, now_ms=0.001 + 0.01 + 0.01)
    store.resize(hbm_bytes=0)
    store.advance(1e6)
    sound(store)
    assert store.offload.held_tokens == 0
    assert store.serve(1, 24, now_ms=2e6).dram_tokens == 24


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("policy", ["lru", "look-ahead", "size-aware", "arc"])
@given(
    steps=STEPS,
    rates=st.sampled_from([1, 1000, 1_000_000]),
    hbm=st.sampled_from([0, 10, 40]),
    dram=st.sampled_from([0, 20, 60]),
    ssd=st.sampled_from([0, 30, 120]),
    queue=st.sampled_from([0, 8, 64]),
    buffer=st.sampled_from([0, 16]),
)
@settings(max_examples=50, deadline=None)
def test_bytes_are_conserved_and_bounded_and_nothing_has_two_owners(
    policy: str,
    exclusive: bool,
    steps: list[tuple[str, int, int, float]],
    rates: int,
    hbm: int,
    dram: int,
    ssd: int,
    queue: int,
    buffer: int,
) -> None:
    sizes = config(
        exclusive=exclusive,
        host_policy=policy,
        hbm_bytes=hbm,
        dram_bytes=dram,
        ssd_bytes=ssd,
        link=link(rates * 1000),
        offload_limit_tokens=queue,
        write_buffer_tokens=buffer,
        announced_ms=20.0,
        ssd=SsdCost(read_bytes_per_second=rates * 1000, write_bytes_per_second=rates * 1000, write_backlog_bytes=60),
    )
    stores = [TieredStore(sizes, freshness=Freshness(ttl_ms=50.0, max_emb_lag=1)) for _ in range(2)]
    logs: list[list[object]] = [[], []]
    for store, log in zip(stores, logs, strict=True):
        lengths = dict.fromkeys(range(6), 0)
        now, resized = 0.0, False
        for what, user, size, gap_ms in steps:
            now += gap_ms
            if what == "serve":
                lengths[user] += size
                served = store.serve(user, lengths[user], now_ms=now)
                parts = (served.hbm_tokens, served.dram_tokens, served.ssd_tokens, served.computed_tokens)
                assert min(parts) >= 0
                assert sum(parts) == lengths[user]
                assert served.wait_ms >= 0
                log.append(served)
            elif what == "announce":
                store.announce(user, now_ms=now)
            elif what == "withdraw":
                store.withdraw(user, now_ms=now)
            elif what == "cut" and lengths[user] > CHUNK:
                lengths[user] -= CHUNK
                store.cut(user, CHUNK)
            elif what == "shrink":
                lengths[user] = min(lengths[user], size)
            elif what == "forget":
                store.forget(user)
            elif what == "resize":
                store.resize(**{("hbm_bytes", "dram_bytes", "ssd_bytes")[user % 3]: 4 * size})
            elif what in ("emb", "model"):
                store.publish(**{what: size})
            resized |= what == "resize"
            sound(store)
            assert resized or store.counts.peak_dram_bytes <= dram
            assert resized or store.counts.peak_promoted_bytes <= sizes.promoted_limit_bytes
        store.advance(now + 1e6)
        sound(store)
        assert max(tier.overage_bytes for tier in (store.hbm, store.dram, store.ssd)) == 0
        assert store.offload.held_tokens == 0, "whatever was accepted is copied or given up in the end"
        log.append((store.counts, store.offload.counts))
    assert logs[0] == logs[1], "same input, same output"


def test_leaving_hbm_costs_the_tail_below_a_chunk_only() -> None:
    store = TieredStore(config(hbm_bytes=20))
    assert store.serve(0, 18, now_ms=0).computed_tokens == 18
    store.serve(1, 18, now_ms=10)
    assert 0 not in store.hbm
    assert store.counts.tail_tokens_lost == 2
    served = store.serve(0, 19, now_ms=20)
    assert (served.hbm_tokens, served.dram_tokens, served.computed_tokens) == (0, 16, 3)


def test_exclusive_tiers_add_up_and_write_what_leaves_hbm_each_time() -> None:
    """Room for two users each: four come in turn, and all are found; copied as they grow, the host has HBM's users as well."""
    sizes = {"hbm_bytes": 32, "dram_bytes": 32, "ssd_bytes": 0}
    found, copied = {}, {}
    for exclusive in (False, True):
        store = TieredStore(config(**sizes, exclusive=exclusive))
        served = [store.serve(turn % 4, 16, now_ms=10.0 * turn) for turn in range(12)]
        found[exclusive] = [one.hbm_tokens + one.dram_tokens for one in served[4:]]
        store.advance(1e3)
        copied[exclusive] = store.counts.offloaded_bytes
        assert all(one.hbm_tokens == 0 for one in served)
    assert found == {False: [0] * 8, True: [16] * 8}
    assert copied[True] == 16 * (12 - 2), "every one that HBM gave up, but for the two that it still has"


def test_state_on_its_way_out_of_hbm_is_computed_again_by_a_request_that_comes_too_soon() -> None:
    store = TieredStore(config(hbm_bytes=16, exclusive=True, link=link(1000)))
    store.serve(0, 16, now_ms=0)
    store.serve(1, 16, now_ms=1)
    assert store.offload.pending(0)
    assert store.serve(0, 16, now_ms=2).computed_tokens == 16
    sound(store)
    store.serve(1, 16, now_ms=100)
    store.advance(200)
    assert store.serve(0, 17, now_ms=201).dram_tokens == 16


def test_what_leaves_hbm_while_the_queue_is_full_is_dropped_and_counted() -> None:
    store = TieredStore(config(hbm_bytes=16, exclusive=True, link=link(1), offload_limit_tokens=16))
    for user in range(3):
        store.serve(user, 16, now_ms=user)
    assert (store.offload.counts.drops, store.offload.counts.dropped, store.counts.tail_tokens_lost) == (1, 16, 16)
    assert not store.offload.owed_users


def test_what_host_memory_gives_up_is_found_on_the_ssd_and_costs_a_read() -> None:
    slow = SsdCost(read_bytes_per_second=1000.0, write_bytes_per_second=1000.0, fixed_ms=1.0)
    store = TieredStore(config(hbm_bytes=0, dram_bytes=16, ssd=slow))
    store.serve(0, 16, now_ms=0)
    store.serve(1, 16, now_ms=10)
    store.advance(20)
    assert (0 in store.ssd, 1 in store.dram) == (True, True)
    served = store.serve(0, 16, now_ms=30)
    assert (served.ssd_tokens, served.wait_ms) == (16, 17.0)


def test_an_early_signal_brings_state_up_before_the_request_and_a_late_one_shortens_the_wait() -> None:
    slow = SsdCost(read_bytes_per_second=1000.0, write_bytes_per_second=1e9)
    for lead_ms, dram_tokens, wait_ms in ((20, 16, 0.0), (10, 0, 6.0)):
        store = TieredStore(config(hbm_bytes=0, dram_bytes=48, ssd_bytes=48, ssd=slow))
        for user in range(4):
            store.serve(user, 16, now_ms=user)
        store.advance(100)
        assert 0 in store.ssd
        store.announce(0, now_ms=100)
        served = store.serve(0, 16, now_ms=100 + lead_ms)
        assert (served.dram_tokens, served.wait_ms) == (dram_tokens, wait_ms)
        assert store.counts.promoted_late == (dram_tokens == 0)


def test_announcing_everybody_at_once_fills_no_more_than_the_budget_of_host_memory() -> None:
    store = TieredStore(config(hbm_bytes=0, dram_bytes=48, ssd_bytes=120))
    for user in range(6):
        store.serve(user, 16, now_ms=user)
    for user in range(6):
        store.announce(user, now_ms=10)
    store.advance(20)
    assert store.promotions.held_bytes == 16 == store.config.promoted_limit_bytes
    for user in range(6):
        store.advance(30 + user)
        served = store.serve(user, 16, now_ms=30 + user)
        assert served.dram_tokens + served.ssd_tokens == 16
        sound(store)


def test_a_withdrawn_announcement_frees_the_budget_for_the_next() -> None:
    store = TieredStore(config(hbm_bytes=0, dram_bytes=48, ssd_bytes=120))
    for user in range(6):
        store.serve(user, 16, now_ms=user)
    store.advance(10)
    first, second = [user for user in range(6) if user in store.ssd][:2]
    store.announce(first, now_ms=10)
    store.announce(second, now_ms=10)
    store.advance(20)
    assert (first in store.dram, second in store.dram) == (True, False)
    store.withdraw(first, now_ms=20)
    store.advance(30)
    assert second in store.dram
    assert store.counts.promoted_wasted == 1


def test_an_announcement_that_nobody_comes_for_protects_for_a_while_only() -> None:
    store = TieredStore(config(hbm_bytes=0, dram_bytes=48, announced_ms=100.0))
    store.serve(0, 16, now_ms=0)
    store.announce(0, now_ms=1)
    store.announce(1, now_ms=50)
    store.serve(1, 16, now_ms=60)
    store.advance(101)
    assert len(store.queue) == 1
    store.advance(102)
    assert len(store.queue) == 0
    assert store.counts.announcements_expired == 1, "the one that was served does not count"
    store.announce(0, now_ms=110)
    store.announce(0, now_ms=150)
    store.serve(0, 16, now_ms=160)
    store.advance(215)
    assert len(store.queue) == 1, "the first was served, the second is not old enough"


def test_a_host_smaller_than_one_user_neither_keeps_it_nor_copies_it_for_ever() -> None:
    store = TieredStore(config(dram_bytes=8, ssd_bytes=0))
    store.serve(0, 16, now_ms=0)
    store.advance(1e6)
    assert store.counts.offloaded_bytes == 16
    assert store.host_tokens(0) == 0
    assert store.serve(0, 17, now_ms=1e6).hbm_tokens == 16


def test_users_in_hbm_do_not_push_each_other_out_of_a_smaller_host_for_ever() -> None:
    store = TieredStore(config(hbm_bytes=60, dram_bytes=16, ssd_bytes=0))
    for user in range(3):
        store.serve(user, 16, now_ms=user)
    store.advance(1e6)
    assert store.counts.offloaded_bytes == 3 * 16


def test_state_of_another_model_is_dropped_and_state_of_old_rows_is_served_and_counted_up_to_a_bound() -> None:
    store = TieredStore(config(), freshness=Freshness(max_emb_lag=2))
    store.serve(0, 8, now_ms=0)
    store.publish(emb=2)
    assert store.serve(0, 9, now_ms=1).computed_tokens == 1
    assert (store.freshness.stale_share, store.freshness.mean_lag) == (1.0, 2.0)
    store.publish(emb=3)
    assert store.serve(0, 9, now_ms=2).computed_tokens == 9, "appending to stale state does not freshen it"
    assert store.serve(0, 9, now_ms=3).computed_tokens == 0
    assert store.publish(model=1) == 1
    assert store.serve(0, 9, now_ms=4).computed_tokens == 9
    assert store.counts.invalidated == 2


def test_state_that_nobody_asked_for_expires_everywhere() -> None:
    store = TieredStore(config(), freshness=Freshness(ttl_ms=10.0))
    store.serve(0, 16, now_ms=0)
    store.advance(9)
    assert store.host_tokens(0) == 16
    store.advance(11)
    assert store.hbm_tokens(0) == store.host_tokens(0) == 0
    assert store.counts.expired == 1


def test_a_cut_in_whole_chunks_keeps_the_rest_usable_on_all_tiers() -> None:
    store = TieredStore(config())
    store.serve(0, 19, now_ms=0)
    store.advance(10)
    store.cut(0, 2 * CHUNK)
    assert (store.hbm_tokens(0), store.host_tokens(0)) == (11, 8)
    served = store.serve(0, 12, now_ms=11)
    assert (served.hbm_tokens, served.computed_tokens) == (11, 1)
    store.advance(20)
    assert store.host_tokens(0) == 12
    with pytest.raises(ValueError, match="multiple"):
        store.cut(0, 3)


def test_a_file_that_cannot_grow_is_not_tried_again_until_the_next_visit() -> None:
    # The queue takes a part of the state at a time, so that the rest is owed while the first part fails.
    store = TieredStore(config(hbm_bytes=100, dram_bytes=0, ssd_bytes=8, offload_limit_tokens=8))
    store.serve(0, 8, now_ms=0)
    store.advance(1)
    assert store.host_tokens(0) == 8
    store.serve(0, 40, now_ms=2)
    store.advance(1e6)
    assert store.counts.offloaded_bytes == 16
    assert not store.offload.owed_users


def test_a_lowered_limit_is_kept_at_once_but_for_what_is_being_copied() -> None:
    store = TieredStore(config(link=link(1000), write_buffer_tokens=0))
    store.serve(0, 16, now_ms=0)
    store.serve(1, 16, now_ms=0)
    store.resize(hbm_bytes=16)
    assert store.hbm.used_bytes == 32, "both are sources of copies"
    store.advance(20)
    assert (store.hbm.used_bytes, store.host_tokens(0), store.host_tokens(1)) == (16, 16, 0)
    store.resize(dram_bytes=0)
    assert 0 in store.ssd


def test_time_does_not_run_backwards_and_sizes_must_be_possible() -> None:
    store = TieredStore(config())
    store.advance(5)
    with pytest.raises(ValueError, match="is before"):
        store.advance(4)
    for bad in ({"users": 0}, {"dram_bytes": -1}, {"promoted_percent": 101}, {"chunk_tokens": 0}):
        with pytest.raises(ValueError):
            config(**bad)
