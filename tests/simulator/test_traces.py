"""Trace loaders: what they read, and that a bad file is refused with its file, line and field."""

from pathlib import Path

import pytest

from simulator.traces import MooncakeRecord, TraceError, load_azure, load_events, load_mooncake, user_events

MOONCAKE_LINE = '{"timestamp": %s, "input_length": %s, "output_length": 5, "hash_ids": %s}'


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def record(*blocks: int, tokens: int = 600) -> MooncakeRecord:
    return MooncakeRecord(time_ms=0.0, input_tokens=tokens, blocks=blocks)


def test_mooncake_requests_keep_their_order_lengths_and_blocks(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", MOONCAKE_LINE % (0, 1100, [0, 1, 2]), "", MOONCAKE_LINE % (3000, 600, [0, 9]))

    records = load_mooncake(path)

    assert [(r.time_ms, r.input_tokens, r.blocks) for r in records] == [(0.0, 1100, (0, 1, 2)), (3000.0, 600, (0, 9))]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"timestamp": 0}', "line 2"),
        (MOONCAKE_LINE % (5, -1, [0]), "field input_length"),
        (MOONCAKE_LINE % (5, '"long"', [0]), "field input_length"),
        (MOONCAKE_LINE % (1 << 60, 5, [0]), "field timestamp"),
        (MOONCAKE_LINE % (0, 5, '["a"]'), "field hash_ids"),
        (MOONCAKE_LINE % (1, 5, [0]), "sort the trace"),
        ("[1, 2]", "line 2"),
        ("not json", "not a JSON object"),
    ],
)
def test_a_bad_mooncake_line_is_named(tmp_path: Path, line: str, expected: str) -> None:
    path = write(tmp_path / "m.jsonl", MOONCAKE_LINE % (2, 600, [0]), line)

    with pytest.raises(TraceError) as caught:
        load_mooncake(path)

    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


def test_requests_with_the_same_first_own_block_are_one_user() -> None:
    events = user_events([record(0, 1, 2), record(0, 7), record(0, 1, 2, 3, tokens=1700), record(0, 1, 9)])

    users = [event.user for event in events]

    assert users[0] == users[2] == users[3] != users[1]
    assert events[2].history_tokens == 1700


def test_the_preamble_that_everybody_shares_makes_nobody_the_same_user() -> None:
    events = user_events([record(0, 1, 5), record(0, 1, 6), record(0, 1, 6, 7)])

    assert len({event.user for event in events}) == 2


def test_requests_without_a_block_of_their_own_are_users_of_their_own() -> None:
    events = user_events([record(0), record(0), record(0, 4)])

    assert len({event.user for event in events}) == 3


def test_azure_arrivals_count_from_the_first_to_a_tenth_of_a_microsecond(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
        "2023-11-16 18:16:00,396,109",
    )

    arrivals = load_azure(path)

    assert arrivals == pytest.approx([0.0, 4314.579, 13319.41], abs=1e-6)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["TIME,ContextTokens,GeneratedTokens"], "field TIMESTAMP"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens"], "holds no request"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,1,1"], "line 2, field TIMESTAMP"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46,x,1"], "line 2, field ContextTokens"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46,1"], "2 columns"),
        (
            ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46,1,1", "2023-11-16 18:15:45,1,1"],
            "line 3, field TIMESTAMP",
        ),
    ],
)
def test_a_bad_azure_file_is_named(tmp_path: Path, lines: list[str], expected: str) -> None:
    with pytest.raises(TraceError, match=expected):
        load_azure(write(tmp_path / "a.csv", *lines))


def test_a_team_brings_its_own_trace_as_csv_or_json_lines(tmp_path: Path) -> None:
    as_csv = write(tmp_path / "own.csv", "candidates,user,time_ms,history_tokens,note", '100,"a,b",0.5,3000,x', "200,c,2,10,y")
    as_json = write(
        tmp_path / "own.jsonl",
        '{"time_ms": 0.5, "user": "a,b", "history_tokens": 3000, "candidates": 100, "note": "x"}',
        '{"time_ms": 2, "user": "c", "history_tokens": 10, "candidates": 200}',
    )

    assert load_events(as_csv) == load_events(as_json)
    assert [event.user for event in load_events(as_csv)] == ["a,b", "c"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("-1,u,10,100", "line 3, field time_ms"),
        ("nan,u,10,100", "line 3, field time_ms"),
        ("inf,u,10,100", "line 3, field time_ms"),
        ("1,u,10,100", "sort the trace"),
        ("9,,10,100", "line 3, field user"),
        ("9," + "u" * 257 + ",10,100", "line 3, field user"),
        ("9,u,1.5,100", "line 3, field history_tokens"),
        ("9,u,10,0", "line 3, field candidates"),
        ("9,u,10", "3 columns"),
    ],
)
def test_a_bad_row_of_an_own_trace_is_named(tmp_path: Path, row: str, expected: str) -> None:
    path = write(tmp_path / "own.csv", "time_ms,user,history_tokens,candidates", "5,u,10,100", row)

    with pytest.raises(TraceError, match=expected):
        load_events(path)


def test_a_missing_or_binary_file_is_refused_without_a_traceback_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        load_events(tmp_path / "none.csv")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        load_events(tmp_path / "binary.jsonl")
