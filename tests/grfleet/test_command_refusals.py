"""What cannot work on the command line is said in words that name it, and nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from grfleet.cli import app
from testbed.control_plane import ControlPlane


def test_a_folder_that_cannot_be_made_ends_the_demonstration_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    ended = CliRunner().invoke(app, ["demo", "--seconds", "6", "--out", str(tmp_path / "file")])

    assert (ended.exit_code, ended.output.count("\n")) == (1, 1)
    assert str(tmp_path / "file") in ended.output


def test_a_folder_that_cannot_be_made_is_named_by_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(ControlPlane, "binaries", None)  # none is looked for
    (tmp_path / "file").write_text("")

    ended = CliRunner().invoke(app, ["testbed", "up", "--directory", str(tmp_path / "file")])

    assert ended.exit_code == 1
    assert str(tmp_path / "file") in ended.output
    assert ended.exception is None or isinstance(ended.exception, SystemExit)
