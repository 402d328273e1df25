"""A bad or hostile event log is refused with its place, in bounded memory, and no message repeats what stood there."""

import gzip
import json
import os
import traceback
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.traces import LoadReport, LogOptions, OnBad, TraceError, read_event_log
from simulator.traces.reading import Limits

KEY = b"0123456789abcdef"
HEADER = "user,time_ms,candidates,history_tokens,stage"
SECRET = "ann.secret@example.com"


def refused(path: Path, **options: Any) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_event_log(path, LogOptions(**{"pool_key": KEY, **options}))
    return caught.value


def outcome(path: Path, **options: Any) -> LoadReport | TraceError:
    """What reading comes to; any other exception than a TraceError is a failure."""
    try:
        return read_event_log(path, LogOptions(**options))[1]
    except TraceError as error:
        return error


def log_of(folder: Path, content: bytes | str) -> Path:
    path = folder / "log"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("row", "field", "problem"),
    [
        (",1,1,1,", "user", "text of 1 to 256"),
        ("   ,1,1,1,", "user", "text of 1 to 256"),
        ("u" * 257 + ",1,1,1,", "user", "text of 1 to 256"),
        ("u,,1,1,", "time_ms", "none of"),
        ("u,abc,1,1,", "time_ms", "not a number"),
        ("u,nan,1,1,", "time_ms", "lies outside"),
        ("u,inf,1,1,", "time_ms", "lies outside"),
        ("u,-1,1,1,", "time_ms", "lies outside"),
        ("u,1e300,1,1,", "time_ms", "lies outside"),
        ("u,1_0,1,1,", "time_ms", "not a number"),
        ("u,१,1,1,", "time_ms", "not a number"),
        ("u,5,,1,", "candidates", "missing"),
        ("u,5,0,1,", "candidates", "lies outside"),
        ("u,5,-3,1,", "candidates", "lies outside"),
        ("u,5,1.5,1,", "candidates", "not a whole number"),
        ("u,5,1048577,1,", "candidates", "lies outside"),
        ("u,5," + "9" * 5000 + ",1,", "candidates", "not a whole number"),
        ("u,5,1,-1,", "history_tokens", "lies outside"),
        ("u,5,1,16777217,", "history_tokens", "lies outside"),
        ("u,5,1,NaN,", "history_tokens", "not a whole number"),
        ("u,5,1,1,ranking", "stage", "neither rank nor signal"),
        ("u,5,1,1", None, "4 columns, the first line names 5"),
        ("u,5,1,1,,", None, "6 columns"),
        ('"u,5,1,1,', None, "quotes do not match"),
        ('"u"x,5,1,1,', None, "quotes do not match"),
        ("u\0,5,1,1,", None, "NUL"),
    ],
)
def test_a_bad_row_of_a_csv_is_named(tmp_path: Path, row: str, field: str | None, problem: str) -> None:
    error = refused(log_of(tmp_path, f"{HEADER}\nu,3,1,1,\n\n{row}\n"))

    assert (error.line, error.field) == (4, field)
    assert problem in str(error)
    assert str(tmp_path / "log") in str(error)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"user": None}, "user"),
        ({"user": True}, "user"),
        ({"user": 1.5}, "user"),
        ({"user": ["u"]}, "user"),
        ({"user": ""}, "user"),
        ({"time_ms": True}, "time_ms"),
        ({"time_ms": [1]}, "time_ms"),
        ({"time_ms": 10**400}, None),
        ({"time_s": 1}, "time_s"),
        ({"time_ms": None, "time_s": 1}, "time_s"),
        ({"time_ms": None, "time": "2026-01-01T00:00:00Z"}, "time"),
        ({"candidates": 3.0}, "candidates"),
        ({"candidates": True}, "candidates"),
        ({"candidates": None, "items": []}, "items"),
        ({"candidates": None, "items": [None]}, "items"),
        ({"candidates": None, "items": [["a"]]}, "items"),
        ({"candidates": None, "items": {"a": 1}}, "items"),
        ({"candidates": None, "items": "a;;b"}, "items"),
        ({"items": ["a"]}, "items"),
        ({"history_tokens": "many"}, "history_tokens"),
        ({"history_tokens": 1.5}, "history_tokens"),
        ({"stage": 1}, "stage"),
    ],
)
def test_a_bad_line_of_json_is_named(tmp_path: Path, change: dict[str, Any], field: str | None) -> None:
    good = {"user": "u", "time_ms": 1, "candidates": 1}
    error = refused(log_of(tmp_path, json.dumps(good) + "\n" + json.dumps({**good, **change})))
    assert error.line == 2
    assert field is None or error.field == field


