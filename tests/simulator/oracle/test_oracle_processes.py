"""Processes of the oracle that fail, or are ended, end the call with a reason; none is left behind."""

import multiprocessing
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle_logs import a_fleet, a_log

from simulator.oracle import parallel
from simulator.oracle.parallel import WorkerLost, chunks
from simulator.oracle.run import grid_of, groups_of
from simulator.oracle.windows import Group
from simulator.replay import even_slots


def two_groups(**changes: Any) -> list[Group]:
    log, fleet = a_log(2_000), a_fleet()
    grid = grid_of(log, fleet, window_ms=5_000.0, splits=(20, 50, 80))
    groups = groups_of(log, fleet, grid, slots=np.asarray(even_slots(2)), seed=1, warm=None, workers=2)
    return [replace(group, **changes) for group in groups]


def end_at_once(pipe: Connection) -> None:
    os._exit(9)


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(WorkerLost, match=r"^process 0 of the oracle failed: AttributeError: "):
        list(chunks(two_groups(config=None)))
    assert not multiprocessing.active_children()


def test_a_process_that_was_ended_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_work", end_at_once)
    with pytest.raises(WorkerLost, match=r"^process 0 of the oracle ended before it was done: "):
        list(chunks(two_groups()))
    assert not multiprocessing.active_children()


def test_a_caller_that_stops_early_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.oracle.windows.CHUNK_BYTES", 1)
    with closing(chunks(two_groups())) as steps:
        next(steps)
    assert not multiprocessing.active_children()


def test_a_script_that_forgot_its_guard_is_told_so_and_does_not_hang(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from oracle_logs import a_fleet, a_log\n"
        "from simulator.oracle.run import best_splits\n"
        "best_splits(a_log(20_000), a_fleet(), window_ms=30_000.0, seed=1, splits=(20, 80), workers=2)\n"
    )
    path = os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).resolve().parents[3])))
    ran = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 1
    assert 'outside of `if __name__ == "__main__":`' in ran.stderr
