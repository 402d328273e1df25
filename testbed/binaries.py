"""Find or make the programs of the control plane: etcd, kube-apiserver, kube-controller-manager, kubectl, helm.

Each program is looked up on its own, in this order: an explicit directory, the cache outside the work tree, the
official release (verified by its checksum), and a build from the pinned Go modules. Only the last two take time; they
run under one lock, so two callers never do the same work, and a program appears in the cache whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.versions import PROGRAMS, Program

ASSET_VARIABLES = ("GRFLEET_TESTBED_ASSETS", "KUBEBUILDER_ASSETS")


class BinariesMissingError(RuntimeError):
    """A program can neither be found nor made; the message says what to install."""


@dataclass(frozen=True)
class Binaries:
    """Where each program is and where it came from."""

    paths: Mapping[str, Path]
    origins: Mapping[str, str]

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]


def cache_directory() -> Path:
    """Root of the program cache: ``$XDG_CACHE_HOME/grfleet/bin`` or ``~/.cache/grfleet/bin``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "grfleet" / "bin"


def cached_path(program: Program) -> Path:
    """Where the cache keeps a program of this version, there or not."""
    return cache_directory() / program.module.cache_name / program.name


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _find(program: Program) -> tuple[Path, str] | None:
    for variable in ASSET_VARIABLES:
        directory = os.environ.get(variable)
        if directory and _is_program(Path(directory) / program.name):
            return Path(directory) / program.name, variable
    path = cached_path(program)
    return (path, "cache") if _is_program(path) else None


def find_binaries(names: Sequence[str] = tuple(PROGRAMS)) -> Binaries:
    """The programs that are already on this machine; names that are not are left out."""
    found = {name: hit for name in names if (hit := _find(PROGRAMS[name])) is not None}
    return Binaries({n: hit[0] for n, hit in found.items()}, {n: hit[1] for n, hit in found.items()})


def ensure_binaries(names: Sequence[str] = tuple(PROGRAMS), *, progress: Callable[[str], None] | None = None) -> Binaries:
    found = find_binaries(names)
    missing = [name for name in names if name not in found.paths]
    if missing:
        raise BinariesMissingError(f"missing: {', '.join(missing)}")
    return found
