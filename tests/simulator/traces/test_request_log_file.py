"""A file of requests comes back as it was, and one that was cut, changed or made by somebody else is refused."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.request_log import RequestLog, RowLaw
from simulator.traces import TraceError, is_request_log, load_request_log, save_request_log
from simulator.traces.log_file import MAGIC, MAX_HEADER_BYTES
from simulator.workloads import Traffic, burst


def a_log(count: int = 5, users: int = 3, laws: int = 2) -> RequestLog:
    places = np.arange(count)
    return RequestLog(
        arrival_ms=places * 1.5,
        user=(places % users).astype(np.uint32),
        history_tokens=(places * 100).astype(np.int32),
        candidates=(places + 1).astype(np.int32),
        signal_lead_ms=(places % 2).astype(np.float32),
        law=(places % laws).astype(np.uint8),
        user_slots=(np.arange(users) * 7 % 4096).astype(np.uint16),
        laws=tuple(RowLaw(exponent=1.0 + law / 100.0, catalog_rows=1000, offset=law) for law in range(laws)),
        rows_per_token=3,
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "requests.grlog"
    save_request_log(path, a_log(), {"regime": "test"})
    return path


def with_header(path: Path, **changes: Any) -> Path:
    """The file with another header, whose own digest is right."""
    content = path.read_bytes()
    length = int.from_bytes(content[8:16], "little")
    header = {**json.loads(content[48 : 48 + length]), **changes}
    encoded = json.dumps({name: value for name, value in header.items() if value is not ...}).encode()
    start = 48 + length
    rest = content[start + -start % 64 :]
    new = content[:8] + len(encoded).to_bytes(8, "little") + hashlib.sha256(encoded).digest() + encoded
    path.write_bytes(new + b"\0" * (-len(new) % 64) + rest)
    return path


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 300), users=st.integers(1, 300), laws=st.integers(1, 256))
def test_requests_come_back_as_they_were(count: int, users: int, laws: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("file") / "x"
    log = a_log(count, users, laws)
    manifest = {"regime": "test", "parts": [1, None, "ü"]}

    save_request_log(path, log, manifest)
    back, told = load_request_log(path)

    assert (back.digest, back.laws, told) == (log.digest, log.laws, manifest)
    assert back.history_tokens.tolist() == log.history_tokens.tolist()
    assert is_request_log(path)


def test_a_generated_workload_keeps_its_manifest(tmp_path: Path) -> None:
    log, manifest = burst(Traffic(seed=1, duration_s=100.0, requests_per_second=20.0, instances=2))
    save_request_log(tmp_path / "x", log, manifest.to_json())
    back, told = load_request_log(tmp_path / "x")
    assert back.digest == told["digest"] == manifest.digest
    assert told == json.loads(json.dumps(manifest.to_json()))


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(saved: Path) -> None:
    save_request_log(saved, a_log(count=9), {})
    assert len(load_request_log(saved)[0]) == 9
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    with pytest.raises(OSError, match="none"):
        save_request_log(saved.parent / "none" / "x", a_log(), {})
    with pytest.raises(ValueError, match="manifest"):
        save_request_log(saved, a_log(), {"long": "x" * MAX_HEADER_BYTES})
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 10_000), change=st.integers(1, 255))
def test_any_changed_byte_but_padding_is_found(place: int, change: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("bit") / "x"
    save_request_log(path, a_log(), {"regime": "test"})
    content = bytearray(path.read_bytes())
    place %= len(content)
    padding = content[place] == 0
    content[place] ^= change
    path.write_bytes(content)
    try:
        log, told = load_request_log(path)
    except TraceError:
        return
    assert padding
    assert (log.digest, told) == (a_log().digest, {"regime": "test"})


@pytest.mark.parametrize("kept", [0, 4, 12, 30, 60, 200, -1])
def test_a_cut_file_is_refused(saved: Path, kept: int) -> None:
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(TraceError, match=str(saved)):
        load_request_log(saved)


def test_a_longer_file_is_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes() + b"\0")
    with pytest.raises(TraceError, match="its header asks for"):
        load_request_log(saved)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"extra": 1}, "extra"),
        ({"digest": "0" * 64}, "not those of its digest"),
        ({"digest": "x"}, "digest"),
        ({"digest": ...}, "digest"),
        ({"rowsPerToken": -1}, "rowsPerToken"),
        ({"rowsPerToken": 4}, "not those of its digest"),
        ({"laws": []}, "laws"),
        ({"laws": [{"exponent": 9.0, "catalog_rows": 1, "drift_percent_per_hour": 0, "head_rows": 1, "offset": 0}]}, "exponent"),
        ({"laws": [{"exponent": 1.0}]}, "laws"),
        ({"columns": []}, "other columns"),
        ({"columns": [["arrival_ms", "|O", 5]]}, "other columns"),
        ({"manifest": []}, "manifest"),
    ],
)
def test_another_header_is_refused_by_what_is_wrong(saved: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        load_request_log(with_header(saved, **changes))


@pytest.mark.parametrize(
    ("name", "dtype", "count"), [("user", "<u8", 5), ("user", "<u4", 4), ("user_slots", "<u2", 1 << 31), ("law", "|u1", -1)]
)
def test_another_type_or_length_of_a_column_is_refused_before_memory_is_reserved(
    saved: Path, name: str, dtype: str, count: int
) -> None:
    content = saved.read_bytes()
    columns = json.loads(content[48 : 48 + int.from_bytes(content[8:16], "little")])["columns"]
    changed = [[name, dtype, count] if each[0] == name else each for each in columns]
    with pytest.raises(TraceError, match=str(saved)):
        load_request_log(with_header(saved, columns=changed))


@pytest.mark.parametrize("length", [0, 1, MAX_HEADER_BYTES + 1, (1 << 64) - 1])
def test_a_header_without_end_is_not_read(tmp_path: Path, length: int) -> None:
    (tmp_path / "x").write_bytes(MAGIC + length.to_bytes(8, "little") + b"\0" * 500)
    with pytest.raises(TraceError, match="header of"):
        load_request_log(tmp_path / "x")


def test_values_that_no_log_may_hold_are_refused_although_their_digest_is_right(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    start = len(content) - a_log().user_slots.nbytes
    content[start : start + 2] = (4096).to_bytes(2, "little")
    saved.write_bytes(content)
    with pytest.raises(TraceError, match="user_slots"):
        load_request_log(saved)


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("user,time_ms\n")
    for path, problem in ((tmp_path / "text", "convert"), (tmp_path / "none", "cannot be read"), (tmp_path, "cannot be read")):
        assert not is_request_log(path)
        with pytest.raises(TraceError, match=problem):
            load_request_log(path)
