"""The compiled core is made where it can be, left out where it cannot, and never used when it is of other source."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from policies.allocation import core
from policies.allocation.core import build

ROOT = Path(__file__).resolve().parents[2]
PLACE = "policies/allocation/core"
CALL = "from policies.allocation import core, path; print(core.available(), path.kernel(), core.why_not())"

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler on this machine"
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What of the checkout a build of `policies` needs, without what was compiled before."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "policies", folder / "policies", ignore=shutil.ignore_patterns("__pycache__", "*.so", ".core-*"))
    return folder


def run(*command: str, within: Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GRFLEET"))}
    return subprocess.run(
        command,
        cwd=within,
        env={**inherited, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def asked(folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """What a Python that imports grfleet from this folder says of its core."""
    done = run(sys.executable, "-P", "-c", CALL, within=folder, environment={"PYTHONPATH": str(folder), **(environment or {})})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def built(checkout: Path, into: Path, how: str = "wheel", environment: Mapping[str, str] | None = None) -> Path:
    """The wheel that hatchling makes of the checkout."""
    pytest.importorskip("hatchling")
    code = f"import hatchling.build as b; print(b.build_{how}({str(into)!r}))"
    done = run(sys.executable, "-c", code, within=checkout, environment=environment)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.strip().splitlines()[-1]


def without_compiler(folder: Path) -> dict[str, str]:
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    return {"PATH": str(empty), "CC": "no-such-compiler"}


@needs_compiler
def test_a_wheel_holds_the_core_and_says_which_pythons_and_machines_it_is_for(checkout: Path, tmp_path: Path) -> None:
    wheel = built(checkout, tmp_path)
    assert f"cp3{sys.version_info[1]}-" in wheel.name
    assert "none-any" not in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        assert {f"{PLACE}/{name}" for name in (build.file_name(), *build.SOURCES)} <= set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    assert asked(tmp_path / "installed") == "True c None"
    assert not list((checkout / PLACE).glob("*.so")), "a wheel leaves nothing in the checkout"


def test_without_a_compiler_the_wheel_is_for_any_machine_and_numpy_decides(checkout: Path, tmp_path: Path) -> None:
    wheel = built(checkout, tmp_path, environment=without_compiler(tmp_path))
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(tmp_path / "installed")
    assert asked(tmp_path / "installed").startswith("False numpy it is not compiled")


def test_whoever_publishes_wheels_can_forbid_or_demand_the_core(checkout: Path, tmp_path: Path) -> None:
    assert built(checkout, tmp_path, environment={"GRFLEET_BUILD_CORE": "skip"}).name.endswith("-py3-none-any.whl")
    code = f"import hatchling.build as b; b.build_wheel({str(tmp_path)!r})"
    environment = {**without_compiler(tmp_path), "GRFLEET_BUILD_CORE": "require"}
    done = run(sys.executable, "-c", code, within=checkout, environment=environment)
    assert done.returncode != 0
    assert "no C compiler found" in done.stderr


@needs_compiler
def test_an_editable_install_puts_the_core_beside_its_source_and_an_edit_puts_it_out_of_use(
    checkout: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(checkout, mine)
    assert built(mine, tmp_path, "editable").name.endswith("-py3-none-any.whl")
    assert asked(mine) == "True c None"
    source = mine / PLACE / "split_core.c"
    source.write_text(source.read_text() + "\n/* edited */\n")
    assert asked(mine).startswith("False numpy the compiled core is of other source than this")
    assert run(sys.executable, "-m", "policies.allocation.core", within=mine).stderr == ""
    assert asked(mine) == "True c None"


@needs_compiler
def test_numpy_can_be_asked_for_although_the_core_is_there(tmp_path: Path, checkout: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(checkout / "policies", mine / "policies")
    done = run(sys.executable, f"{PLACE}/build.py", within=mine)
    assert done.returncode == 0, done.stderr
    assert asked(mine) == "True c None"
    assert asked(mine, {core.ENVIRONMENT: "numpy"}) == "False numpy GRFLEET_KERNEL=numpy asks for numpy"


@needs_compiler
def test_this_very_environment_has_the_core_for_it_can_compile_it() -> None:
    assert core.available() or os.environ.get(core.ENVIRONMENT) == "numpy", core.why_not()


def test_what_cannot_be_compiled_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(build.CannotCompile, match="no C compiler found"):
        build.compile_core(tmp_path)
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\necho 'error: none of it' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("CC", str(refusing))
    with pytest.raises(build.CannotCompile, match="none of it"):
        build.compile_core(tmp_path)
    assert not list(tmp_path.glob("*.so"))
