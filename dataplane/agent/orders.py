"""What an intent asks of an engine besides its split: limits of pre-inference and lower tiers, and the word to drain.

Both are carried out beside the rounds, one call at a time; the word to drain goes first.
"""

from collections.abc import Callable

from contract.agent import IntentSpec
from contract.engine import LimitsRequest, SplitState
from dataplane.agent.draining import Drainer
from dataplane.agent.errand import Errand
from dataplane.agent.limits import LimitsKeeper
from dataplane.agent.observe import Reading
from dataplane.agent.ports import EnginePort


class Orders:
    """The orders of one engine.

    Parameters
    ----------
    count_limits
        Called with the engine's word on each write of limits, for a metric.
    drain_began
        Called when the engine has taken the word to drain.
    """

    def __init__(self, engine: EnginePort, *, count_limits: Callable[[str], None], drain_began: Callable[[], None]) -> None:
        self._limits = LimitsKeeper(engine, count=count_limits)
        self._drainer = Drainer(engine, began=drain_began)
        self._errand = Errand()

    @property
    def limits(self) -> LimitsRequest | None:
        """The limits that the engine said it enforces."""
        return self._limits.in_force

    @property
    def draining(self) -> bool:
        """Whether the engine was told to drain."""
        return self._drainer.draining

    @property
    def notes(self) -> str:
        """What keeps an order from being carried out, for people."""
        return "; ".join(note for note in (self._drainer.note, self._limits.note) if note)

    def cap_bytes(self, spec: IntentSpec | None, reading: Reading) -> int:
        """See `LimitsKeeper.cap_bytes`."""
        return self._limits.cap_bytes(spec, reading.describe, reading.now.split)

    def step(self, spec: IntentSpec | None, reading: Reading, split: SplitState, *, split_known: bool, now_ms: float) -> None:
        """Start the call that is due, if any; never waits.

        Parameters
        ----------
        split
            The split in force after this round's writes; `split_known` is False when one of them had no answer.
        """
        if self._errand.busy:
            return
        call = self._drainer.next_call(spec.draining if spec is not None else None, reading.now, now_ms=now_ms)
        if call is None:
            call = self._limits.next_call(spec, reading.describe, split, may_raise=split_known, now_ms=now_ms)
        if call is not None:
            self._errand.start(call)

    async def settled(self) -> None:
        """Wait until the call under way has ended."""
        await self._errand.ended()

    def cancel(self) -> None:
        """Give up the call under way."""
        self._errand.cancel()
