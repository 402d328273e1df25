"""A result is kept under all that it depends on, and a damaged file is as good as none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle_logs import a_fleet, a_log

from simulator.fleet.build import WarmUsers
from simulator.oracle.cache import OracleCache, key_of
from simulator.oracle.result import OracleResult
from simulator.oracle.run import best_splits
from simulator.replay import even_slots

WINDOW_MS = 30_000.0
SPLITS = (20, 50, 80)


@pytest.fixture(scope="module")
def result() -> OracleResult:
    return best_splits(a_log(), a_fleet(), window_ms=WINDOW_MS, seed=1, splits=SPLITS)


def test_a_kept_result_comes_back_the_same(result: OracleResult, tmp_path: Path) -> None:
    cache = OracleCache(tmp_path / "not" / "there" / "yet")
    assert cache.load("key") is None
    assert cache.store("key", result)
    back = cache.load("key")
    assert back is not None
    assert back.digest == result.digest
    assert back.summary() == result.summary()
    assert [path.name for path in cache.folder.iterdir()] == ["key.npz"]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "noise", "folder"])
def test_a_damaged_file_is_computed_anew_and_replaced(result: OracleResult, tmp_path: Path, damage: str) -> None:
    cache = OracleCache(tmp_path)
    best_splits(a_log(), a_fleet(), window_ms=WINDOW_MS, seed=1, splits=SPLITS, cache=cache)
    (path,) = tmp_path.glob("*.npz")
    data = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        flipped = data[:500] + bytes([data[500] ^ 1]) + data[501:]
        path.write_bytes({"flipped": flipped, "cut": data[:-9], "empty": b"", "noise": bytes(range(256)) * 9}[damage])
    again = best_splits(a_log(), a_fleet(), window_ms=WINDOW_MS, seed=1, splits=SPLITS, cache=cache)
    assert again.digest == result.digest
    if damage != "folder":
        assert path.read_bytes()[32:36] == b"PK\x03\x04"
        known = cache.load(path.stem)
        assert known is not None
        assert known.digest == result.digest


def test_a_known_result_is_not_computed_again(result: OracleResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = OracleCache(tmp_path)
    best_splits(a_log(), a_fleet(), window_ms=WINDOW_MS, seed=1, splits=SPLITS, cache=cache)
    monkeypatch.setattr("simulator.oracle.run.chunks", None)
    seen: list[tuple[int, int]] = []
    again = best_splits(
        a_log(), a_fleet(), window_ms=WINDOW_MS, seed=1, splits=SPLITS, cache=cache, progress=lambda *done: seen.append(done)
    )
    assert again.digest == result.digest
    windows = result.count.shape[1]
    assert seen == [(windows, windows)]


def test_a_place_that_cannot_be_written_costs_nothing_but_time(result: OracleResult, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = OracleCache(tmp_path / "file" / "below")
    again = best_splits(a_log(), a_fleet(), window_ms=WINDOW_MS, seed=1, splits=SPLITS, cache=cache)
    assert again.digest == result.digest
    assert not cache.store("key", result)


def test_the_key_changes_with_everything_that_the_result_depends_on() -> None:
    log, fleet = a_log(), a_fleet()
    slots = np.array(even_slots(2))
    values: dict[str, Any] = {"window_ms": WINDOW_MS, "seed": 1, "splits": SPLITS, "slots": slots, "warm": None}
    warm = WarmUsers(user=np.array([1], dtype=np.uint32), tokens=np.array([5], dtype=np.int32))
    keys = {key_of(log, fleet, **values)}
    for changed in (
        {"window_ms": 30_000.001},
        {"seed": 2},
        {"splits": (20, 50)},
        {"slots": 1 - slots},
        {"warm": warm},
        {"warm": replace(warm, tokens=np.array([6], dtype=np.int32))},
    ):
        keys.add(key_of(log, fleet, **{**values, **changed}))
    for other in (a_fleet(host_bytes=1 << 20), a_fleet(slo_ms=50.5), a_fleet(service=replace(fleet.service, base_ms=2.5))):
        keys.add(key_of(log, other, **values))
    keys.add(key_of(a_log(seed=1), fleet, **values))
    assert len(keys) == 11
    assert key_of(a_log(), a_fleet(), **{**values, "slots": slots.copy()}) in keys


def test_the_folder_of_a_user_follows_the_convention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert OracleCache.of_user().folder == tmp_path / "grfleet" / "oracle"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert OracleCache.of_user().folder == tmp_path / ".cache" / "grfleet" / "oracle"
