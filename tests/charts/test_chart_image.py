"""What can be known of the image without a Docker daemon: it holds what the operator imports, and nothing runs as root."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from chart_tools import ROOT, Helm, the

DOCKERFILE = (ROOT / "operator" / "Dockerfile").read_text()
LINES = DOCKERFILE.replace("\\\n", " ").splitlines()
FINAL = LINES[max(number for number, line in enumerate(LINES) if line.startswith("FROM ")) :]


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """The folder /app of the image, as the COPY lines make it."""
    for line in FINAL:
        if found := re.fullmatch(r"COPY (\S+) /app/(\S+)", line):
            source, target = ROOT / found[1], tmp_path / found[2]
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
    return tmp_path


def test_the_copied_rooms_are_all_that_the_operator_imports(application: Path) -> None:
    command = [sys.executable, "-S", "-P", "main.py", "--help"]
    packages = sysconfig.get_paths()["purelib"]
    environment = {"PYTHONPATH": f"{application}:{packages}", "PYTHONSAFEPATH": "1", "HOME": str(application)}
    done = subprocess.run(command, cwd=application, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "grfleet-operator" in done.stdout
    loaded = "print('\\n'.join(str(each.__file__) for each in sys.modules.values() if hasattr(each, '__file__')))"
    command = [sys.executable, "-S", "-P", "-c", f"import sys, controllers.loops; {loaded}"]
    done = subprocess.run(command, cwd=application, env=environment, capture_output=True, text=True, check=True)
    assert str(application / "controllers" / "loops.py") in done.stdout
    outside = [
        path for path in done.stdout.splitlines() if path.startswith(str(ROOT)) and not path.startswith(str(ROOT / ".venv"))
    ]
    assert outside == [], "not in the image"


def test_packages_are_pinned_and_hashed_and_built_nowhere() -> None:
    assert "--require-hashes --only-binary=:all:" in " ".join(DOCKERFILE.split())
    assert "ARG BASE=python:3.11-slim" in LINES


def test_the_image_runs_as_the_user_that_the_chart_demands_and_starts_the_operator(helm: Helm) -> None:
    pod = the(helm.render(), "Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {pod['runAsUser']}:{pod['runAsGroup']}" in FINAL
    entry = next(line for line in FINAL if line.startswith("ENTRYPOINT"))
    assert json.loads(entry.removeprefix("ENTRYPOINT")) == ["python", "/app/main.py"]
    assert "PYTHONSAFEPATH=1" in DOCKERFILE
