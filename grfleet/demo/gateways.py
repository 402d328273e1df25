"""The gateways of the demonstration: a HAProxy before each pool, with `grfleet-gateway` beside it, where a HAProxy can be found.

They read the routing tables through `kubectl proxy`, which opens nothing but those tables, so that gateways need no credentials
outside a pod. Without a HAProxy the driver calls the instances itself, and the demonstration says so.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testbed import haproxy
from testbed.debian import DebianError, ensure_debian_tree, find_debian_tree

TABLE_PATHS = "^/apis/grfleet[.]dev/v1alpha1/namespaces/[^/]+/grroutingtables/[^/]+$"
MAX_CONNECTIONS = 500
PACKAGES = ("haproxy",)


@dataclass(frozen=True)
class HAProxy:
    """A program, and the environment it runs in."""

    path: Path
    version: str
    environment: Mapping[str, str] = field(default_factory=dict)


def find_haproxy(*, wanted: bool | None, say: Callable[[str], None]) -> HAProxy | None:
    """Return the HAProxy that is installed, or that the cache has unpacked.

    Parameters
    ----------
    wanted
        None: take what there is. True: unpack Debian's package into the cache if there is none. False: do without.

    Raises
    ------
    testbed.debian.DebianError
        When one is wanted and cannot be had here.
    """
    if wanted is False:
        return None
    if installed := shutil.which("haproxy"):
        return _versioned(Path(installed), {})
    tree = find_debian_tree(PACKAGES) or haproxy.find_haproxy()
    if tree is None and wanted:
        tree = ensure_debian_tree(PACKAGES, progress=say)
    if tree is None:
        return None
    environment = {"LD_LIBRARY_PATH": tree.environment({})["LD_LIBRARY_PATH"]}
    return _versioned(tree.program("haproxy"), environment)


def _versioned(path: Path, environment: Mapping[str, str]) -> HAProxy:
    said = subprocess.run([path, "-v"], env=dict(environment), capture_output=True, text=True, check=False, timeout=10)
    words = said.stdout.split()
    if said.returncode != 0 or len(words) < 3:
        raise DebianError(f"{path} does not run: {(said.stderr or said.stdout).strip()[:200]}")
    return HAProxy(path, words[2], environment)


def table_address(proxy_port: int, namespace: str, pool: str) -> str:
    """Where `kubectl proxy` shows a pool's table."""
    return f"http://127.0.0.1:{proxy_port}/apis/grfleet.dev/v1alpha1/namespaces/{namespace}/grroutingtables/{pool}"


def wait_for(found: Callable[[], bool], *, check: Callable[[], None], seconds: float) -> bool:
    """Look until something is found; False after the time is over. `check` may raise to give up."""
    deadline = time.monotonic() + seconds
    while not found():
        check()
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def announced(log: Path) -> bool:
    """Whether a gateway has said in its log that HAProxy holds the table."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.startswith('{"ready"') and json.loads(line)["ready"] for line in lines)
