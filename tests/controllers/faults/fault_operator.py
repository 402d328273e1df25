"""The real operator with its waiting times a fifth of what they are (those of the Lease a quarter), so that a fault plan takes
seconds and not minutes.

Nothing else differs: the same loops, client, elector and watch library. The ratios of the times stay, and with them what
can happen in which order.
"""

from __future__ import annotations

import functools
import sys
from datetime import datetime, timedelta
from types import ModuleType

import kopf

from controllers import model_bytes, pace
from controllers.allocation import agents as allocation_agents
from controllers.allocation import decide as allocation_decide
from controllers.allocation import drained as allocation_drained
from controllers.allocation import execute as allocation_execute
from controllers.models import observe as models_observe
from controllers.pool import workload_execute
from controllers.preinference import decide as preinference_decide
from controllers.preinference import report as preinference_report
from controllers.routing import decide as routing_decide
from controllers.routing import members as routing_members
from controllers.runtime import controller as controller_module
from controllers.runtime import process
from controllers.runtime import runtime as runtime_module
from controllers.runtime.clock import SystemClock
from controllers.runtime.leader import LeaderElector, LeaseTimes
from controllers.runtime.sweep import Sweeper

FASTER = 5.0
LEASE = LeaseTimes(lease_seconds=4.0, renew_seconds=2.8, retry_seconds=0.4, look_seconds=0.2, request_seconds=1.2)
INACTIVITY_SECONDS = 8.0
SWEEP_SECONDS = 8.0
AHEAD = "--clock-ahead-seconds="


def hasten() -> None:
    """Shorten the times of this process."""
    for module, names in (
        (pace.Restraint, ("LONGEST_SECONDS",)),
        (pace, ("NUMBERS_SECONDS", "TRANSITION_SECONDS", "WINDOW_SECONDS")),
        (allocation_agents, ("POLL_SECONDS", "SECOND_ATTEMPT_SECONDS", "LONGEST_SECONDS")),
        (allocation_decide, ("REPEAT_SECONDS", "REPEAT_MODEL_SECONDS", "REFUSED_MODEL_SECONDS")),
        (model_bytes, ("RETRY_SECONDS",)),
        (models_observe, ("RECHECK_SECONDS", "BROKEN_RECHECK_SECONDS")),
        (allocation_drained, ("QUIET_SECONDS",)),
        (allocation_execute, ("DRAIN_SECONDS", "FOLLOW_UP_SECONDS")),
        (preinference_decide, ("PERIOD_SECONDS", "REST_SECONDS")),
        (preinference_report, ("FIRST_SECONDS", "NUMBER_SECONDS", "WORD_SECONDS")),
        (workload_execute, ("REFUSAL_SECONDS",)),
        (routing_decide, ("WARMING_SECONDS", "PREDECESSOR_SECONDS")),
        (routing_members, ("GRACE_SECONDS",)),
        (controller_module, ("CLUSTER_RETRY_SECONDS",)),
    ):
        _divide(module, names)
    runtime_module.LeaderElector = functools.partial(LeaderElector, times=LEASE)  # type: ignore[misc, assignment] # same call
    runtime_module.Sweeper = functools.partial(  # type: ignore[misc, assignment] # same call
        Sweeper, period_seconds=SWEEP_SECONDS, first_seconds=1.0, settle_seconds=0.3, retry_seconds=1.0
    )
    configure = process.configure

    def hastened(settings: kopf.OperatorSettings) -> None:
        configure(settings)
        settings.watching.inactivity_timeout = INACTIVITY_SECONDS
        settings.watching.reconnect_backoff = 0.1

    process.configure = hastened


def _divide(module: ModuleType | type, names: tuple[str, ...]) -> None:
    for name in names:
        setattr(module, name, getattr(module, name) / FASTER)


def shift(seconds: float) -> None:
    """Set the wall clock of this process ahead; what measures durations stays."""

    class ShiftedClock(SystemClock):
        def now(self) -> datetime:
            return super().now() + timedelta(seconds=seconds)

    process.SystemClock = ShiftedClock  # type: ignore[misc] # same interface


if __name__ == "__main__":
    hasten()
    ahead = [each for each in sys.argv[1:] if each.startswith(AHEAD)]
    if ahead:
        shift(float(ahead[-1].removeprefix(AHEAD)))
    raise SystemExit(process.main([each for each in sys.argv[1:] if not each.startswith(AHEAD)]))
