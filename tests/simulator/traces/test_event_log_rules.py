"""An event log becomes the requests that the written rules promise, in whatever form it comes."""

import gzip
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.keys import slot_of, user_key
from simulator.request_log import RequestLog
from simulator.traces import LoadReport, LogOptions, OnBad, TraceError, assembling, event_log, load_events, read_event_log
from simulator.traces.reading import Limits

KEY = b"0123456789abcdef"
Event = dict[str, Any]
Ranking = tuple[float, str, int, int, float]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def loaded(path: Path, **options: Any) -> tuple[RequestLog, LoadReport]:
    return read_event_log(path, LogOptions(**{"pool_key": KEY, **options}))


def as_json(path: Path, events: Sequence[Event]) -> Path:
    return write(path, *(json.dumps(event) for event in events))


def as_csv(path: Path, events: Sequence[Event]) -> Path:
    names = ("history_tokens", "user", "stage", "time_ms", "candidates")
    rows = [",".join("" if event.get(name) is None else str(event[name]) for name in names) for event in events]
    return write(path, ",".join(names), *rows)


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "user": st.sampled_from(["ann", "ben", "cleo", "7", "user with spaces"]),
            "time_ms": st.integers(0, 20_000_000).map(lambda micros: micros / 1000.0),
            "candidates": st.integers(1, 1 << 20),
            "history_tokens": st.none() | st.integers(0, 1 << 24),
            "stage": st.sampled_from([None, "rank", "signal"]),
        }
    ),
    min_size=1,
    max_size=60,
)


def expected(events: Sequence[Event], options: LogOptions) -> list[Ranking]:
    """The rules once more, in the plainest words: (time, user, history, candidates, lead) of each ranking."""
    start = min(event["time_ms"] for event in events)
    history: dict[str, int] = {}
    signal: dict[str, float | None] = {}
    out = []
    for event in sorted(events, key=lambda event: event["time_ms"]):
        user, time_ms = event["user"], event["time_ms"] - start
        if event["stage"] == "signal":
            signal[user] = time_ms
            continue
        given_tokens = event["history_tokens"]
        tokens = history.get(user, 0) if given_tokens is None else given_tokens
        announced = signal.pop(user, None)
        lead = time_ms - announced if announced is not None and time_ms - announced <= options.signal_window_ms else 0.0
        out.append((time_ms, user, min(tokens, options.max_history_tokens), event["candidates"], lead))
        history[user] = tokens + options.tokens_per_event
    return merged(out, options.merge_ms) if options.merge_ms else out


