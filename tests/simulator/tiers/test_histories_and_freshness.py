"""Cut histories are exact or marked, and computed anew in time; versions and age decide whether state may be used."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.physics.accelerator import load_accelerator
from simulator.physics.transfer import native_transfer
from simulator.tiers.freshness import Freshness, Stamp, Verdict
from simulator.tiers.grown import serve_grown
from simulator.tiers.histories import HistoryBook, Positions
from simulator.tiers.store import TieredStore
from simulator.tiers.store_types import StoreConfig

DEEP = Positions(layers=8)


@pytest.mark.parametrize(
    ("positions", "exact"),
    [
        (Positions(layers=1), True),
        (Positions(layers=8), False),
        (Positions(layers=8, window_tokens=10), True),  # reaches back 80 tokens of 96 kept
        (Positions(layers=8, window_tokens=12), False),  # reaches back 96: to the cut
        (Positions(layers=8, local_chunk_tokens=32), True),
        (Positions(layers=8, local_chunk_tokens=48), False),  # 32 dropped end inside a chunk
    ],
)
def test_a_cut_is_exact_only_where_no_kept_token_that_matters_saw_a_dropped_one(positions: Positions, exact: bool) -> None:
    book = HistoryBook(positions=positions, max_tokens=100, cut_tokens=32)
    book.visit(0, 100)
    visit = book.visit(0, 128)
    assert (visit.tokens, visit.dropped_tokens, visit.usable, visit.exact) == (96, 32, True, exact)
    assert (book.counts.exact, book.counts.approximate) == ((2, 0) if exact else (1, 1))


def attended(layers: int, window: int | None, chunk: int | None, tokens: int) -> np.ndarray:
    """Which tokens the last one depends on, through all layers: reach of a causal mask, computed the long way."""
    query, key = np.indices((tokens, tokens))
    mask = key <= query
    if window is not None:
        mask &= query - key <= window
    if chunk is not None:
        mask &= query // chunk == key // chunk
    reach = np.eye(tokens, dtype=bool)
    for _ in range(layers):
        reach = (mask.astype(int) @ reach.astype(int)) > 0
    return reach


@given(
    layers=st.integers(1, 4),
    window=st.none() | st.integers(1, 12),
    chunk=st.none() | st.sampled_from([4, 6, 8]),
    dropped=st.sampled_from([4, 8, 12]),
    kept=st.integers(1, 30),
)
@settings(max_examples=100, deadline=None)
def test_what_counts_as_exact_is_so_by_the_reach_of_the_attention_mask(
    layers: int, window: int | None, chunk: int | None, dropped: int, kept: int
) -> None:
    positions = Positions(layers=layers, window_tokens=window, local_chunk_tokens=chunk)
    if not positions.exact(dropped_tokens=dropped, kept_tokens=kept):
        return
    # The state of a kept token in layer l holds what it reached in l - 1 layers; the newest token reads it through one more.
    reach = attended(layers - 1, window, chunk, dropped + kept)
    last = attended(1, window, chunk, dropped + kept)[-1]
    read = [token for token in range(dropped, dropped + kept) if last[token]]
    assert not reach[read, :dropped].any()


def test_positions_baked_into_the_state_make_every_cut_a_recomputation() -> None:
    book = HistoryBook(positions=dataclasses.replace(DEEP, decoupled=False), max_tokens=100, cut_tokens=10)
    for total in range(90, 130, 5):
        book.visit(0, total)
    assert book.counts.cuts == book.counts.recomputes == 3
    assert book.counts.approximate == 0


def test_state_is_computed_anew_after_the_agreed_number_of_cuts_and_counts_from_there() -> None:
    book = HistoryBook(positions=DEEP, max_tokens=100, cut_tokens=10, recompute_after=2)
    usable = [book.visit(0, total).usable for total in range(100, 171, 10)]
    assert usable == [True, True, True, False, True, True, False, True]
    assert (book.counts.recomputes, book.counts.cuts) == (2, 7)
    assert (book.counts.exact, book.counts.approximate) == (3, 5)


def test_a_user_without_state_is_exact_however_often_the_history_was_cut() -> None:
    book = HistoryBook(positions=DEEP, max_tokens=100, cut_tokens=10)
    book.visit(0, 100)
    assert not book.visit(0, 110).exact
    assert book.visit(0, 120, stored=False).exact
    assert book.counts.recomputes == 0
    with pytest.raises(ValueError, match="cut_tokens"):
        HistoryBook(positions=DEEP, max_tokens=10, cut_tokens=10)


def store(*, exclusive: bool = True) -> TieredStore:
    return TieredStore(
        StoreConfig(
            exclusive=exclusive,
            users=3,
            bytes_per_token=1,
            hbm_bytes=120,
            dram_bytes=240,
            page_tokens=1,
            chunk_tokens=8,
            link=native_transfer(load_accelerator("a100")),
        )
    )


@given(
    growth=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=50),
    recompute_after=st.none() | st.integers(0, 3),
    exclusive=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_served_histories_never_exceed_the_model_and_always_end_where_the_user_is(
    growth: list[tuple[int, int]], recompute_after: int | None, exclusive: bool
) -> None:
    tiers = store(exclusive=exclusive)
    book = HistoryBook(positions=DEEP, max_tokens=64, cut_tokens=16, recompute_after=recompute_after)
    totals, origins = [0, 0, 0], [0, 0, 0]
    for step, (user, tokens) in enumerate(growth):
        totals[user] += tokens
        visit, served = serve_grown(tiers, book, user, totals[user], now_ms=step * 10.0)
        origins[user] += visit.dropped_tokens
        assert visit.tokens == totals[user] - origins[user] <= 64
        assert visit.dropped_tokens % 16 == 0
        assert visit.tokens == served.hbm_tokens + served.dram_tokens + served.ssd_tokens + served.computed_tokens
        if not visit.usable:
            assert served.computed_tokens == visit.tokens
        assert tiers.hbm_tokens(user) <= visit.tokens
        assert tiers.host_tokens(user) <= visit.tokens
    assert book.counts.exact + book.counts.approximate == len(growth)


def test_cutting_in_chunks_computes_new_tokens_only_and_token_by_token_everything_again() -> None:
    computed = {}
    for name, positions, cut in (("chunks", DEEP, 16), ("tokens", dataclasses.replace(DEEP, decoupled=False), 1)):
        tiers, book = store(), HistoryBook(positions=positions, max_tokens=64, cut_tokens=cut)
        served = [serve_grown(tiers, book, 0, 64 + 4 * visit, now_ms=visit * 10.0)[1] for visit in range(30)]
        computed[name] = sum(one.computed_tokens for one in served[1:])
    assert computed == {"chunks": 29 * 4, "tokens": 29 * 64}
    with pytest.raises(ValueError, match="multiple of the chunk"):
        serve_grown(store(), HistoryBook(positions=DEEP, max_tokens=64, cut_tokens=12), 0, 65, now_ms=0.0)


def test_verdicts_on_stored_state() -> None:
    fresh = Freshness(ttl_ms=100.0, max_emb_lag=2, model=3, emb=10)
    for stamp, verdict in (
        (Stamp(model=3, emb=10, used_ms=0.0), Verdict.FRESH),
        (Stamp(model=3, emb=8, used_ms=0.0), Verdict.STALE),
        (Stamp(model=3, emb=7, used_ms=0.0), Verdict.TOO_STALE),
        (Stamp(model=2, emb=10, used_ms=0.0), Verdict.OTHER_MODEL),
        (Stamp(model=3, emb=10, used_ms=-51.0), Verdict.EXPIRED),
    ):
        assert fresh.judge(stamp, now_ms=50.0) is verdict
    assert [verdict for verdict in Verdict if verdict.usable] == [Verdict.FRESH, Verdict.STALE]
    assert (fresh.stale_share, fresh.mean_lag) == (0.5, 2.0)
    for bad in ({"ttl_ms": 0.0}, {"max_emb_lag": -1}, {"ttl_ms": float("nan")}):
        with pytest.raises(ValueError, match="must be"):
            Freshness(**bad)  # type: ignore[arg-type]  # wrong on purpose
