"""State that HBM evicts lies on the host and then on the SSD, is found there, and never in two places."""

from dataclasses import replace
from typing import Any

import pytest
from core_requests import MIB, config, rank, split, traffic, user
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.engine import InvalidateRequest, LimitsRequest, SplitStatus
from simulator.core.instance import GRInstanceCore
from simulator.core.lower_tiers import LowerTier, LowerTiers
from simulator.core.physics import DEMO_ACCELERATOR

#: With the link of the demo accelerator computing anew is always faster; this one loads ten times as fast.
FAST_LINK = replace(DEMO_ACCELERATOR, link_bytes_per_second=12_400_000_000)


def core(**changes: Any) -> GRInstanceCore:
    return GRInstanceCore(config(**({"host_bytes": 64 * MIB, "service": FAST_LINK} | changes)), 1)


def pushed_out(engine: GRInstanceCore) -> GRInstanceCore:
    """User 1 and others in turn, until HBM (32 MiB, four users) has evicted user 1."""
    for number in range(6):
        engine.rank(rank(number, who=number + 1), 1000.0 * number)
    return engine


def counters(engine: GRInstanceCore) -> Any:
    return engine.observe(engine.clock_ms).counters


def test_a_user_that_hbm_evicted_is_loaded_and_costs_less_than_anew() -> None:
    with_host, without = pushed_out(core()), pushed_out(core(host_bytes=0))
    again = rank(9, who=1)
    loaded, anew = with_host.rank(again, 9000.0), without.rank(again, 9000.0)
    assert (loaded.kv_tokens_hit, anew.kv_tokens_hit) == (0, 0)
    assert loaded.service_ms < anew.service_ms
    assert loaded.emb_rows_asked < anew.emb_rows_asked
    told = counters(with_host)
    assert told.kv.tokens_hit_dram == 1000
    assert told.bytes.reload == with_host.kv.bytes_of(1000)
    assert told.bytes.offload >= told.bytes.reload
    assert user(1) in {key[0] for key in with_host.kv.keys_oldest_first()}


def test_loading_that_is_slower_than_computing_is_not_done() -> None:
    engine = pushed_out(core(reload_fixed_ms=1e5))
    assert engine.rank(rank(9, who=1), 9000.0).service_ms < 1e5
    assert counters(engine).kv.tokens_hit_dram == 0


def test_what_the_host_evicts_is_found_on_the_ssd() -> None:
    engine = pushed_out(core(host_bytes=9 * MIB, ssd_bytes=64 * MIB))
    engine.rank(rank(9, who=1), 9000.0)
    told = counters(engine)
    assert (told.kv.tokens_hit_dram, told.kv.tokens_hit_ssd) == (0, 1000)
    assert engine.describe().tiers == ["hbm", "dram", "ssd"]


def test_limits_follow_what_the_process_has() -> None:
    engine = pushed_out(core(host_bytes=64 * MIB))
    limits: dict[str, Any] = {"pre_infer_slots": 4, "pre_infer_bytes": MIB}
    too_much = engine.put_limits(LimitsRequest(revision=1, host_bytes=65 * MIB, **limits))
    assert (too_much.status, too_much.limits.host_bytes) == (SplitStatus.UNSUPPORTED, 64 * MIB)
    no_ssd = engine.put_limits(LimitsRequest(revision=1, ssd_bytes=1, **limits))
    assert no_ssd.reason == "ssdBytes: this engine has no such tier"
    assert engine.lower.used_bytes(LowerTier.HOST) > 0
    assert engine.put_limits(LimitsRequest(revision=1, host_bytes=0, **limits)).status == SplitStatus.APPLIED
    assert engine.lower.used_bytes(LowerTier.HOST) == 0


def test_prefetch_promotes_evict_forgets_and_another_version_empties() -> None:
    engine = pushed_out(core())
    answer = engine.prefetch([user(1)])
    assert (answer.affected, answer.bytes) == (1, engine.kv.bytes_of(1000))
    assert engine.rank(rank(9, who=1), 9000.0).kv_tokens_hit == 1000
    assert counters(engine).bytes.prefetch == answer.bytes
    engine.advance(1e6)
    below = {key[0] for key in engine.lower.users()}
    assert engine.evict(below).affected == len(below)
    assert not engine.lower.users()
    engine = pushed_out(core())
    assert engine.invalidate(InvalidateRequest(model_version="2")).affected == 6
    assert not engine.lower.users()


def test_an_ssd_without_a_host_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^ssd_bytes: "):
        config(ssd_bytes=1)


def test_nobody_is_in_two_tiers_and_no_limit_is_passed_while_the_split_moves() -> None:
    engine = core(host_bytes=24 * MIB, ssd_bytes=24 * MIB)
    for number, (request, arrival) in enumerate(traffic(400, users=30)):
        engine.rank(request, arrival)
        if number % 40 == 39:
            emb = (number * 7 % 48 + 8) * MIB
            engine.put_split(split(engine, engine.split.revision + 1, emb, 64 * MIB - emb), now_ms=arrival)
        below, above = engine.lower.users(), engine.kv.keys_oldest_first()
        assert len({*below, *above}) == len(below) + len(above)
        assert all(engine.lower.used_bytes(tier) <= 24 * MIB for tier in LowerTier)
    told = counters(engine)
    assert told.kv.tokens_hit_dram > 0 < told.kv.tokens_hit_ssd
    assert told.kv.tokens_hit_hbm + told.kv.tokens_hit_dram + told.kv.tokens_hit_ssd <= told.kv.tokens_asked


KEYS = [(user(number), "1") for number in range(6)]
steps = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(KEYS), st.integers(0, 12)),
    st.tuples(st.just("take"), st.sampled_from(KEYS), st.just(0)),
    st.tuples(st.just("limit"), st.integers(0, 20), st.integers(0, 20)),
)


@settings(max_examples=200)
@given(steps=st.lists(steps, max_size=40))
def test_bytes_are_those_of_the_users_held_and_within_the_limits(steps: list[tuple[str, Any, int]]) -> None:
    tiers, limits = LowerTiers(host_bytes=10, ssd_bytes=10), (10, 10)
    for kind, first, second in steps:
        if kind == "limit":
            limits = (first, second)
            tiers.set_limits(host_bytes=first, ssd_bytes=second)
        elif kind == "take":
            tiers.take(first)
        else:
            tiers.drop([first])
            tiers.off_load(first, second, second)
        used = tiers.used_bytes(LowerTier.HOST), tiers.used_bytes(LowerTier.SSD)
        assert used[0] <= limits[0]
        assert used[1] <= limits[1]
    held = [tiers.take(key) for key in tiers.users()]
    assert sum(each.bytes for each in held if each is not None) == sum(used) if steps else True
    assert not tiers.users()