def merged(rankings: list[Ranking], within_ms: float) -> list[Ranking]:
    """Rankings of which those that follow within the time are part of the one before."""
    pages: list[list[Ranking]] = []
    latest: dict[str, list[Ranking]] = {}
    for ranking in rankings:
        page = latest.get(ranking[1])
        if page is None or ranking[0] - page[-1][0] > within_ms:
            page = latest[ranking[1]] = []
            pages.append(page)
        page.append(ranking)
    return [(*page[0][:3], max(each[3] for each in page), page[0][4]) for page in pages]


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, merge_ms=st.sampled_from([0.0, 500.0, 30_000.0]))
def test_any_log_becomes_what_the_rules_say_and_the_same_from_csv_json_and_gzip(
    events: list[Event], merge_ms: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    options: Event = {"disorder_ms": 1e9, "merge_ms": merge_ms}
    wanted = expected(events, LogOptions(**options))
    if not wanted:
        with pytest.raises(TraceError, match="holds no ranking"):
            loaded(as_json(folder / "log", events), **options)
        return
    log, report = loaded(as_json(folder / "log", events), **options)

    assert log.arrival_ms.tolist() == pytest.approx([each[0] for each in wanted], abs=1e-3)
    assert log.history_tokens.tolist() == [each[2] for each in wanted]
    assert log.candidates.tolist() == [each[3] for each in wanted]
    assert log.signal_lead_ms.tolist() == pytest.approx([each[4] for each in wanted], abs=1e-2)
    names = list(dict.fromkeys(each[1] for each in wanted))
    assert [log.user_slots[user] for user in log.user] == [slot_of(user_key(KEY, each[1])) for each in wanted]
    assert len(set(zip(log.user.tolist(), (each[1] for each in wanted), strict=True))) == log.users == len(names)
    assert report.signals + report.merged + len(wanted) == len(events)

    zipped = folder / "log.csv.gz"
    zipped.write_bytes(gzip.compress(as_csv(folder / "log.csv", events).read_bytes()))
    assert loaded(folder / "log.csv", **options)[0].digest == loaded(zipped, **options)[0].digest == log.digest


def test_many_chunks_are_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [{"user": f"u{number % 7}", "time_ms": number, "candidates": 1 + number} for number in range(50)]
    path = as_json(tmp_path / "log", events)
    whole, _ = loaded(path)
    monkeypatch.setattr(event_log, "CHUNK_LINES", 8)
    monkeypatch.setattr(event_log, "MOST_KNOWN_USERS", 3)
    monkeypatch.setattr(assembling, "SLICE", 4)
    seen: list[tuple[int, int]] = []

    parts, report = read_event_log(path, LogOptions(pool_key=KEY), progress=lambda done, size: seen.append((done, size)))

    assert parts.digest == whole.digest
    assert report.lines == 50
    assert seen == sorted(seen)
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


@pytest.mark.parametrize(
    ("field", "first", "second"),
    [
        ("time_ms", 1767225600000, 1767225601500.25),
        ("time_s", 1767225600, 1767225601.50025),
        ("time", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01.500250Z"),
        ("time", "2026-01-01T02:00:00+02:00", "2026-01-01T01:00:01.500250+01:00"),
        ("time", "2025-12-31 18:30:00-05:30", "20260101T000001.500250Z"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "json"])
def test_one_moment_may_be_written_in_each_way(tmp_path: Path, field: str, first: Any, second: Any, form: str) -> None:
    if form == "csv":
        path = write(tmp_path / "log", f"user,{field},candidates", f"a,{first},1", f"b,{second},1")
    else:
        path = as_json(
            tmp_path / "log", [{"user": name, field: at, "candidates": 1} for name, at in (("a", first), ("b", second))]
        )

    assert loaded(path)[0].arrival_ms.tolist() == [0.0, 1500.25]


@pytest.mark.parametrize(("items", "count"), [(["a", "b", 3], 3), ("a;b;c;d", 4), ("single", 1), (17, 1), (["x"] * 500, 500)])
def test_items_are_counted(tmp_path: Path, items: Any, count: int) -> None:
    assert loaded(as_json(tmp_path / "log", [{"user": "u", "time_ms": 0, "items": items}]))[0].candidates.tolist() == [count]


def test_items_of_a_csv_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "log", "user,time_ms,items,candidates", "u,0,a;b;c,", 'u,1,"x,1;y",', "u,2,,9")
    assert loaded(path)[0].candidates.tolist() == [3, 2, 9]


def test_a_log_of_clicks_gets_the_assumed_number_of_candidates(tmp_path: Path) -> None:
    path = write(tmp_path / "log", "user,time_ms", "u,0", "u,5")
    with pytest.raises(TraceError, match="field candidates"):
        loaded(path)
    assert loaded(path, candidates_when_missing=300)[0].candidates.tolist() == [300, 300]


def test_histories_are_cut_at_the_context_and_counted(tmp_path: Path) -> None:
    events = [{"user": "u", "time_ms": n, "candidates": 1, "history_tokens": 90 if n == 0 else None} for n in range(3)]
    log, report = loaded(as_json(tmp_path / "log", events), max_history_tokens=100, tokens_per_event=8)
    assert log.history_tokens.tolist() == [90, 98, 100]
    assert (report.histories_counted, report.histories_cut) == (2, 1)


def test_the_pool_key_decides_slots_and_a_random_one_does_not_repeat(tmp_path: Path) -> None:
    path = as_json(tmp_path / "log", [{"user": f"u{n}", "time_ms": n, "candidates": 1} for n in range(50)])

    assert loaded(path)[0].digest == loaded(path)[0].digest
    assert loaded(path, pool_key=b"f" * 16)[0].digest != loaded(path)[0].digest
    random, report = loaded(path, pool_key=None)
    assert random.digest != loaded(path, pool_key=None)[0].digest
    assert report.random_key
    assert random.user.tolist() == list(range(50))


def test_small_disorder_is_sorted_and_more_is_a_bad_line(tmp_path: Path) -> None:
    events = [{"user": "u", "time_ms": at, "candidates": 1 + at} for at in (0, 9000, 4000, 9000, 12000)]
    log, report = loaded(as_json(tmp_path / "log", events))
    assert log.arrival_ms.tolist() == [0, 4000, 9000, 9000, 12000]
    assert report.reordered == 1

    events[2]["time_ms"] = 3999
    with pytest.raises(TraceError, match=r"line 3, field time: comes more than 5000 ms after a later line"):
        loaded(as_json(tmp_path / "log", events))


def test_unknown_columns_are_named_once_and_not_without_end(tmp_path: Path) -> None:
    events = [{"user": "u", "time_ms": n, "candidates": 1, "device": "x", f"column-{n}": 1, "y" * 1000: 2} for n in range(40)]
    _, report = loaded(as_json(tmp_path / "log", events))
    assert report.unknown_columns[:3] == ("device", "column-0", "y" * 40)
    assert len(report.unknown_columns) == 20


def test_skipping_counts_each_kind_and_names_the_first(tmp_path: Path) -> None:
    lines = ["user,time_ms,candidates", "u,0,5", "u,x,5", "u,1,0", "u,2,0", "u,3,7", "u,4"]
    log, report = loaded(write(tmp_path / "log", *lines), on_bad=OnBad.SKIP)

    assert log.candidates.tolist() == [5, 7]
    assert report.skipped == 4
    assert report.skipped_by == {
        "candidates: lies outside 1..1048576": 2,
        "time_ms: not a number from 0 to 1e+14": 1,
        "2 columns, the first line names 3": 1,
    }
    assert [(each.line, each.field) for each in report.skipped_first] == [
        (3, "time_ms"),
        (4, "candidates"),
        (5, "candidates"),
        (7, None),
    ]
    assert json.loads(json.dumps(report.to_json()))["skipped"] == 4


def test_too_many_bad_lines_end_the_reading_even_when_they_may_be_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "log", "user,time_ms,candidates", *["u,1,0"] * 6)
    with pytest.raises(TraceError, match=r"line 7, field candidates: .* one bad line more than the 5"):
        loaded(path, on_bad=OnBad.SKIP, max_skipped=5)


def test_a_log_of_nothing_but_bad_lines_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no event"):
        loaded(write(tmp_path / "log", "user,time_ms,candidates", "u,1,0"), on_bad=OnBad.SKIP)


def test_the_older_reader_of_typed_events_reads_the_same_rows(tmp_path: Path) -> None:
    events = [{"user": f"u{n % 2}", "time_ms": 3.5 * n, "candidates": 4, "history_tokens": n} for n in range(6)]
    path = as_csv(tmp_path / "log", events)

    typed, columns = load_events(path), loaded(path)[0]

    assert [event.time_ms for event in typed] == columns.arrival_ms.tolist()
    assert [event.history_tokens for event in typed] == columns.history_tokens.tolist()


def test_the_rows_of_one_user_keep_the_order_of_the_file_at_one_moment(tmp_path: Path) -> None:
    events = [{"user": "u", "time_ms": 5, "candidates": n} for n in (3, 1, 2)]
    log, _ = loaded(as_json(tmp_path / "log", events))
    assert log.candidates.tolist() == [3, 1, 2]
    assert np.all(log.arrival_ms == 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pool_key": b"short"},
        {"disorder_ms": float("nan")},
        {"disorder_ms": -1.0},
        {"merge_ms": float("inf")},
        {"max_skipped": -1},
        {"tokens_per_event": -1},
        {"max_history_tokens": 1 << 25},
        {"candidates_when_missing": -4},
        {"rows_per_token": 5000},
    ],
)
def test_rules_that_cannot_be_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LogOptions(**wrong)


def test_limits_may_be_made_smaller(tmp_path: Path) -> None:
    path = write(tmp_path / "log", "user,time_ms,candidates", *["u,1,1"] * 9)
    with pytest.raises(TraceError, match="line 10: more than 9 lines"):
        loaded(path, limits=Limits(lines=9))


def test_memory_while_rows_become_requests_stays_below_seventy_bytes_a_row() -> None:
    count = 200_000
    rows = assembling.Rows()
    random = np.random.default_rng(1)
    moments, users = random.uniform(0.0, 1e6, count).tolist(), random.integers(0, 1 << 15, count).tolist()
    for low in range(0, count, 1 << 14):
        chunk = zip(moments[low : low + (1 << 14)], users[low : low + (1 << 14)], strict=True)
        rows.add([(moment, user, user % 4096, -1, 1, False) for moment, user in chunk])

    tracemalloc.start()
    made = assembling.assembled(
        rows,
        signal_window_ms=0.0,
        merge_ms=0.0,
        tokens_per_event=1,
        max_history_tokens=1000,
        law=event_log.DEFAULT_LAW,
        rows_per_token=1,
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(made.log) == count
    assert peak < 70 * count
