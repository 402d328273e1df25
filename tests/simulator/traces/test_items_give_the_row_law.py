"""The popularity of embedding rows is fitted to the items that a log names, and says how sure it is."""

import json
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.request_log import RowLaw
from simulator.traces import DEFAULT_LAW, LoadReport, LogOptions, load_mooncake, read_event_log
from simulator.traces.item_law import HEAD_ITEMS, ItemLaw, fit_items
from simulator.traces.item_sample import STRETCHES, ItemSample
from simulator.workloads import ROW_DOUBTS, own_log
from simulator.workloads.sources import MOONCAKE_FILE, traces_folder

KEY = b"a key of sixteen bytes"
HOUR_MS = 3_600_000.0
ITEMS_A_LINE = 100


def zipf(exponent: float, items: int) -> np.ndarray:
    weights = np.arange(1, items + 1, dtype=float) ** -exponent
    return weights / weights.sum()


def sampled(
    shares: np.ndarray, *, occurrences: int, hours: float, drift_percent: float = 0.0, seed: int = 1, **bounds: int
) -> ItemSample:
    """Lines whose items are independent draws; each of the most popular gives its rank to a new item at even intervals."""
    rng = np.random.default_rng(seed)
    below = np.cumsum(shares)
    phase = rng.random(min(HEAD_ITEMS, len(shares) // 2))
    sample = ItemSample(**bounds)
    for line, moment in enumerate(np.sort(rng.random(occurrences // ITEMS_A_LINE)) * hours):
        rank = np.minimum(np.searchsorted(below, rng.random(ITEMS_A_LINE)), len(shares) - 1)
        turn = np.zeros(ITEMS_A_LINE, dtype=int)
        head = rank < len(phase)
        turn[head] = np.floor(moment * drift_percent / 100.0 + phase[rank[head]])
        sample.add(line, moment * HOUR_MS, [f"item {a}, {b}" for a, b in zip(rank.tolist(), turn.tolist(), strict=True)])
    return sample


def fitted(sample: ItemSample) -> ItemLaw:
    counts = sample.taken()
    assert counts is not None
    law = fit_items(counts)
    assert law is not None
    return law


@pytest.mark.parametrize(
    ("exponent", "items", "drift_percent", "hours"),
    [(0.95, 300_000, 0.0, 1.0), (0.7, 50_000, 0.0, 24.0), (1.15, 1_000_000, 0.0, 2.0), (0.95, 300_000, 40.0, 2.0)],
)
def test_a_known_law_is_found_again_within_its_stated_errors(
    exponent: float, items: int, drift_percent: float, hours: float
) -> None:
    law = fitted(sampled(zipf(exponent, items), occurrences=400_000, hours=hours, drift_percent=drift_percent))

    assert law.exponent == pytest.approx(exponent, abs=max(0.01, 4.0 * law.exponent_error))
    assert abs(np.log(law.catalog_items / items)) < 4.0 * np.log(law.catalog_factor)
    assert law.exponent_error < 0.02
    assert law.catalog_factor < 1.3
    assert law.drift.percent_per_hour == pytest.approx(drift_percent, abs=3.0 * law.drift.error)
    assert law.misfit < 0.05
    assert law.doubts == ()


def test_drift_is_none_where_the_head_stays_and_fast_where_it_goes() -> None:
    stays = fitted(sampled(zipf(0.95, 100_000), occurrences=300_000, hours=2.0))
    goes = fitted(sampled(zipf(0.95, 100_000), occurrences=300_000, hours=2.0, drift_percent=200.0))

    assert stays.drift.percent_per_hour == 0.0
    assert goes.drift.percent_per_hour == pytest.approx(200.0, rel=0.15)
    assert goes.catalog_items == pytest.approx(100_000, rel=0.3)  # not the items that came one after another


@pytest.mark.parametrize("bounds", [{"most_items": 2_000}, {"most_occurrences": 60_000}])
def test_a_smaller_sample_finds_the_same_law_less_surely(bounds: dict[str, int]) -> None:
    whole = fitted(sampled(zipf(0.9, 100_000), occurrences=300_000, hours=1.0))
    part = fitted(sampled(zipf(0.9, 100_000), occurrences=300_000, hours=1.0, **bounds))

    assert part.item_share < whole.item_share or part.line_share < whole.line_share
    assert part.exponent == pytest.approx(whole.exponent, abs=4.0 * part.exponent_error)
    assert abs(np.log(part.catalog_items / whole.catalog_items)) < 4.0 * np.log(part.catalog_factor)
    assert part.catalog_factor >= whole.catalog_factor


def test_a_popularity_that_is_no_zipf_law_is_doubted() -> None:
    two_kinds = np.concatenate([np.full(200, 0.5 / 200), np.full(50_000, 0.5 / 50_000)])
    law = fitted(sampled(two_kinds, occurrences=300_000, hours=1.0))
    assert law.misfit > 0.06
    assert any("no Zipf law" in doubt for doubt in law.doubts)


def test_a_catalogue_that_a_short_log_cannot_tell_is_doubted() -> None:
    law = fitted(sampled(zipf(1.2, 10_000_000), occurrences=3_000, hours=0.2))
    assert law.catalog_factor > 2.0
    assert any("size of the catalogue" in doubt for doubt in law.doubts)


def test_items_that_come_back_soon_are_doubted() -> None:
    sample = ItemSample()
    for line in range(2_000):  # three times each within three lines, and never again
        sample.add(line, line * 1_000.0, [line // 3 * 10 + each for each in range(10)])
    law = fitted(sample)
    assert law.clustering is not None
    assert law.clustering > 0.9
    assert any("come back sooner than by chance" in doubt for doubt in law.doubts)


def test_a_few_items_fit_no_law() -> None:
    sample = ItemSample()
    sample.add(1, 0.0, ["a", "b", 7, "7"])
    counts = sample.taken()
    assert counts is not None
    assert fit_items(counts) is None
    assert counts.counts.sum() == 4
    assert len(counts.counts) == 3, "7 and '7' are one item, as in CSV"


@settings(max_examples=40, deadline=None)
@given(
    lines=st.lists(
        st.tuples(st.floats(0.0, 1e14, allow_nan=False), st.lists(st.one_of(st.text(max_size=9), st.integers()), max_size=9)),
        max_size=60,
    )
)
def test_any_lines_are_counted_in_bounded_memory(lines: list[tuple[float, list[str | int]]]) -> None:
    sample = ItemSample(most_items=16, most_occurrences=100)
    for line, (moment, items) in enumerate(lines):
        sample.add(line, moment, items)
    counts = sample.taken()
    if counts is not None:
        assert counts.counts.shape[1] == STRETCHES
        assert len(counts.counts) <= 16
        assert counts.counts.sum() <= counts.occurrences or counts.line_share < 1.0
        fit_items(counts)


def log_of(path: Path, lines: Iterable[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def lines_of(*, occurrences: int = 60_000, items: int = 5_000, seed: int = 1) -> Iterable[dict[str, object]]:
    rng = np.random.default_rng(seed)
    for place in range(occurrences // ITEMS_A_LINE):
        drawn = rng.choice(items, size=ITEMS_A_LINE, p=zipf(0.9, items))
        yield {"user": f"ann{place % 50}@example.com", "time_ms": place * 500.0, "items": [f"sku {item}" for item in drawn]}


def read(path: Path, **options: object) -> tuple[RowLaw, LoadReport]:
    log, report = read_event_log(path, LogOptions(pool_key=KEY, **options))  # type: ignore[arg-type]  # options by name
    return log.laws[0], report


def test_an_item_has_a_row_in_each_table(tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.jsonl", lines_of())
    law, report = read(path, rows_per_token=2)
    wider, _ = read(path, rows_per_token=5)

    assert report.item_law is not None
    assert law.exponent == pytest.approx(0.9, abs=0.05)
    assert law.catalog_rows == 2 * round(report.item_law.catalog_items)
    assert (wider.catalog_rows, wider.head_rows) == (law.catalog_rows // 2 * 5, HEAD_ITEMS * 5)


def test_a_law_that_is_given_is_taken_and_nothing_is_fitted(tmp_path: Path) -> None:
    given_law = RowLaw(exponent=0.5, catalog_rows=10)
    law, report = read(log_of(tmp_path / "log.jsonl", lines_of()), law=given_law)
    assert law == given_law
    assert report.item_law is None
    assert report.row_doubts == ()


def test_without_items_or_with_few_the_general_law_is_taken(tmp_path: Path) -> None:
    none, told = read(log_of(tmp_path / "none.jsonl", [{"user": 1, "time_ms": 0, "candidates": 300}]))
    few, doubted = read(log_of(tmp_path / "few.jsonl", [{"user": 1, "time_ms": 0, "items": ["a", "b"]}]))
    assert none == few == DEFAULT_LAW
    assert told.row_doubts == ()
    assert "too few items" in doubted.row_doubts[0]


def test_items_of_lines_that_are_left_out_do_not_count(tmp_path: Path) -> None:
    lines = list(lines_of())
    bad = [{"user": "", "time_ms": 1.0, "items": ["junk"] * 900}] * 50
    clean, _ = read(log_of(tmp_path / "clean.jsonl", lines))
    dirty, report = read(log_of(tmp_path / "dirty.jsonl", [*lines, *bad]), on_bad="skip")
    assert report.skipped == 50
    assert dirty == clean


def test_manifest_and_report_say_which_law_and_how_sure_and_name_no_item(tmp_path: Path) -> None:
    log, manifest, report = own_log(log_of(tmp_path / "log.jsonl", lines_of()), LogOptions(pool_key=KEY))
    said = manifest.to_json()
    rows = next(each for each in said["ingredients"] if each["what"] == "embedding rows")

    assert rows["origin"] == "scaled"
    assert "Zipf 0.9" in rows["rule"]
    assert "+-" in rows["rule"]
    assert said["parameters"]["law"]["exponent"] == log.laws[0].exponent
    assert said["parameters"][ROW_DOUBTS] == list(report.row_doubts)
    text = json.dumps([said, report.to_json()], allow_nan=False)
    assert "sku" not in text
    assert "example.com" not in text


def test_of_a_real_trace_the_marginal_fits_and_the_order_is_doubted(tmp_path: Path) -> None:
    """Blocks of the Mooncake trace as items: an LRU cache hits more of them than of independent draws, which a doubt says."""
    records = load_mooncake(traces_folder() / MOONCAKE_FILE)
    lines = [
        {"user": number, "time_ms": record.time_ms, "items": list(record.blocks), "history_tokens": 0}
        for number, record in enumerate(records)
        if record.blocks
    ]
    law, report = read(log_of(tmp_path / "log.jsonl", lines))
    real = [item for record in records for item in record.blocks]
    items = law.catalog_rows // 2
    drawn = np.random.default_rng(1).choice(items, size=len(real), p=zipf(law.exponent, items)).tolist()

    assert report.item_law is not None
    assert report.item_law.misfit < 0.06
    assert len(set(drawn)) == pytest.approx(len(set(real)), rel=0.05)
    assert hits(real, 50_000) > hits(drawn, 50_000) + 0.05
    assert any("come back sooner than by chance" in doubt for doubt in report.row_doubts)


def hits(items: list[int], capacity: int) -> float:
    kept: OrderedDict[int, None] = OrderedDict()
    found = 0
    for item in items:
        if item in kept:
            found += 1
            kept.move_to_end(item)
        else:
            kept[item] = None
            if len(kept) > capacity:
                kept.popitem(last=False)
    return found / len(items)
