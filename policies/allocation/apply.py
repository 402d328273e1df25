"""From a target to the next write: shrink one side, see it confirmed, only then grow the other.

A pure state machine over the engine's answers. While a side still uses more than its limit it counts as what it uses, and
nothing grows; a revision is always the one in force plus one, so a lost answer can be asked for again. The agent is the only
writer: foreign revisions are adopted, and when they keep coming it stops with `SecondWriter`.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from policies.allocation.types import SplitInForce

_CONFLICTS = 3
_CONFLICT_WINDOW_MS = 60_000.0


class Answer(StrEnum):
    """Status of the last write, as the engine contract has it; NONE when nothing was sent or no answer came."""

    NONE = "none"
    APPLIED = "applied"
    DEFERRED = "deferred"
    STALE = "stale"
    CONFLICT = "conflict"
    UNSUPPORTED = "unsupported"


class Phase(StrEnum):
    """What the machine is doing."""

    SETTLED = "Settled"
    SHRINKING = "Shrinking"
    CONFIRMING = "Confirming"
    GROWING = "Growing"
    SECOND_WRITER = "SecondWriter"
    UNSUPPORTED = "Unsupported"


class SplitPut(msgspec.Struct, frozen=True, kw_only=True):
    """One write to the engine; `start_id` names the process it is meant for."""

    start_id: str
    revision: int
    emb_bytes: int
    kv_bytes: int
    refill_bytes_per_second: int


class ApplyState(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the machine; start with `ApplyState()`, which adopts whatever is in force.

    Attributes
    ----------
    start_id, revision
        Engine process and revision last seen.
    sent_revision
        Revision of the last write; the only one that may appear without being foreign.
    conflicts_at_ms
        When foreign writes were noticed, youngest last, inside one minute.
    phase
        What the last step did.
    """

    start_id: str = ""
    revision: int = -1
    sent_revision: int = -1
    conflicts_at_ms: tuple[float, ...] = ()
    phase: Phase = Phase.SETTLED

    @property
    def second_writer(self) -> bool:
        """Whether foreign writes have frozen the machine; it thaws after a minute without one."""
        return self.phase is Phase.SECOND_WRITER


def refill_cap(*, link_bytes_per_second: int, max_link_percent: float, max_bytes_per_second: int | None = None) -> int:
    """Return the refill rate allowed, in bytes per second: the share of the link, and never above the absolute limit."""
    share = math.floor(link_bytes_per_second * min(max(max_link_percent, 0.0), 100.0) / 100.0)
    return share if max_bytes_per_second is None else max(min(share, max_bytes_per_second), 0)


def next_put(
    split: SplitInForce,
    *,
    pool_bytes: int,
    target_emb_bytes: int | None,
    refill_bytes_per_second: int,
    answer: Answer,
    state: ApplyState,
    now_ms: float,
    max_change_bytes: int | None = None,
) -> tuple[SplitPut | None, ApplyState]:
    """Return the next write (None: nothing to do or to wait) and the new state.

    Parameters
    ----------
    split
        The split in force: from the last answer, or from an observation younger than it.
    pool_bytes
        What both limits together may take, at any instant.
    target_emb_bytes
        Decision target; None adopts and sends nothing.
    refill_bytes_per_second
        Result of `refill_cap`.
    answer
        Status of the last write, `Answer.NONE` if there was none since the last call.
    state
        What the previous call returned.
    now_ms
        A monotone time.
    max_change_bytes
        Greatest change of one limit that the engine takes in one write (`maxSplitChangeBytes`); None: any.

    Notes
    -----
    With e, k the limits and E, K the target: while anything is above E or K, write (min(e, E), min(k, K)), which grows
    nothing; when the engine has caught up (used <= limits), write (E, K). Both writes keep the sum within the pool, and
    the second one happens only when limits and use agree.
    """
    state = _adopt(split, answer, state, now_ms)
    if state.phase in (Phase.SECOND_WRITER, Phase.UNSUPPORTED) or target_emb_bytes is None:
        return None, state
    emb = min(max(target_emb_bytes, 0), pool_bytes)
    kv = pool_bytes - emb
    reach = pool_bytes if max_change_bytes is None else max_change_bytes
    if split.emb_bytes > emb or split.kv_bytes > kv:
        phase = Phase.SHRINKING
        limits = (max(min(split.emb_bytes, emb), split.emb_bytes - reach), max(min(split.kv_bytes, kv), split.kv_bytes - reach))
    elif split.deferring:
        return None, msgspec.structs.replace(state, phase=Phase.CONFIRMING)
    elif split.emb_bytes < emb or split.kv_bytes < kv:
        phase = Phase.GROWING
        limits = (min(emb, split.emb_bytes + reach), min(kv, split.kv_bytes + reach))
    else:
        return None, msgspec.structs.replace(state, phase=Phase.SETTLED)
    put = SplitPut(
        start_id=split.start_id,
        revision=split.revision + 1,
        emb_bytes=limits[0],
        kv_bytes=limits[1],
        refill_bytes_per_second=refill_bytes_per_second,
    )
    return put, msgspec.structs.replace(state, phase=phase, sent_revision=put.revision)


def _adopt(split: SplitInForce, answer: Answer, state: ApplyState, now_ms: float) -> ApplyState:
    """Take over the split in force; count foreign writes, forget all of it when the process is a new one."""
    if split.start_id != state.start_id:
        # First sight of this process. Even so a refusal says what it says about the process that answered.
        phase = Phase.UNSUPPORTED if answer is Answer.UNSUPPORTED else Phase.SETTLED
        return ApplyState(start_id=split.start_id, revision=split.revision, phase=phase)
    if answer is Answer.UNSUPPORTED or state.phase is Phase.UNSUPPORTED:
        return msgspec.structs.replace(state, revision=split.revision, phase=Phase.UNSUPPORTED)
    foreign = answer in (Answer.CONFLICT, Answer.STALE) or split.revision not in (state.revision, state.sent_revision)
    recent = state.conflicts_at_ms
    if recent:
        recent = tuple(t for t in recent if now_ms - t < _CONFLICT_WINDOW_MS)
    if foreign:
        recent = (*recent, now_ms)[-_CONFLICTS:]
    was_frozen = state.second_writer
    frozen = len(recent) >= _CONFLICTS or (was_frozen and bool(recent))
    phase = Phase.SECOND_WRITER if frozen else Phase.SETTLED if was_frozen else state.phase
    return msgspec.structs.replace(state, revision=split.revision, conflicts_at_ms=recent, phase=phase)
