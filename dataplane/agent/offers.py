"""What is offered to an agent from outside, intents and models: judged, counted and logged; what is taken starts a round.

The books decide, and the loop looks into them when it goes round; nothing here waits for it.
"""

import logging
from collections.abc import Callable

from contract.agent import Intent, IntentAnswer, IntentSpec, IntentStatus, ModelAnswer, ModelStatus
from dataplane.agent.alarm import Alarm
from dataplane.agent.intent import IntentBook
from dataplane.agent.metrics import AgentMetrics
from dataplane.agent.models import ModelShelf

log = logging.getLogger("grfleet.agent")


class Offers:
    """Takes offers for one agent.

    Parameters
    ----------
    wall_s : callable
        Unix seconds, for expiry.
    intent_taken : callable
        Called for each intent that is accepted.
    alarm : Alarm
        Starts the next round.
    """

    def __init__(
        self,
        *,
        intents: IntentBook,
        models: ModelShelf,
        metrics: AgentMetrics,
        wall_s: Callable[[], float],
        intent_taken: Callable[[], None],
        alarm: Alarm,
    ) -> None:
        self._intents, self._models, self._metrics = intents, models, metrics
        self._wall_s, self._intent_taken, self._alarm = wall_s, intent_taken, alarm

    @property
    def spec(self) -> IntentSpec | None:
        """What the intent in force orders."""
        return self._intents.current.spec if self._intents.current is not None else None

    def intent(self, intent: Intent) -> IntentAnswer:
        """Judge an intent; an accepted one takes effect in the next round, which starts at once."""
        answer = self._intents.offer(intent, now_s=self._wall_s())
        self._metrics.intents.labels(status=answer.status.value).inc()
        if answer.status is IntentStatus.ACCEPTED:
            log.info("intent accepted", extra={"uid": answer.uid, "generation": answer.generation})
            self._intent_taken()
            self._models.named_by(self.spec)
            self._alarm.ring()
        elif answer.status is not IntentStatus.UNCHANGED:
            log.warning("intent refused", extra={"verdict": answer.status.value, "why": answer.reason})
        return answer

    def no_intent(self, reason: str) -> IntentAnswer:
        """Return the verdict on a body that is not an intent at all."""
        self._metrics.intents.labels(status=IntentStatus.INVALID.value).inc()
        held = self._intents.current
        return IntentAnswer(
            status=IntentStatus.INVALID,
            uid=held.uid if held else "",
            generation=held.generation if held else 0,
            reason=reason[:1024],
        )

    def unwanted_model(self, sha256: str) -> ModelAnswer | None:
        """The answer to an offer of a model that needs no bytes, see `ModelShelf.unwanted`."""
        answer = self._models.unwanted(sha256, self.spec)
        return self._noted(sha256, answer) if answer is not None else None

    def model(self, sha256: str, data: bytes | None) -> ModelAnswer:
        """Judge the bytes of a model (None: too many); one that is taken decides in the next round, which starts at once."""
        if data is None:
            return self._noted(sha256, self._models.too_large(sha256))
        return self._noted(sha256, self._models.offer(sha256, data, self.spec))

    def _noted(self, sha256: str, answer: ModelAnswer) -> ModelAnswer:
        self._metrics.models.labels(status=answer.status.value).inc()
        if answer.status is ModelStatus.HELD:
            log.info("model taken", extra={"sha256": sha256})
            self._alarm.ring()
        elif answer.status is not ModelStatus.UNCHANGED:
            log.warning("model refused", extra={"sha256": sha256, "verdict": answer.reason, "why": answer.message})
        return answer
