"""What can be known of the images without a Docker daemon: each holds what its program imports, and nothing runs as root."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
from chart_tools import ROOT, Helm, the

from controllers.pool.sidecar import AGENT_PORT_NUMBER


@dataclass(frozen=True)
class Recipe:
    """A Dockerfile, the name its program calls itself by, and a module that holds all it ever imports."""

    path: str
    program: str
    imports: str

    @property
    def text(self) -> str:
        return (ROOT / self.path).read_text()

    @property
    def lines(self) -> list[str]:
        """Its instructions, one a line."""
        return self.text.replace("\\\n", " ").splitlines()

    @property
    def final(self) -> list[str]:
        """Those of the last stage."""
        return self.lines[max(number for number, line in enumerate(self.lines) if line.startswith("FROM ")) :]

    @property
    def entry(self) -> list[str]:
        """The command of the image."""
        found: list[str] = json.loads(
            next(line for line in self.final if line.startswith("ENTRYPOINT")).removeprefix("ENTRYPOINT")
        )
        return found


OPERATOR = Recipe("operator/Dockerfile", "grfleet-operator", "controllers.loops")
AGENT = Recipe("dataplane/agent/Dockerfile", "grfleet-agent", "dataplane.agent.process")
ENGINE = Recipe("engines/reference/Dockerfile", "grfleet-reference-engine", "engines.reference.server")
EACH = pytest.mark.parametrize("recipe", [OPERATOR, AGENT, ENGINE], ids=lambda recipe: recipe.program)


def application(recipe: Recipe, folder: Path) -> Path:
    """The folder /app of the image, as the COPY lines make it."""
    for line in recipe.final:
        if found := re.fullmatch(r"COPY (\S+) /app/(\S+)", line):
            source, target = ROOT / found[1], folder / found[2]
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
    return folder


@EACH
def test_the_copied_rooms_are_all_that_the_program_imports(recipe: Recipe, tmp_path: Path) -> None:
    app = application(recipe, tmp_path)
    packages = sysconfig.get_paths()["purelib"]
    environment = {"PYTHONPATH": f"{app}:{packages}", "PYTHONSAFEPATH": "1", "HOME": str(app)}
    python = [sys.executable, "-S", "-P"]

    def run(*arguments: str) -> str:
        command = [*python, *arguments]
        done = subprocess.run(command, cwd=app, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert recipe.entry[0] == "python"
    assert recipe.program in run(*(each.replace("/app/", f"{app}/") for each in recipe.entry[1:]), "--help")
    loaded = "print('\\n'.join(str(each.__file__) for each in sys.modules.values() if hasattr(each, '__file__')))"
    files = run("-c", f"import sys, {recipe.imports}; {loaded}").splitlines()
    assert str(app / f"{recipe.imports.replace('.', '/')}.py") in files
    assert [path for path in files if path.startswith(str(ROOT)) and not path.startswith(str(ROOT / ".venv"))] == [], "not in it"


@EACH
def test_packages_are_pinned_and_hashed_and_built_nowhere(recipe: Recipe) -> None:
    assert "--require-hashes --only-binary=:all:" in " ".join(recipe.text.split())
    assert "ARG BASE=python:3.11-slim" in recipe.lines
    assert f"docker build -f {recipe.path} " in recipe.lines[0]


def test_the_recipes_differ_in_the_rooms_that_they_copy_only() -> None:
    # A Dockerfile cannot include another one, and each image is built alone: the same lines stand in all of them.
    alike = {recipe.text.split("\n", 1)[1].split("COPY contract", 1)[0] for recipe in (OPERATOR, AGENT, ENGINE)}
    assert len(alike) == 1


@EACH
def test_an_image_runs_as_the_user_that_the_chart_demands_and_imports_nothing_by_accident(helm: Helm, recipe: Recipe) -> None:
    pod = the(helm.render(), "Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {pod['runAsUser']}:{pod['runAsGroup']}" in recipe.final
    assert "PYTHONSAFEPATH=1" in recipe.text


def test_the_agent_s_image_has_the_gateway_s_agent_too(tmp_path: Path) -> None:
    app = application(AGENT, tmp_path)
    environment = {"PYTHONPATH": f"{app}:{sysconfig.get_paths()['purelib']}", "PYTHONSAFEPATH": "1", "HOME": str(app)}
    command = [sys.executable, "-S", "-P", "-m", "dataplane.gateway.main", "--help"]
    done = subprocess.run(command, cwd=app, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "grfleet-gateway" in done.stdout


def test_the_agent_s_image_names_the_port_at_which_the_operator_looks_for_it() -> None:
    assert f"EXPOSE {AGENT_PORT_NUMBER}" in AGENT.final


def test_the_images_that_the_chart_names_are_built_as_the_page_says(helm: Helm) -> None:
    container = the(helm.render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    agent = next(each["value"] for each in container["env"] if each["name"] == "GRFLEET_AGENT_IMAGE")
    page = (ROOT / "docs" / "images.md").read_text()
    for recipe, image in ((OPERATOR, container["image"]), (AGENT, agent)):
        assert f"docker build --file {recipe.path} --tag {image} ." in page
