"""Brings the engine's limits of pre-inference and of the tiers below HBM to those of the intent.

The rule is that the split and the bytes reserved for prefixes never add up to more than the pool: they are raised only once the
split has shrunk, and lowered before it grows. Nothing is asked at rest: what is in force is learned from the answer to the first
write, which carries revision 0 and therefore changes nothing, and is believed until the process is another one.
"""

from collections.abc import Callable, Coroutine
from typing import NamedTuple

from contract.agent import IntentPreInfer, IntentSpec
from contract.engine import Describe, LimitsRequest, SplitState, SplitStatus
from contract.errors import ProtocolViolation, Unreachable
from dataplane.agent.errand import Backoff
from dataplane.agent.ports import EnginePort

HOST_TIER, SSD_TIER = "dram", "ssd"
_TAKEN = frozenset({SplitStatus.APPLIED, SplitStatus.DEFERRED})
_REFUSED_IN_A_ROW = 3


class _Values(NamedTuple):
    """Limits without their revision."""

    slots: int
    prefix_bytes: int
    host_bytes: int
    ssd_bytes: int


class LimitsKeeper:
    """The one writer of one engine's limits; remembers nothing that the engine did not answer.

    Parameters
    ----------
    count
        Called with the engine's word on each write, or `failed`, for a metric.
    """

    def __init__(self, engine: EnginePort, *, count: Callable[[str], None] = lambda status: None) -> None:
        self._engine = engine
        self._count = count
        self._start_id = ""
        self._forget()

    def _forget(self) -> None:
        self.in_force: LimitsRequest | None = None
        self._unanswered_bytes = 0
        self._speechless = False
        self._refused: _Values | None = None
        self._asked: _Values | None = None
        self._conflicts = 0
        self._trouble = self._waiting = self._missing = ""
        self._backoff = Backoff()

    @property
    def note(self) -> str:
        """What keeps the limits from being those of the intent, for people; empty when nothing does."""
        return "; ".join(part for part in (self._trouble, self._waiting, self._missing) if part)

    def cap_bytes(self, spec: IntentSpec | None, describe: Describe, split: SplitState) -> int:
        """Return what EMB and KV may take together beside the prefixes.

        The reservation of the intent makes the split shrink. One that is in force, or may be because its answer was lost, only
        keeps it from growing: an engine that cannot lower it must not freeze the split. So does not knowing what is in force,
        unless the engine does not know the call.
        """
        pool_bytes = describe.pool_bytes
        wanted = spec.pre_infer.bytes if spec is not None and spec.pre_infer is not None else 0
        cap = max(0, pool_bytes - wanted)
        now = split.limits.emb_bytes + split.limits.kv_bytes
        if cap <= now:
            return cap
        unknown = self.in_force is None or describe.start_id != self._start_id
        if unknown and not self._speechless and spec is not None and spec.pre_infer is not None:
            return now
        held = self.in_force.pre_infer_bytes if self.in_force is not None else 0
        return max(now, min(cap, pool_bytes - max(held, self._unanswered_bytes)))

    def next_call(
        self, spec: IntentSpec | None, describe: Describe, split: SplitState, *, may_raise: bool, now_ms: float
    ) -> Coroutine[None, None, None] | None:
        """Return the call that is due now, not started yet, or None.

        Parameters
        ----------
        split
            The split in force after this round's writes.
        may_raise : bool
            False when the split in force is not known for sure.
        now_ms : float
            The agent's monotone clock.
        """
        if describe.start_id != self._start_id:
            self._start_id = describe.start_id
            self._forget()
        if spec is None or spec.pre_infer is None or spec.paused:
            return None
        wanted = self._wanted(spec.pre_infer, describe)
        if wanted != self._asked:
            self._asked, self._refused, self._conflicts, self._trouble = wanted, None, 0, ""
            self._backoff.reset()
        values = self._next_values(wanted, describe, split, may_raise=may_raise)
        if values is None or values == self._refused or not self._backoff.due(now_ms):
            return None
        revision = 0 if self.in_force is None else self.in_force.revision + 1
        request = LimitsRequest(
            revision=revision,
            pre_infer_slots=values.slots,
            pre_infer_bytes=values.prefix_bytes,
            host_bytes=values.host_bytes,
            ssd_bytes=values.ssd_bytes,
        )
        self._unanswered_bytes = max(self._unanswered_bytes, values.prefix_bytes)
        return self._send(request, self._start_id, now_ms)

    def _wanted(self, asked: IntentPreInfer, describe: Describe) -> _Values:
        """The limits of the intent without the tiers that the engine does not have."""
        missing = [
            f"{field} is not sent, the engine describes no tier {tier}"
            for field, tier, size in (("hostBytes", HOST_TIER, asked.host_bytes), ("ssdBytes", SSD_TIER, asked.ssd_bytes))
            if size > 0 and tier not in describe.tiers
        ]
        self._missing = "; ".join(missing)
        return _Values(
            slots=asked.slots,
            prefix_bytes=asked.bytes,
            host_bytes=asked.host_bytes if HOST_TIER in describe.tiers else 0,
            ssd_bytes=asked.ssd_bytes if SSD_TIER in describe.tiers else 0,
        )

    def _next_values(self, wanted: _Values, describe: Describe, split: SplitState, *, may_raise: bool) -> _Values | None:
        """What to ask for now: all that is wanted, or all but more bytes while the split still has them; None when it stands."""
        if self.in_force is None:
            self._waiting = ""
            return wanted  # under revision 0, which is never taken
        held = self.in_force.pre_infer_bytes
        room = describe.pool_bytes - _most(split)
        raised = wanted.prefix_bytes > held
        waits = raised and (wanted.prefix_bytes > room or not may_raise)
        self._waiting = f"preInferBytes stays at {held} until the split has shrunk by as much" if waits else ""
        now = wanted._replace(prefix_bytes=held) if waits else wanted
        return None if now == _values(self.in_force) else now

    async def _send(self, request: LimitsRequest, start_id: str, now_ms: float) -> None:
        try:
            answer = await self._engine.put_limits(request)
        except (Unreachable, ProtocolViolation) as error:
            self._count("failed")
            if start_id == self._start_id:
                self._speechless = isinstance(error, ProtocolViolation)
                self._trouble = f"limits: {error}"[:256]
                self._backoff.failed(now_ms)
            return
        self._count(answer.status.value)
        if start_id != self._start_id:
            return  # it restarted in between; the limits of the new process are asked for anew
        self._unanswered_bytes, self.in_force = 0, answer.limits
        if answer.status is SplitStatus.UNSUPPORTED or (answer.status in _TAKEN and _values(answer.limits) != _values(request)):
            self._refused = _values(request)
            self._trouble = f"limits: the engine does not take them: {answer.reason or 'others are in force'}"[:256]
        elif answer.status in _TAKEN:
            self._conflicts, self._trouble = 0, ""
            self._backoff.reset()
        else:
            self._conflicts += request.revision > 0  # the first write is meant to be refused
            if self._conflicts >= _REFUSED_IN_A_ROW:
                self._trouble = "limits: somebody else keeps changing them"
                self._backoff.failed(now_ms)


def _values(limits: LimitsRequest) -> _Values:
    return _Values(
        slots=limits.pre_infer_slots,
        prefix_bytes=limits.pre_infer_bytes,
        host_bytes=limits.host_bytes,
        ssd_bytes=limits.ssd_bytes,
    )


def _most(split: SplitState) -> int:
    """Bytes that the split may take at this instant: of each side the limit, or what is still above it."""
    emb, kv = max(split.limits.emb_bytes, split.used.emb_bytes), max(split.limits.kv_bytes, split.used.kv_bytes)
    return emb + kv
