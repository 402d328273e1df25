"""The control-group root of one node, on version 1 (many hierarchies) and version 2 (one), made before and removed after.

A process that dies leaves its groups behind, so they are the one thing that killing a node's namespaces does not undo.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_NEEDED = ("cpu", "memory", "pids")  # what a kubelet does not start without


def _hierarchies() -> list[Path]:
    if (_MOUNT / "cgroup.controllers").exists():
        return [_MOUNT]
    return [path for path in sorted(_MOUNT.iterdir()) if path.is_dir() and not path.is_symlink()]


def why_not() -> str | None:
    """Why a node cannot have a control group here; None if one could just be made (and is gone again)."""
    if not _MOUNT.is_dir() or not _hierarchies():
        return f"this machine has no control groups below {_MOUNT}"
    name = f"grfleet-probe-{secrets.token_hex(4)}"
    try:
        create(name)
        missing = [needed for needed in _NEEDED if needed not in _controllers(name)]
    except OSError as error:
        return f"this machine gives no control groups: {error}"
    finally:
        remove(name)
    return f"this machine gives no control groups with {', '.join(missing)}" if missing else None


def _controllers(name: str) -> set[str]:
    """Controllers that a group has: on version 2 those that were handed down to it, on version 1 one (or a few) a hierarchy."""
    if (_MOUNT / "cgroup.controllers").exists():
        return set((_MOUNT / name / "cgroup.controllers").read_text().split())
    return {each for hierarchy in _hierarchies() for each in hierarchy.name.split(",")}


def create(name: str) -> None:
    """Make the group in every hierarchy, with all processors and memory nodes and, on version 2, every controller.

    Raises
    ------
    OSError
        This user may not, or the hierarchies are read-only.
    """
    for hierarchy in _hierarchies():
        if (hierarchy / "cgroup.controllers").exists() and hierarchy == _MOUNT:
            for controller in (hierarchy / "cgroup.controllers").read_text().split():
                with contextlib.suppress(OSError):  # one that the machine's own manager holds back is not missed
                    (hierarchy / "cgroup.subtree_control").write_text(f"+{controller}")
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        for key in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / key).exists():  # version 1 leaves a new group without any, and nothing could run in it
                (group / key).write_text((hierarchy / key).read_text().strip())


def remove(name: str, *, timeout_seconds: float = 10.0) -> bool:
    """Remove the group and all below it everywhere; False if a process in it would not go in time."""
    if not name or "/" in name or not _MOUNT.is_dir():
        return True
    deadline = time.monotonic() + timeout_seconds
    while left := [group for hierarchy in _hierarchies() if (group := hierarchy / name).is_dir()]:
        for group in left:
            for folder, _, _ in os.walk(group, topdown=False):  # passes over what goes meanwhile
                with contextlib.suppress(OSError):  # the kernel still takes the last process out of it
                    os.rmdir(folder)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
