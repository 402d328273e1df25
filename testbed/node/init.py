"""First process of a node's namespaces: makes the mount and network namespace usable, then reaps until told to end.

Its end is the end of everything inside, which the kernel sees to. Programs write below /run, /var/lib and /var/log
whatever they are told, so these are private and empty here. Run as ``python -m testbed.node.init READY_FILE``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

PRIVATE_FOLDERS = ("/run", "/var/lib", "/var/log")


def main(ready: str) -> None:
    """Set up, write the file, reap."""
    awaited = {signal.SIGCHLD, signal.SIGTERM}
    # A handler of its own, for the kernel drops signals that the first process of a namespace leaves to their default.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    for folder in PRIVATE_FOLDERS:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "grfleet", folder], check=True)
    Path("/run/netns").mkdir()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    Path(ready).write_text("ready\n")
    while signal.sigwait(awaited) != signal.SIGTERM:
        reap()


def reap() -> None:
    """Collect every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main(sys.argv[1])