@pytest.mark.parametrize(
    "line", ["{", "[1]", "7", "null", '"x"', '{"a": NaN}', "{" * 100_000, '{"a":' + "[" * 100_000, "{'user': 1}"]
)
def test_what_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    error = refused(log_of(tmp_path, '{"user": "u", "time_ms": 1, "candidates": 1}\n' + line))
    assert (error.line, "not a JSON object" in str(error)) == (2, True)


@pytest.mark.parametrize(
    ("time", "problem"),
    [
        ("2026-01-31T19:00:00", "no zone"),
        ("2026-01-31", "no zone"),
        ("yesterday", "not ISO-8601"),
        ("2026-02-30T00:00:00Z", "not ISO-8601"),
        ("1767225600000", "not ISO-8601"),
        ("1767225600", "not ISO-8601"),
        ("0001-01-01T00:00:00+14:00", "before 1970"),
        ("1969-12-31T23:59:59Z", "before 1970"),
    ],
)
def test_a_time_that_is_none_is_named(tmp_path: Path, time: str, problem: str) -> None:
    error = refused(log_of(tmp_path, f"user,time,candidates\nu,{time},1\n"))
    assert (error.line, error.field) == (2, "time")
    assert problem in str(error)


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ("a,b,c", "user"),
        ("user,candidates", "time_ms"),
        ("user,time_ms", "candidates"),
        ("user,time_ms,time,candidates", "time"),
        ("user,user,time_ms,candidates", "user"),
        ("[", None),
        ('"user,time_ms', None),
    ],
)
def test_a_first_line_that_is_no_header_ends_the_reading_even_when_bad_lines_are_skipped(
    tmp_path: Path, header: str, field: str | None
) -> None:
    error = refused(log_of(tmp_path, f"{header}\nu,1,1\n"), on_bad=OnBad.SKIP)
    assert (error.line, error.field) == (1, field)


def test_an_empty_file_a_folder_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    assert "holds no event" in str(refused(log_of(tmp_path, b"")))
    assert "holds no event" in str(refused(log_of(tmp_path, HEADER + "\n")))
    assert "holds no event" in str(refused(log_of(tmp_path, gzip.compress(b""))))
    assert "is not a file" in str(refused(tmp_path))
    assert "cannot be read" in str(refused(tmp_path / "none"))
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file" in str(refused(tmp_path / "pipe"))
    assert "is not a file" in str(refused(Path("/dev/zero")))


def test_text_in_another_encoding_is_named(tmp_path: Path) -> None:
    error = refused(log_of(tmp_path, f"{HEADER}\nu,1,1,1,\n".encode() + "ünal,2,1,1,\n".encode("latin-1")))
    assert (error.line, "not UTF-8" in str(error)) == (3, True)
    assert refused(log_of(tmp_path, f"{HEADER}\nu,1,1,1,\n".encode("utf-16"))).line == 1


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    log, _ = read_event_log(log_of(tmp_path, f"\ufeff{HEADER}\r\nu,1,1,1,\r\n"), LogOptions(pool_key=KEY))
    assert len(log) == 1


def test_a_long_line_is_refused_or_skipped_without_keeping_it(tmp_path: Path) -> None:
    path = log_of(tmp_path, f"{HEADER}\n".encode() + b"u,1,1,1,\n" + b"x" * 30_000_000 + b"\n" + b"u,2,1,1,\n")
    error = refused(path)
    assert (error.line, "longer than 1048576 bytes" in str(error)) == (3, True)

    tracemalloc.start()
    log, report = read_event_log(path, LogOptions(pool_key=KEY, on_bad=OnBad.SKIP))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (len(log), report.skipped, report.skipped_first[0].line) == (2, 1, 3)
    assert peak < 8_000_000


def bomb(folder: Path, unit: bytes, times: int) -> Path:
    """A gzip file that is small on disk and `times` as long as `unit` when it is read."""
    path = folder / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(times):
            file.write(unit)
    return path


