"""How a benchmark ends before its time: in order where it is asked to, and with all that it started where it is not asked."""

import ctypes
import signal
import sys

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def end_in_order() -> None:
    """Let SIGTERM and SIGHUP do what Ctrl-C does: processes are stopped, folders removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def end_with_the_caller() -> None:
    """Have the system end this process when its parent is gone, however that came; for a child, before its program."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
