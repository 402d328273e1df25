"""Cleans up one control plane the moment its owner is gone, however it went.

It waits on a pidfd of the owner, so neither kill -9 nor a child that inherited the owner's files can fool it.
Run as ``python -m testbed.watchdog NAME``; it ends when the record is removed by somebody else or by itself.
"""

from __future__ import annotations

import sys

from testbed import processes, state


def main(name: str) -> None:
    """Wait for the owner of the named control plane to end, then remove what it left."""
    record = state.load(name)
    if record is None or record.owner is None:
        return
    processes.wait_gone(record.owner, timeout_seconds=None)
    with state.locked():
        record = state.load(name)  # read again: it has grown since this process started
        if record is not None and record.orphaned:
            state.remove(record, grace_seconds=0)


if __name__ == "__main__":
    main(sys.argv[1])
