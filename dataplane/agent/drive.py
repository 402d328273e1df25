"""Carries a target to the engine: shrink, confirm, grow, one revision after the other, never above what may be used.

The order of the writes is `policies.allocation.apply`'s; this module sends them and distrusts the answers. A lost answer costs
nothing: the next observation shows what is in force, and the same revision with the same value gives the same answer.
"""

import msgspec

from contract.agent import IntentSpec
from contract.engine import Describe, SplitRequest, SplitState
from contract.errors import ProtocolViolation, Unreachable
from dataplane.agent.observe import NoReading
from dataplane.agent.ports import EnginePort
from dataplane.agent.reasons import Freeze
from dataplane.agent.view import split_in_force
from policies.allocation.apply import Answer, ApplyState, Phase, SplitPut, next_put, refill_cap
from policies.allocation.types import Decision

MAX_WRITES = 3


class Driven(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of writes did: the split in force afterwards, the answers, and what went wrong.

    `waits` says that the target was held back until gateways have heard of it.
    """

    split: SplitState
    statuses: list[str] = []
    fault: NoReading | None = None
    waits: bool = False

    @property
    def moved(self) -> bool:
        """Whether the engine took at least one change in."""
        return Answer.APPLIED in self.statuses or Answer.DEFERRED in self.statuses


class Driver:
    """The one writer of one engine's split; remembers nothing that the engine does not answer."""

    def __init__(self, engine: EnginePort) -> None:
        self._engine = engine
        self._state = ApplyState()
        self._answer = Answer.NONE

    @property
    def phase(self) -> Phase:
        return self._state.phase

    @property
    def second_writer(self) -> bool:
        """Whether foreign writes keep coming; ends a minute after the last one, or with `forgive`."""
        return self._state.second_writer

    @property
    def resizable(self) -> bool:
        """False once this engine process answered `unsupported`, until it is a new one or `forgive` is called."""
        return self._state.phase is not Phase.UNSUPPORTED

    def forgive(self) -> None:
        """Start over with what is in force; a new intent is a person's word that it may be tried again."""
        self._state, self._answer = ApplyState(), Answer.NONE

    async def drive(
        self,
        split: SplitState,
        *,
        start_id: str,
        may_use_bytes: int,
        max_change_bytes: int,
        target_emb_bytes: int | None,
        refill_bytes_per_second: int,
        now_ms: float,
    ) -> Driven:
        """Send what the target needs now; with a target of None only adopt the split in force.

        Parameters
        ----------
        split, start_id
            As the youngest observation has them.
        may_use_bytes : int
            What both limits together may take.
        max_change_bytes : int
            Greatest change of one limit that the engine takes in one write.
        now_ms : float
            The agent's monotone clock.
        """
        statuses: list[str] = []
        for _ in range(MAX_WRITES + 1):
            put, self._state = next_put(
                split_in_force(split, start_id=start_id),
                pool_bytes=may_use_bytes,
                target_emb_bytes=target_emb_bytes if len(statuses) < MAX_WRITES else None,
                refill_bytes_per_second=refill_bytes_per_second,
                answer=self._answer,
                state=self._state,
                now_ms=now_ms,
                max_change_bytes=max_change_bytes,
            )
            self._answer = Answer.NONE
            if put is None and target_emb_bytes is not None:
                put = self._lower_refill(split, start_id=start_id, cap=refill_bytes_per_second)
            if put is None:
                break
            try:
                answered = await self._engine.put_split(_request(put))
            except Unreachable as error:
                return Driven(split=split, statuses=statuses, fault=_fault(Freeze.ENGINE_UNREACHABLE, str(error)))
            except ProtocolViolation as error:
                return Driven(split=split, statuses=statuses, fault=_fault(Freeze.ENGINE_GARBAGE, str(error)))
            statuses.append(answered.status.value)
            if answered.start_id != start_id:
                break  # it restarted in between; the next reading adopts the new process
            limits = answered.split.limits
            if limits.emb_bytes + limits.kv_bytes > max(may_use_bytes, split.limits.emb_bytes + split.limits.kv_bytes):
                return Driven(split=split, statuses=statuses, fault=_fault(Freeze.LIMITS_ABOVE_POOL, "in the answer to a write"))
            split, self._answer = answered.split, Answer(answered.status.value)
            if self._answer is not Answer.APPLIED:
                target_emb_bytes = None  # adopt what is in force; the next round decides again
        return Driven(split=split, statuses=statuses)

    def _lower_refill(self, split: SplitState, *, start_id: str, cap: int) -> SplitPut | None:
        """Return a write that only lowers the refill rate, when the one in force is above a cap that became smaller.

        A cap that rises takes effect with the next move; nothing is owed before.
        """
        if self._state.phase is not Phase.SETTLED or split.refill_bytes_per_second <= cap:
            return None
        put = SplitPut(
            start_id=start_id,
            revision=split.revision + 1,
            emb_bytes=split.limits.emb_bytes,
            kv_bytes=split.limits.kv_bytes,
            refill_bytes_per_second=cap,
        )
        self._state = msgspec.structs.replace(self._state, sent_revision=put.revision)
        return put


def _request(put: SplitPut) -> SplitRequest:
    return SplitRequest(
        start_id=put.start_id,
        revision=put.revision,
        emb_bytes=put.emb_bytes,
        kv_bytes=put.kv_bytes,
        refill_bytes_per_second=put.refill_bytes_per_second,
    )


def _fault(reason: Freeze, message: str) -> NoReading:
    return NoReading(reason=reason, message=message[:1024])


def refill_rate(spec: IntentSpec | None, describe: Describe, decision: Decision) -> int:
    """Bytes a second at which a refill may load: what the intent allows, less where the decision asks for calm; 0 without one."""
    if spec is None:
        return 0
    calmer = decision.refill_link_percent if decision.refill_link_percent is not None else 100.0
    return refill_cap(
        link_bytes_per_second=describe.link_bytes_per_second,
        max_link_percent=min(float(spec.refill.max_link_percent), calmer),
        max_bytes_per_second=spec.refill.max_bytes_per_second,
    )
