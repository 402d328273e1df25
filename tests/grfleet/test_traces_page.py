"""docs/traces.md: its commands work, its fields and bounds are those of the readers, its example holds what the page says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from documented import EXAMPLES, ROOT, read, run_away

from contract.keys import slot_of, user_key
from grfleet.trace.command import RegimeName
from simulator.request_log import MAX_CANDIDATES
from simulator.traces import LogOptions, read_event_log
from simulator.traces.reading import MAX_TOKENS
from simulator.traces.rows import FIELDS
from simulator.workloads import Traffic, regimes, traffic

PAGE = "docs/traces.md"
KEY = b"0123456789abcdef"


def test_the_documented_commands_work_in_their_order(tmp_path: Path) -> None:
    said = run_away(PAGE, within=os.environ, at=tmp_path)
    assert len(said) >= 5
    assert "ann@example.com" not in "".join(said)


def test_the_fields_and_regimes_are_those_of_the_readers() -> None:
    table = read(PAGE).split("## The format", 1)[1].split("\n## ", 1)[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(FIELDS)
    regimes = read(PAGE).split("| regime | |", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^\| `(\w+)`", regimes, re.MULTILINE) == [str(each) for each in RegimeName]


def test_the_bounds_are_those_of_the_readers() -> None:
    page = read(PAGE)
    options = LogOptions()
    for number in (MAX_TOKENS, MAX_CANDIDATES, options.max_skipped):
        assert f"{number:,}".replace(",", " ") in page, number
    assert options.limits.lines == 200_000_000
    assert options.limits.text_bytes == 64 << 30
    assert options.limits.line_bytes == 1 << 20
    assert (options.disorder_ms, options.signal_window_ms, options.tokens_per_event) == (5000.0, 10_000.0, 12)


def test_the_example_becomes_what_the_rules_say() -> None:
    log, report = read_event_log(EXAMPLES / "log.csv", LogOptions(pool_key=KEY))

    assert log.arrival_ms.tolist() == [180.0, 2500.0, 29_900.0, 31_000.0, 33_000.0]
    assert log.user.tolist() == [0, 1, 0, 1, 2]
    assert log.history_tokens.tolist() == [2100, 950, 2112, 962, 0]
    assert log.candidates.tolist() == [320, 280, 300, 310, 400]
    assert log.signal_lead_ms.tolist() == [180.0, 0.0, 0.0, 0.0, 0.0]
    assert log.user_slots.tolist() == [slot_of(user_key(KEY, name)) for name in ("ann@example.com", "ben", "cleo")]
    assert (report.signals, report.signals_used, report.reordered, report.histories_counted) == (2, 1, 1, 3)
    assert report.unknown_columns == ("country",)


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_every_example_is_in_the_page(name: str) -> None:
    assert f"docs/examples/{name}" in read(PAGE)
    assert (ROOT / "docs/examples" / name).exists()


def test_the_constants_of_the_regimes_are_those_of_the_page() -> None:
    page = read(PAGE)
    for low, high in (traffic.BASE_CANDIDATES, regimes.RETURNING_CANDIDATES, regimes.NEWCOMERS_CANDIDATES):
        assert f"{low:,} to {high:,}".replace(",", " ") in page
    for law in (regimes.BASE_LAW, regimes.RETURNING_LAW, regimes.NEWCOMERS_LAW):
        assert f"{law.exponent:g}" in page
        assert f"{law.catalog_rows // 1_000_000}" in page
    signals = Traffic(seed=1).signals
    assert f"for {signals.percent:g} percent of the requests, lognormal around {signals.median_ms:g} ms" in page
    assert Traffic(seed=1).rows_per_token == LogOptions().rows_per_token == 2
