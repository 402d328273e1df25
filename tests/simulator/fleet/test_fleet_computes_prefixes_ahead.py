"""Early signals become prefixes computed ahead, as far as the trigger admits them, and are counted as used, late or wasted."""

from dataclasses import replace
from typing import Any

import numpy as np
from fleet_logs import MIB, a_fleet, a_log

from policies.preinference.trigger import TriggerRules
from simulator.fleet.config import Level
from simulator.fleet.run import simulate
from simulator.request_log import RequestLog


def rules(**changes: Any) -> TriggerRules:
    base: dict[str, Any] = {
        "min_prefix_tokens": 32,
        "budget_ms": 1.5,
        "safety_percent": 0.0,
        "prefix_bytes": 64 * MIB,
        "max_inflight": 4,
        "max_per_second": 1000.0,
        "life_ms": 10_000.0,
    }
    return TriggerRules(**(base | changes))


def announced(lead_ms: float, count: int = 2000) -> RequestLog:
    log = a_log(count, per_second=100.0)
    return replace(log, signal_lead_ms=np.full(count, lead_ms, dtype=np.float32))


def test_requests_announced_in_time_are_ranked_faster() -> None:
    log, fleet = announced(200.0), a_fleet()
    plain = simulate(log, fleet, level=Level.REDUCED, seed=1)
    ahead = simulate(log, fleet, level=Level.REDUCED, pre_infer=rules(), seed=1)
    assert ahead.counts["signals"] == len(log)
    assert ahead.counts["preInferUsed"] > 0.9 * ahead.counts["preInferAccepted"] > 100
    assert ahead.kv_hit_tokens.sum() > plain.kv_hit_tokens.sum()
    assert ahead.service_ms.mean() < plain.service_ms.mean()
    assert ahead.counts["preInferBusyMs"] > 0


def test_every_prefix_is_used_late_wasted_or_waits() -> None:
    for lead_ms, changes in ((200.0, {}), (1.0, {}), (5000.0, {"prefix_bytes": 1024 * MIB, "life_ms": 60_000.0})):
        counts = simulate(announced(lead_ms), a_fleet(), level=Level.REDUCED, pre_infer=rules(**changes), seed=1).counts
        settled = counts["preInferUsed"] + counts["preInferLate"] + counts["preInferWasted"]
        assert 0 <= counts["preInferAccepted"] - settled <= 60
    assert counts["preInferWasted"] > 0


def test_a_signal_too_late_to_help_is_refused_and_one_without_signals_changes_nothing() -> None:
    counts = simulate(announced(0.01), a_fleet(), level=Level.REDUCED, pre_infer=rules(), seed=1).counts
    assert counts["preInferAccepted"] == 0
    assert counts["signalsTooLate"] > 0
    log = a_log(500)
    plain, idle = (simulate(log, a_fleet(), level=Level.REDUCED, pre_infer=one, seed=1) for one in (None, rules()))
    assert plain.digest == idle.digest


def test_nothing_is_computed_twice_and_slots_bound_what_runs_at_once() -> None:
    log = announced(500.0)
    counts = simulate(log, a_fleet(), level=Level.REDUCED, pre_infer=rules(max_inflight=0), seed=1).counts
    assert counts["preInferAccepted"] == 0
    assert counts["signalsSlotsBusy"] > 0
    again = simulate(log, a_fleet(), level=Level.SAMPLED_64, pre_infer=rules(), seed=1)
    assert again.counts["signalsInFlight"] > 0
    assert again.digest == simulate(log, a_fleet(), level=Level.SAMPLED_64, pre_infer=rules(), seed=1).digest
