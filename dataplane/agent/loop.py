"""The split loop of one engine: observe, estimate, decide, drive, again and again.

Each round is one step of a level-triggered loop: it looks at what is in force and needs nothing from the round before but
estimates and the pace of the move. Faults of the engine end in a freeze with a reason; the loop itself never ends.
"""

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from contract.agent import (
    AgentStatus,
    DecisionsAnswer,
    IdleAnswer,
    Intent,
    IntentAnswer,
    ModelAnswer,
)
from contract.errors import ProtocolViolation, Unreachable
from contract.residency import ResidencyReport
from dataplane.agent import report
from dataplane.agent.alarm import Alarm
from dataplane.agent.decisions import DecisionRing
from dataplane.agent.drive import Driven, Driver, refill_rate
from dataplane.agent.estimate import DEFAULT_MEMORY_MS, Estimators
from dataplane.agent.idle import Idleness
from dataplane.agent.intent import AcceptedIntent, IntentBook, usable_bytes
from dataplane.agent.metrics import AgentMetrics
from dataplane.agent.models import ModelShelf
from dataplane.agent.observe import NoReading, Observer, Reading
from dataplane.agent.offers import Offers
from dataplane.agent.orders import Orders
from dataplane.agent.ports import EnginePort
from dataplane.agent.reasons import Freeze
from dataplane.agent.report import Known, Verdict
from dataplane.agent.residency import ResidencyShelf, load_of
from dataplane.agent.view import blind_observation, observation_of, policy_intent
from dataplane.agent.window import Report, Window
from dataplane.agent.withdraw import Withdrawal
from policies.allocation.strategy import decide
from policies.allocation.types import AllocationIntent, AllocationState, Decision, Observation

log = logging.getLogger("grfleet.agent")

CALM_READINGS = 3  # windows to be trusted after a broken contract before anything moves again
DEFAULT_INTERVAL_MS = 1000  # while no intent was accepted
WATCHED_INTERVAL_MS = 500
"""Longest time between rounds while the engine drains or somebody waits for it to be idle."""
_BOTH_SIDES = frozenset({"emb", "kv"})
_PASSING = frozenset({Freeze.ENGINE_UNREACHABLE, Freeze.STALE_DATA})


