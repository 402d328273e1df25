"""What was heard of an agent at the last attempt, and whether it can be believed.

An agent is treated as hostile: numbers are finite and in range, bytes fit the intent that it says it holds, names fit the API.
Whoever breaks that is Garbled, and nothing of the answer is used. What is in force may be larger than the pool's memory: the pool
has just been made smaller, and only the intent that follows lets the agent shrink.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from contract.agent import AgentStatus, SplitReport

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LONGEST_P99_MS = 86_400_000.0
_MOST_PER_SECOND = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The agent answered within its contract."""

    status: AgentStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """The agent did not answer, `failures` times in a row; nothing is known about its state."""

    why: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbled:
    """The agent answered something that must not be used."""

    why: str


Sighting = Answered | Silent | Garbled


def problem_of(status: AgentStatus, *, usable_bytes: int | None) -> str | None:
    """The first thing in a status that cannot be true, or None.

    Parameters
    ----------
    usable_bytes
        Usable bytes of the intent that the agent says it holds; None while it holds none, or another one.
    """
    return next(_problems(status, usable_bytes), None)


def _problems(status: AgentStatus, usable_bytes: int | None) -> Iterator[str]:
    if not _ID.fullmatch(status.agent_start_id):
        yield "agentStartId is not a name"
    if status.engine.reachable and not _ID.fullmatch(status.engine.start_id):
        yield "engine.startId is not a name, though the engine is reachable"
    for field, word in (("reason", status.reason), ("strategyInForce", status.strategy_in_force)):
        if not _NAME.fullmatch(word):
            yield f"{field} is not one word"
    shares = {
        "embHitPercent": status.emb_hit_percent,
        "kvHitPercent": status.kv_hit_percent,
        "sloPercent": status.slo_percent,
    }
    for field, share in shares.items():
        if share is not None and not 0.0 <= share <= 100.0:  # NaN fails this too
            yield f"{field} is not between 0 and 100"
    if status.p99_ms is not None and not (math.isfinite(status.p99_ms) and 0.0 <= status.p99_ms <= _LONGEST_P99_MS):
        yield "p99Ms is not a latency"
    rate = status.requests_per_second
    if rate is not None and not 0.0 <= rate <= _MOST_PER_SECOND:
        yield "requestsPerSecond is not a rate"
    for field, latency_ms in (("predictedP99Ms", status.predicted_p99_ms), ("goalP99Ms", status.goal_p99_ms)):
        if latency_ms is not None and not (math.isfinite(latency_ms) and 0.0 <= latency_ms <= _LONGEST_P99_MS):
            yield f"{field} is not a latency"
    yield from _serving_problems(status)
    if status.split is not None:
        yield from _split_problems(status.split, usable_bytes)


def _serving_problems(status: AgentStatus) -> Iterator[str]:
    """What others than this loop act on: capacity is measured, and a drained instance is deleted, by these figures."""
    serving = status.serving
    if serving is not None:
        if not math.isfinite(serving.clock_ms):
            yield "serving.clockMs is not a time"
        slot_ms = serving.pre_infer.slot_ms
        if slot_ms is not None and not math.isfinite(slot_ms):
            yield "serving.preInfer.slotMs is not a time"
        if serving.queue > serving.in_flight:
            yield "serving.queue is above serving.inFlight, which counts who waits as well"
    if status.idle_seconds is not None and not (math.isfinite(status.idle_seconds) and status.idle_seconds >= 0.0):
        yield "idleSeconds is not a time"
    if status.draining and not status.uid:
        yield "draining is said without an intent that asks for it"


def _split_problems(split: SplitReport, usable_bytes: int | None) -> Iterator[str]:
    if split.usable_bytes <= 0:
        yield "split.usableBytes is not a size"
    if usable_bytes is not None and split.usable_bytes > usable_bytes:
        yield f"split.usableBytes {split.usable_bytes} is above the {usable_bytes} of the intent that it holds"
    if split.target_emb_bytes > max(split.usable_bytes, split.accepted_emb_bytes):
        yield "split.targetEmbBytes is above split.usableBytes"
