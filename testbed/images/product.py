"""grfleet's own images: operator, agent, picker and reference engine, names over the same layers; the picker has one more.

Interpreter and packages change with the lock file only, so the usual rebuild after an edit packs the checkout alone.
The layout mirrors operator/Dockerfile: same user, same entry, read-only root.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.debian import ensure_debian_tree
from testbed.envoy import ensure_envoy
from testbed.images.archive import Image, Layer, write_archive
from testbed.images.layers import PACKAGES_FOLDER, PYTHON_HOME, interpreter_layer, packages_layer, program_layer, tree_layer

_CHECKOUT = Path(__file__).resolve().parent.parent.parent
_APPLICATION = "/opt/grfleet/app"
_SCRIPTS = "/opt/grfleet/bin"
# Image name to the command it runs; every image holds all of them.
COMMANDS = {
    "operator": "grfleet-operator",
    "agent": "grfleet-agent",
    "picker": "grfleet-picker",
    "reference-engine": "grfleet-reference-engine",
}
# Images that need packages of an extra as well.
_EXTRAS = {"picker": "gateway"}


@dataclass(frozen=True)
class ProductImages:
    """The archive that holds all images, and the full reference of each by its short name."""

    archive: Path
    references: Mapping[str, str]
    tag: str

    def __getitem__(self, name: str) -> str:
        return self.references[name]


def build(directory: Path, *, omit: Collection[str] = ()) -> ProductImages:
    """Write the images of this checkout into `directory`; the tag is their content, so a changed one is a new image.

    `omit` names layers that the cluster has already, see `testbed.node.cluster.LocalCluster.base_layers`: without the
    interpreter and the packages the archive has 11 MB instead of 430.
    """
    layers = [*base_layers(), _application_layer()]
    tag = hashlib.sha256("".join(layer.digest for layer in layers).encode()).hexdigest()[:12]
    archive = directory / f"grfleet-{tag}.tar"
    if not archive.exists():
        directory.mkdir(parents=True, exist_ok=True)
        _write(archive, _references(tag), omit=omit)
    return ProductImages(archive, _references(tag), tag)


def build_haproxy(directory: Path, *, omit: Collection[str] = ()) -> tuple[Path, str]:
    """Write an image of the HAProxy that this system's packages have; returns the archive and the image's reference.

    It stands in for the official image where there is no registry: same signal to stop with, the user that the chart demands.

    Raises
    ------
    testbed.debian.DebianError
        The package cannot be had here.
    """
    tree = ensure_debian_tree(["haproxy"])
    layers = [interpreter_layer(), program_layer("haproxy", tree.program("haproxy"), tree.environment())]
    reference = f"grfleet/haproxy:{layers[-1].digest[:12]}"
    archive = directory / "haproxy.tar"
    directory.mkdir(parents=True, exist_ok=True)
    image = Image(
        f"docker.io/{reference}",
        layers,
        entrypoint=["/usr/bin/haproxy"],
        environment={"PATH": "/usr/bin:/bin"},
        stop_signal="SIGUSR1",
    )
    write_archive(archive, [image], omit=omit)
    return archive, reference


def build_envoy(directory: Path, *, omit: Collection[str] = ()) -> tuple[Path, str]:
    """Write an image of the Envoy that `testbed.envoy` unpacks; returns the archive and the image's reference.

    Raises
    ------
    testbed.wheels.WheelError
        It cannot be had here.
    """
    layers = [interpreter_layer(), program_layer("envoy", ensure_envoy(), os.environ)]
    reference = f"grfleet/envoy:{layers[-1].digest[:12]}"
    archive = directory / "envoy.tar"
    directory.mkdir(parents=True, exist_ok=True)
    image = Image(f"docker.io/{reference}", layers, entrypoint=["/usr/bin/envoy"], environment={"PATH": "/usr/bin:/bin"})
    write_archive(archive, [image], omit=omit)
    return archive, reference


def build_release(archive: Path, *, tag: str | None = None) -> ProductImages:
    """Write the images of this checkout, whole, under the names that the chart looks for; `tag` is by default this version."""
    tag = tag or str(_project()["project"]["version"])
    _write(archive, _references(tag))
    return ProductImages(archive, _references(tag), tag)


def base_layers() -> list[Layer]:
    """The layers of all images below the checkout, from the bottom up."""
    return [*_common_layers(), *(packages_layer("grfleet", extra=extra) for extra in _EXTRAS.values())]


def _common_layers() -> list[Layer]:
    return [interpreter_layer(), packages_layer("grfleet")]


def _references(tag: str) -> dict[str, str]:
    return {name: f"grfleet/{name}:{tag}" for name in COMMANDS}


def _write(archive: Path, references: Mapping[str, str], *, omit: Collection[str] = ()) -> None:
    environment = {
        "PATH": f"{_SCRIPTS}:{PYTHON_HOME}/bin:/usr/bin:/bin",
        "PYTHONPATH": f"{_APPLICATION}:{PACKAGES_FOLDER}",
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    common, application = _common_layers(), _application_layer()
    above = {name: [packages_layer("grfleet", extra=extra)] for name, extra in _EXTRAS.items()}
    images = [
        Image(
            f"docker.io/{references[name]}",
            [*common, *above.get(name, ()), application],
            entrypoint=[f"{_SCRIPTS}/{command}"],
            environment=environment,
        )
        for name, command in COMMANDS.items()
    ]
    write_archive(archive, images, omit=omit)


def _project() -> dict[str, Any]:
    return tomllib.loads((_CHECKOUT / "pyproject.toml").read_text())


def _application_layer() -> Layer:
    project = _project()
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    scripts = {
        f"{_SCRIPTS}/{name}": (
            f"#!{PYTHON_HOME}/bin/python3\nimport sys\n\nfrom {entry.split(':')[0]} import {entry.split(':')[1]}\n\n"
            f"sys.exit({entry.split(':')[1]}())\n"
        )
        for name, entry in project["project"]["scripts"].items()
    }
    sources = {f"{_APPLICATION}/{name}": _CHECKOUT / name for name in packages}
    return tree_layer("application", sources, scripts, compile_below=_APPLICATION)
