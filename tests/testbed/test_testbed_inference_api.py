"""The kind InferencePool comes from its authors' module once, through Go's own client, and what cannot be had is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed import inference_api
from testbed.inference_api import CRD, ApiError, ensure_manifest
from testbed.versions import MODULES_DIRECTORY


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Go that notes how it was called and answers with a module of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    module = tmp_path / "module"
    manifest = module / inference_api._MANIFEST
    manifest.parent.mkdir(parents=True)
    manifest.write_text(f"name: {CRD}\n")
    program = tmp_path / "go"
    answer = json.dumps({"Dir": str(module)})
    program.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/calls\n[ -e {tmp_path}/broken ] && exit 1\necho '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(inference_api, "ensure_go", lambda tools, progress: program)
    return tmp_path


def test_it_is_fetched_once_by_the_version_whose_hash_is_kept(go: Path) -> None:
    for _ in range(2):
        assert ensure_manifest().read_text() == f"name: {CRD}\n"
    (call,) = (go / "calls").read_text().splitlines()
    version = call.rsplit("@", 1)[1]
    assert version == f"v{inference_api.VERSION}"
    sums = (MODULES_DIRECTORY / "inference" / "go.sum").read_text()
    assert f"{inference_api._MODULE} {version} h1:" in sums
    assert f"{inference_api._MODULE} {version}\n" in (MODULES_DIRECTORY / "inference" / "go.mod").read_text()


def test_where_it_cannot_be_had_the_reason_is_said_and_nothing_is_kept(go: Path) -> None:
    (go / "broken").touch()
    with pytest.raises(ApiError, match="InferencePool"):
        ensure_manifest()
    assert not inference_api.manifest_path().exists()
