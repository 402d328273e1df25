"""Columns of requests refuse what no replay could use, by name, and have one digest for one content."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.request_log import RequestLog, RowLaw


def a_log(**changes: Any) -> RequestLog:
    columns: dict[str, Any] = {
        "arrival_ms": np.array([0.0, 5.0, 5.0]),
        "user": np.array([0, 1, 0], dtype=np.uint32),
        "history_tokens": np.array([10, 20, 11], dtype=np.int32),
        "candidates": np.array([1, 1, 1], dtype=np.int32),
        "signal_lead_ms": np.zeros(3, dtype=np.float32),
        "law": np.zeros(3, dtype=np.uint8),
        "user_slots": np.array([7, 4095], dtype=np.uint16),
        "laws": (RowLaw(exponent=1.0, catalog_rows=1000),),
        "rows_per_token": 3,
    }
    return RequestLog(**{**columns, **changes})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arrival_ms", np.array([0.0, 5.0, 4.0])),
        ("arrival_ms", np.array([0.0, np.nan, 4.0])),
        ("arrival_ms", np.array([-1.0, 0.0, 4.0])),
        ("user", np.array([0, 1, 2], dtype=np.uint32)),
        ("user", np.array([0, 1, 1], dtype=np.int64)),
        ("history_tokens", np.array([1, -1, 1], dtype=np.int32)),
        ("candidates", np.array([1, 1], dtype=np.int32)),
        ("signal_lead_ms", np.array([0, np.nan, 0], dtype=np.float32)),
        ("law", np.ones(3, dtype=np.uint8)),
        ("user_slots", np.array([7, 4096], dtype=np.uint16)),
        ("rows_per_token", -1),
    ],
)
def test_a_column_that_no_replay_could_use_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        a_log(**{field: value})


def test_no_request_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no request"):
        a_log().rows(0, 0)


@pytest.mark.parametrize(
    "bad", [{"exponent": float("nan")}, {"catalog_rows": 0}, {"drift_percent_per_hour": -1.0}, {"head_rows": 0}]
)
def test_a_law_that_says_nothing_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="lies outside"):
        RowLaw(**{"exponent": 1.0, "catalog_rows": 10, **bad})


def test_the_digest_names_the_content() -> None:
    first = a_log()
    assert first.digest == a_log().digest
    changed = [
        replace(first, arrival_ms=np.array([0.0, 5.0, 6.0])),
        replace(first, laws=(RowLaw(exponent=1.1, catalog_rows=1000),)),
        replace(first, rows_per_token=4),
        first.rows(0, 2),
    ]
    assert len({first.digest, *(log.digest for log in changed)}) == 5


def test_a_part_keeps_users_and_laws() -> None:
    part = a_log().rows(1, 3)
    assert (len(part), part.users, part.duration_ms) == (2, 2, 0.0)