class Agent:
    """One agent: the loop and the face that the HTTP server shows.

    Parameters
    ----------
    engine : EnginePort
    intents : IntentBook
    start_id : str
        Names this process; a reader sees by it that sequence numbers started over.
    wall_s, monotonic_s : callable
        Unix seconds, for expiry only; seconds of a clock that never goes back, for everything else.
    memory_ms : float
        Time constant with which the estimators forget old accesses.
    """

    def __init__(
        self,
        *,
        engine: EnginePort,
        intents: IntentBook,
        start_id: str,
        wall_s: Callable[[], float],
        monotonic_s: Callable[[], float],
        memory_ms: float = DEFAULT_MEMORY_MS,
    ) -> None:
        self.decisions = DecisionRing()
        self.metrics = AgentMetrics()
        self._engine = engine
        self._intents = intents
        self._models = ModelShelf()
        self._start_id = start_id
        self._monotonic_s = monotonic_s
        self._observer = Observer(engine)
        self._estimators = Estimators(memory_ms=memory_ms)
        self._driver = Driver(engine)
        self._idleness = Idleness(monotonic_s=monotonic_s)
        self._orders = Orders(
            engine,
            count_limits=lambda status: self.metrics.limits_writes.labels(status=status).inc(),
            drain_began=self._idleness.begin_anew,
        )
        self._window = Window()
        self._residency = ResidencyShelf(engine, monotonic_s=monotonic_s)
        self._withdrawal = Withdrawal(self._residency)
        self._state = AllocationState()
        self._known = Known()
        self._observation: Observation | None = None
        self._translated: tuple[AcceptedIntent, bool, AllocationIntent] | None = None
        self._distrusted: NoReading | None = None
        self._calm_left = 0
        self._read_at_ms: float | None = None
        self._round_at_s = monotonic_s()
        self._alarm = Alarm()
        self._offers = Offers(
            intents=intents,
            models=self._models,
            metrics=self.metrics,
            wall_s=wall_s,
            intent_taken=self._driver.forgive,
            alarm=self._alarm,
        )

    # -- the loop ------------------------------------------------------------------------------------------------------------

    @property
    def interval_ms(self) -> int:
        """Milliseconds between two rounds, from the intent in force; shorter while something waits for the engine."""
        held = self._intents.current
        interval_ms = held.spec.step.interval_ms if held is not None else DEFAULT_INTERVAL_MS
        watched = self._idleness.waiters > 0 or (held is not None and held.spec.draining)
        return min(interval_ms, WATCHED_INTERVAL_MS) if watched else interval_ms

    async def run(self) -> None:
        """Go round for ever; ends only by cancellation. A new intent starts the next round at once."""
        next_at_s = self._monotonic_s()
        try:
            while True:
                await self.round()
                now_s = self._monotonic_s()
                next_at_s = max(next_at_s + self.interval_ms / 1000.0, now_s)
                if await self._alarm.sleep(next_at_s - now_s):
                    next_at_s = self._monotonic_s()  # woken before its time
        finally:
            self._orders.cancel()

    async def round(self) -> None:
        """Do one round; whatever fails in it is logged, reported as InternalError and tried again in the next."""
        started_s = self._monotonic_s()
        try:
            await self._round(started_s * 1000.0)
        except Exception:
            log.exception("round failed")
            self._distrust(NoReading(reason=Freeze.INTERNAL_ERROR, message=""))
            self._known.verdict = report.frozen_verdict(NoReading(reason=Freeze.INTERNAL_ERROR, message=""))
            self._idleness.heard_nothing(unreachable=False)
        self._round_at_s = self._monotonic_s()
        self.metrics.tick_seconds.observe(self._round_at_s - started_s)

    async def _round(self, now_ms: float) -> None:
        reading = await self._observer.read()
        if isinstance(reading, Reading):
            reading = await self._take_in(reading, now_ms)
        if isinstance(reading, NoReading):
            self._lose(reading)
        decision = self._decide(reading, now_ms)
        verdict = report.verdict(reading, decision, distrusted=self._distrusted, calm_left=self._calm_left)
        driven = await self._drive(reading, decision, verdict, now_ms)
        if driven is not None and driven.fault is not None:
            self._lose(driven.fault)
            verdict = report.frozen_verdict(driven.fault)
        if isinstance(reading, Reading) and driven is not None:
            self._orders.step(self._offers.spec, reading, driven.split, split_known=driven.fault is None, now_ms=now_ms)
        self._conclude(reading, decision, verdict, driven)

    async def _take_in(self, reading: Reading, now_ms: float) -> Reading | NoReading:
        """Feed estimators and window with a reading; the samples that belong to it may still turn out bad."""
        waited_ms = now_ms - self._read_at_ms if self._read_at_ms is not None else 0.0
        samples, lost = self._estimators.samples, self._estimators.lost
        try:
            await self._estimators.feed(self._engine, reading, waited_ms=waited_ms)
        except Unreachable as error:
            self._observer.forget_base()
            return NoReading(reason=Freeze.ENGINE_UNREACHABLE, message=str(error))
        except ProtocolViolation as error:
            self._observer.forget_base()
            return NoReading(reason=Freeze.ENGINE_GARBAGE, message=str(error))
        if self._estimators.samples != samples or self._estimators.lost != lost:
            self.metrics.samples.inc(self._estimators.samples - samples)
            self.metrics.samples_lost.inc(self._estimators.lost - lost)
        if reading.restarted:
            self.metrics.engine_starts.inc()
            log.info(
                "adopted an engine process", extra={"engineStartId": reading.now.start_id, "split": reading.now.split.revision}
            )
        if reading.previous is not None and self._calm_left > 0:
            self._calm_left -= 1
        if not reading.standing:
            self._window.add(reading.now)
        self._read_at_ms = now_ms
        self._known.describe, self._known.split = reading.describe, reading.now.split
        self._known.observed = reading.now
        self._known.start_id, self._known.epoch = reading.now.start_id, reading.now.epoch
        self._known.reachable, self._known.trouble = True, ""
        self._idleness.saw(reading.now)
        return reading

    def _lose(self, reading: NoReading) -> None:
        """Note that this round has no figures; what breaks the contract is distrusted for a while, silence is not."""
        self._known.reachable = reading.reason is not Freeze.ENGINE_UNREACHABLE
        self._known.trouble = reading.message
        self._idleness.heard_nothing(unreachable=not self._known.reachable)
        self.metrics.rejected.labels(reason=reading.reason.value).inc()
        if reading.reason not in _PASSING:
            self._distrust(reading)

    def _distrust(self, reading: NoReading) -> None:
        self._distrusted, self._calm_left = reading, CALM_READINGS
        self._observer.forget_base()
        self._window.clear()

    def _decide(self, reading: Reading | NoReading, now_ms: float) -> Decision:
        """Ask the policy; it also sees rounds without figures, and holds then."""
        held = self._intents.current
        if isinstance(reading, Reading):
            resizable = self._driver.resizable and set(reading.describe.resizable) >= _BOTH_SIDES
            self._adopt_goal(reading)
            self._observation = observation = observation_of(
                reading,
                usable_bytes=self._may_use_bytes(reading),
                second_writer=self._driver.second_writer,
                resizable=resizable,
            )
        else:
            observation = blind_observation(
                reading,
                self._observation,
                age_ms=now_ms - self._read_at_ms if self._read_at_ms is not None else None,
                second_writer=self._driver.second_writer,
                resizable=self._driver.resizable,
            )
        started_s = self._monotonic_s()
        view = self._estimators.view()
        blocking = isinstance(reading, Reading) and reading.describe.refill_blocks_serving
        intent = self._policy_intent(held, blocking=blocking)
        decision, self._state = decide(
            observation, view, intent, self._state, now_ms, model=self._models.wanted_by(self._offers.spec)
        )
        self.metrics.decide_seconds.observe(self._monotonic_s() - started_s)
        return decision

    def _policy_intent(self, held: AcceptedIntent | None, *, blocking: bool) -> AllocationIntent | None:
        """The intent in force as the policy takes it, translated once."""
        if held is None:
            return None
        if self._translated is None or self._translated[0] is not held or self._translated[1] is not blocking:
            self._translated = (held, blocking, policy_intent(held.spec, refill_blocking=blocking))
        return self._translated[2]

    def _may_use_bytes(self, reading: Reading) -> int:
        """What both caches may take together: the intent's figure, and beside them room for what is reserved for prefixes."""
        held = self._intents.current
        self._known.cap_bytes = cap = self._orders.cap_bytes(held.spec if held is not None else None, reading)
        return min(usable_bytes(held, pool_bytes=reading.describe.pool_bytes), cap)

    def _adopt_goal(self, reading: Reading) -> None:
        """Take a split that was moved before this agent started as its goal: it stays until the estimates can be trusted.

        Without it a restarted agent would first walk to the fallback share and then back. At revision 0 nobody has moved yet.
        """
        split = reading.now.split
        if reading.restarted and split.revision > 0 and self._state.goal_emb_bytes is None:
            self._state = msgspec.structs.replace(self._state, goal_emb_bytes=float(split.limits.emb_bytes))

    async def _drive(self, reading: Reading | NoReading, decision: Decision, verdict: Verdict, now_ms: float) -> Driven | None:
        """Bring the split towards the target, or only adopt what is in force when nothing may move."""
        if isinstance(reading, NoReading):
            self._withdrawal.lapse(now_ms=now_ms)
            return None
        split, describe = reading.now.split, reading.describe
        target = self._target(reading, decision, now_ms) if verdict.may_drive else None
        if target is None:
            self._withdrawal.lapse(now_ms=now_ms)
        driven = await self._driver.drive(
            split,
            start_id=reading.now.start_id,
            may_use_bytes=decision.inputs.observation.usable_bytes,
            max_change_bytes=describe.max_split_change_bytes or describe.pool_bytes,
            target_emb_bytes=target,
            refill_bytes_per_second=refill_rate(self._offers.spec, reading.describe, decision),
            now_ms=now_ms,
        )
        if target is not None and target != decision.target_emb_bytes:
            driven = msgspec.structs.replace(driven, waits=True)
        self._known.split = driven.split
        for status in driven.statuses:
            self.metrics.writes.labels(status=status).inc()
        return driven

    def _target(self, reading: Reading, decision: Decision, now_ms: float) -> int | None:
        """Where the split may be driven to now, as users that a smaller KV cache loses are withdrawn from gateways first."""
        usable = decision.inputs.observation.usable_bytes
        return self._withdrawal.target(reading, decision, may_use_bytes=usable, now_ms=now_ms)

    def _conclude(self, reading: Reading | NoReading, decision: Decision, verdict: Verdict, driven: Driven | None) -> None:
        """Record the round and show it in logs and counters; status and gauges are read off when somebody asks."""
        before, known = self._known.verdict, self._known
        known.verdict = verdict
        if decision.target_emb_bytes is not None:
            # The pace cuts a long way into steps; what is wanted is its end, or a split half way would look settled.
            on_the_way = self._state.moving and decision.goal_emb_bytes is not None
            known.target_emb_bytes = decision.goal_emb_bytes if on_the_way else decision.target_emb_bytes
        intent = decision.inputs.intent
        forecaster = (intent.strategy.value, intent.learned.model_sha256) if intent is not None else None
        if decision.goal_p99_ms is not None or verdict.frozen or forecaster != known.forecaster:
            # A quiet moment keeps the last forecast. Doubtful figures do not, nor does another strategy or model.
            known.predicted_p99_ms, known.goal_p99_ms = decision.predicted_p99_ms, decision.goal_p99_ms
            known.forecaster = forecaster
        moved = driven is not None and driven.moved
        strategy = report.strategy_of(intent)  # not of one that came while the decision was carried out
        # A dead engine must not wash the useful records out of the ring: silence is recorded when it begins.
        if isinstance(reading, Reading) or verdict.reason != before.reason:
            told = partial(report.record, reading, decision, verdict, driven, strategy=strategy)
            self.decisions.append(told, inputs=decision.inputs)
        self.metrics.decisions.labels(strategy=strategy, reason=verdict.reason).inc()
        if verdict.reason == before.reason and not moved:
            return
        fields = {"reason": verdict.reason, "detail": verdict.message, "strategy": strategy}
        if verdict.reason != before.reason:
            log.log(logging.WARNING if verdict.frozen else logging.INFO, "reason changed", extra=fields)
        if moved and driven is not None:
            limits = driven.split.limits
            log.info("split moved", extra=fields | {"embBytes": limits.emb_bytes, "kvBytes": limits.kv_bytes})

    # -- the face of the HTTP server -------------------------------------------------------------------------------------------

    def offer_intent(self, intent: Intent) -> IntentAnswer:
        """See `Offers.intent`."""
        return self._offers.intent(intent)

    def invalid_intent(self, reason: str) -> IntentAnswer:
        """See `Offers.no_intent`."""
        return self._offers.no_intent(reason)

    def unwanted_model(self, sha256: str) -> ModelAnswer | None:
        """See `Offers.unwanted_model`."""
        return self._offers.unwanted_model(sha256)

    def offer_model(self, sha256: str, data: bytes | None) -> ModelAnswer:
        """See `Offers.model`."""
        return self._offers.model(sha256, data)

    def status(self) -> AgentStatus:
        self._tell_orders()
        held, decisions = self._intents.current, self.decisions.last_sequence
        return report.status(self._known, self._figures(), held, start_id=self._start_id, decisions=decisions)

    def _figures(self) -> Report | None:
        """What the last window measured; None while the engine is silent, stands still, or is not to be trusted yet."""
        fresh = self._known.reachable and self._known.verdict.reason != Freeze.STALE_DATA
        return self._window.report() if fresh and self._calm_left == 0 else None

    def _tell_orders(self) -> None:
        """Note how orders and models stand: calls end and models come between rounds, and idleness grows by itself."""
        known, orders, models = self._known, self._orders, self._models
        known.limits, known.draining = orders.limits, orders.draining
        refusal = models.refusal_of(self._offers.spec)
        known.notes = "; ".join(note for note in (orders.notes, f"model refused, {refusal}" if refusal else "") if note)
        known.idle_seconds = self._idleness.seconds
        model = models.wanted_by(self._offers.spec)
        known.models, known.model_in_force = models.digests, model.sha256 if model is not None else None

    async def residency(self, cursor: int) -> ResidencyReport | None:
        """Whose state on the engine changed after a cursor, see `ResidencyShelf.report`."""
        self._tell_orders()
        load = load_of(self._known, self._window.report(), self._estimators.view().costs)
        return await self._residency.report(cursor, uid=self._intents.uid, load=load)

    async def idle(self, *, after_s: float, deadline_s: float) -> IdleAnswer | None:
        """Wait for an idle engine, see `Idleness.wait`; rounds come faster meanwhile, and the first one at once."""
        self._alarm.ring()
        return await self._idleness.wait(after_s=after_s, deadline_s=deadline_s)

    async def orders_settled(self) -> None:
        """Wait until the call beside the rounds has ended, if one is under way."""
        await self._orders.settled()

    def decisions_after(self, sequence: int, *, limit: int) -> DecisionsAnswer:
        return self.decisions.after(sequence, limit=limit)

    def metrics_text(self) -> bytes:
        """Everything for Prometheus; gauges are set when it asks, a hundred rounds or more after it last did."""
        self._tell_orders()
        report.show(self.metrics, self._known, self._figures() or Report(), self._intents.current)
        return self.metrics.text()

    def unhealthy(self) -> list[str]:
        """Name what a restart of the agent might mend: a loop that no longer goes round."""
        silent_s = self._monotonic_s() - self._round_at_s
        limit_s = max(10.0, 3.0 * self.interval_ms / 1000.0)
        return [f"loop: no round for {silent_s:.0f} s"] if silent_s > limit_s else []

    def unready(self) -> list[str]:
        """Name why the agent cannot do its work now."""
        if self._known.reachable:
            return []
        return [f"engine: {self._known.trouble or 'not observed yet'}"]
