"""Before a KV cache shrinks, gateways hear which users it will lose: the agent claims them no more, and waits a moment.

A move is told a few seconds of its pace ahead, so that it waits once, at its begin, and then goes on at its pace. Only moves for
the sake of speed wait, and only while a gateway listens: what is ordered, what gets out of harm's way, and what must fit into
less memory is told and goes at once. Afterwards the engine's own word counts again.
"""

from dataplane.agent.observe import Reading
from dataplane.agent.residency import Bound, ResidencyShelf
from policies.allocation.recovery import BLOCKING_PERCENT_PER_SECOND, Phase
from policies.allocation.types import AllocationIntent, Clip, Decision, Layer, Reason, Strategy

HOLD_MS = 2500.0
"""From the word to the write: gateways ask every two seconds, and take some tenths to weigh and write."""
LISTENS_MS = 5000.0
"""A gateway that has not asked for so long is waited for no more."""
STANDS_MS = 30_000.0
"""Of a move that is held up on its way, what was told stands so long."""
ORDERED_MS = 60_000.0
"""After another strategy or model was ordered nothing waits for so long: it may be the word that stops a harmful one."""
_FOR_SPEED = frozenset({Layer.HILL_CLIMB, Layer.ANCHOR, Layer.BASE, Layer.RESIDUAL, Layer.TWO_POOL_ARC})
_OUT_OF_HARM = frozenset({Reason.OUT_OF_DISTRIBUTION, Reason.MODEL_MISSING})


class Withdrawal:
    """How far the KV cache of one engine may shrink, as gateways have been told.

    All is counted in EMB bytes, as targets are: a larger EMB is a smaller KV.

    Parameters
    ----------
    shelf
        Which claims no more than it is told to.
    """

    def __init__(self, shelf: ResidencyShelf) -> None:
        self._shelf = shelf
        self._told_emb_bytes = self._open_emb_bytes = 0
        self._told_ms = 0.0
        self._order: tuple[Strategy, str | None] | None = None
        self._ordered_ms: float | None = None

    def end(self) -> None:
        """Take back what was told: the engine's own word counts."""
        self._told_emb_bytes = self._open_emb_bytes = 0
        self._shelf.bound_to(None)

    def lapse(self, *, now_ms: float) -> None:
        """Note a round in which nothing may move: what was told stands, but not for ever."""
        if self._told_emb_bytes and now_ms - self._told_ms >= STANDS_MS:
            self.end()

    def target(self, reading: Reading, decision: Decision, *, may_use_bytes: int, now_ms: float) -> int | None:
        """Tell what the decision makes the engine drop, and return the target (EMB bytes) to which it may be driven now.

        Parameters
        ----------
        may_use_bytes : int
            What both limits together may take.
        now_ms : float
            The agent's monotone clock.
        """
        wanted, intent, split = decision.target_emb_bytes, decision.inputs.intent, reading.now.split
        base = may_use_bytes - split.limits.kv_bytes
        if wanted is None or intent is None:
            self.lapse(now_ms=now_ms)
            return wanted
        ordered = self._newly_ordered(intent, now_ms)
        if decision.layer is Layer.HOLD and self._told_emb_bytes > base:
            self.lapse(now_ms=now_ms)
            return wanted
        if wanted <= base and split.used.kv_bytes <= split.limits.kv_bytes:
            if Clip.SLEW in decision.clips and (decision.goal_emb_bytes or 0) > base:
                self.lapse(now_ms=now_ms)  # its pace has not earned the next granule yet: it goes on to shrink
            else:
                self.end()
            return wanted
        granule = reading.describe.granule_bytes
        goal = max(wanted, decision.goal_emb_bytes or 0)
        furthest = -(-(base + _ahead_bytes(intent, may_use_bytes)) // granule) * granule
        self._tell(min(goal, furthest), goal=goal, base=base, now_ms=now_ms)
        per_token = reading.describe.kv_bytes_per_token
        told = Bound(may_use_bytes - self._told_emb_bytes, split.used.kv_bytes, per_token) if per_token > 0 else None
        self._shelf.bound_to(told)
        evicts = split.used.kv_bytes > may_use_bytes - wanted
        if ordered or not evicts or not _may_wait(decision, intent) or base < split.limits.emb_bytes:
            return wanted
        if not self._shelf.heard_within(LISTENS_MS / 1000.0):
            return wanted
        return min(wanted, max(self._open_emb_bytes // granule * granule, split.limits.emb_bytes))

    def _tell(self, wanted: int, *, goal: int, base: int, now_ms: float) -> None:
        """Go on telling: what was told long enough ago is open, what the goal needs no more is taken back."""
        told = min(self._told_emb_bytes, goal)
        if now_ms - self._told_ms >= HOLD_MS:
            self._open_emb_bytes = told
        self._open_emb_bytes = max(min(self._open_emb_bytes, told), base)
        if told <= self._open_emb_bytes < wanted:
            told, self._told_ms = wanted, now_ms
        self._told_emb_bytes = max(told, base)

    def _newly_ordered(self, intent: AllocationIntent, now_ms: float) -> bool:
        order = (intent.strategy, intent.learned.model_sha256)
        if self._order not in (None, order):
            self._ordered_ms = now_ms
        self._order = order
        return self._ordered_ms is not None and now_ms - self._ordered_ms < ORDERED_MS


def _ahead_bytes(intent: AllocationIntent, usable_bytes: int) -> int:
    """How far a move gets in the time of two holds and an interval: less, and it would have to stop and wait on its way."""
    per_second = intent.step.max_percent_per_second
    if intent.refill_blocking:
        per_second = min(per_second, BLOCKING_PERCENT_PER_SECOND)
    return round(per_second * usable_bytes / 100.0 * (2.0 * HOLD_MS + intent.step.interval_ms) / 1000.0)


def _may_wait(decision: Decision, intent: AllocationIntent) -> bool:
    """Whether a move is for the sake of speed only."""
    ordered = intent.strategy is Strategy.STATIC or decision.layer not in _FOR_SPEED
    return not ordered and decision.phase is Phase.CALM and decision.reason not in _OUT_OF_HARM