@pytest.mark.parametrize("unit", [b"\0" * (1 << 20), b"\n" * (1 << 20), b" " * (1 << 20), b"u,1,1,1,\n" * (1 << 17)])
def test_a_zip_bomb_ends_at_the_limit_of_text_or_of_lines(tmp_path: Path, unit: bytes) -> None:
    path = bomb(tmp_path, unit, 24)
    limits = Limits(lines=1 << 20, text_bytes=16 << 20)
    assert path.stat().st_size < 200_000

    tracemalloc.start()
    error = refused(path, on_bad=OnBad.SKIP, max_skipped=1 << 30, limits=limits)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert "line" in str(error)
    assert peak < 8_000_000


def test_damaged_gzip_is_refused_even_when_bad_lines_are_skipped(tmp_path: Path) -> None:
    whole = gzip.compress((HEADER + "\n" + "u,1,1,1,\n" * 5000).encode())
    for damaged in (whole[:-40], whole[:-8] + b"\0" * 8, whole[:30] + b"\xff" * 20 + whole[50:], whole[:5]):
        error = refused(log_of(tmp_path, damaged), on_bad=OnBad.SKIP)
        assert "cannot be read on" in str(error)
        assert error.line is not None


def test_moments_in_two_units_are_refused_by_their_span(tmp_path: Path) -> None:
    assert "another unit" in str(refused(log_of(tmp_path, f"{HEADER}\nu,1,1,1,\nu,50000000000000,1,1,\n")))


@pytest.mark.parametrize(
    "row",
    [
        f"{SECRET},x,1,1,",
        f"u,{SECRET},1,1,",
        f"u,1,{SECRET},1,",
        f"u,1,1,{SECRET},",
        f"u,1,1,1,{SECRET}",
        f"{SECRET},1",
        f'"{SECRET},1,1,1,',
        SECRET * 10,
    ],
)
@pytest.mark.parametrize("on_bad", list(OnBad))
def test_no_error_and_no_summary_repeats_what_stood_there(tmp_path: Path, row: str, on_bad: OnBad) -> None:
    told = outcome(log_of(tmp_path, f"{HEADER}\nu,1,1,1,\n{row}\n"), on_bad=on_bad)
    if isinstance(told, TraceError):
        assert on_bad is OnBad.STOP
        assert "secret" not in "".join(traceback.format_exception(told))
    else:
        assert "secret" not in json.dumps(told.to_json())


def test_a_log_without_a_header_does_not_tell_its_first_line(tmp_path: Path) -> None:
    assert "secret" not in str(refused(log_of(tmp_path, f"{SECRET},1,1\n")))
    assert "secret" not in str(refused(log_of(tmp_path, json.dumps({"user": "u", "time_ms": SECRET, "candidates": 1}))))


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=400), zipped=st.booleans(), headed=st.booleans(), on_bad=st.sampled_from(OnBad))
def test_any_bytes_are_read_or_refused_by_a_trace_error(
    content: bytes, zipped: bool, headed: bool, on_bad: OnBad, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = (HEADER.encode() + b"\n" if headed else b"") + content
    path = log_of(tmp_path_factory.mktemp("any"), gzip.compress(content) if zipped else content)
    told = outcome(path, pool_key=KEY, on_bad=on_bad)
    assert str(path) in str(told) if isinstance(told, TraceError) else told.requests >= 1


CELLS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(str),
    st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=12),
    st.sampled_from(["", "rank", "signal", '"', '"a,b"', "1;2"]),
)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.lists(CELLS, min_size=4, max_size=6), max_size=12))
def test_any_cells_are_read_or_refused_by_a_trace_error(rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = log_of(tmp_path_factory.mktemp("cells"), "\n".join([HEADER, *(",".join(row) for row in rows)]))
    told = outcome(path, pool_key=KEY, on_bad=OnBad.SKIP)
    if isinstance(told, TraceError):
        assert str(path) in str(told)
    else:
        assert told.requests + told.signals + told.skipped == told.lines


def test_a_gzip_of_many_members_is_read_to_its_end(tmp_path: Path) -> None:
    content = gzip.compress(f"{HEADER}\nu,1,1,1,\n".encode()) + gzip.compress(b"u,2,1,1,\n")
    log, _ = read_event_log(log_of(tmp_path, content), LogOptions(pool_key=KEY))
    assert len(log) == 2


def test_what_only_begins_like_gzip_is_refused(tmp_path: Path) -> None:
    assert "cannot be read on" in str(refused(log_of(tmp_path, b"\x1f\x8b" + os.urandom(50))))
