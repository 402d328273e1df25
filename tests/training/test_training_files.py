"""What a training leaves on disk when the disk is full, and what its command says before it takes any time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grfleet.cli import app
from training.files import make_folder, replace_file


@pytest.mark.parametrize("old", [None, b"the old one"])
def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None
) -> None:
    path = tmp_path / "split-1.safetensors"
    if old is not None:
        path.write_bytes(old)

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"the new one")
    assert (path.read_bytes() if path.exists() else None) == old
    assert [each for each in tmp_path.iterdir() if each != path] == []


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "seed-1.checkpoint"
    for data in (b"longer than the next", b"short"):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_one_is_found_at_once_and_a_good_one_stays_empty(tmp_path: Path) -> None:
    make_folder(tmp_path / "new" / "one")
    assert list((tmp_path / "new" / "one").iterdir()) == []
    (tmp_path / "file").touch()
    for no_folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError):
            make_folder(no_folder)


@pytest.mark.parametrize("seeds", ["", "x", "1.5", "1,", "-1", str(1 << 32), "1,2,1"])
def test_seeds_that_cannot_be_are_wrong_usage_before_anything_is_made(seeds: str, tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["train", f"--seeds={seeds}", "--work", str(tmp_path / "w"), "--out", str(tmp_path / "o")])
    assert said.exit_code == 2
    assert "--seeds" in said.output
    assert list(tmp_path.iterdir()) == []
