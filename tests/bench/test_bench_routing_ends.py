"""The routing benchmark leaves nothing running, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STARTS_ONE = f"""
import time, pathlib
from bench.ending import end_in_order
from bench.routing_site import Child
end_in_order()
with Child(["sleep", "100"], on={os.sched_getaffinity(0)!r}, log=pathlib.Path("LOG"), first=False) as child:
    print(child.pid, flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_whatever_ends_it_takes_what_it_started_along(number: signal.Signals, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parent.parent.parent
    program = STARTS_ONE.replace("LOG", str(tmp_path / "log"))
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root, text=True
    )
    assert process.stdout is not None
    with process:
        child = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(20) != 0
    give_up_s = time.monotonic() + 10.0
    while _runs(child):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whether it runs; one that ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
