"""A pool with its instances and agents in virtual time, for the tests of the rollout: both halves of the loop, no API server.

Each turn is one reporting window of ten seconds: every agent says what it measured, the half that is keyed by pool takes its
step, and every instance gets the intent that it may have. Objects pass through JSON, as on their way to an API server.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loop_objects import agent_status, at, condition_item, instance_object, pool_object

from controllers.agent_book import AgentBook
from controllers.allocation.intent import wanted_intent
from controllers.allocation.observe import PoolView
from controllers.allocation.rollout import permitted_intent
from controllers.allocation.rollout_plan import plan_rollout
from controllers.allocation.rollup import decide_rollup
from controllers.allocation.trial import Trial
from controllers.lookup import Found, Lookup, NotFound
from controllers.model_lookup import ModelFound
from crds import GRInstance, GRServingPool, HBMPolicySpec
from crds.instance import ModelRef, PolicySource

TURN_SECONDS = 10.0
SHA = {"a": "a" * 64, "b": "b" * 64}
SAFE: dict[str, Any] = {"strategy": "MissRatioCurve"}
CLIMB: dict[str, Any] = {"strategy": "HillClimb"}


def learned(model: str = "a", **changes: Any) -> dict[str, Any]:
    """A Learned policy that acts."""
    return {"strategy": "Learned", "enforcement": "Active", "learned": {"model": model}, **changes}


@dataclass
class World:
    """See the module. `factor` says how much longer the P99 is under an intent than it would be otherwise; `quiet` and `deaf`
    name instances without traffic, and instances whose agents go on with the intent that they have; of a phase in `lost` the
    first write does not arrive."""

    count: int = 8
    factor: Callable[[dict[str, Any]], float] = field(default=lambda intent: 1.0)
    noise: float = 0.08
    requests_per_second: float = 200.0
    seed: int = 1
    slo_percent: Callable[[dict[str, Any]], float] = field(default=lambda intent: 99.6)
    quiet: set[str] = field(default_factory=set)
    deaf: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.pool = pool_object()
        self.instances: dict[str, dict[str, Any]] = {}
        self.levels: dict[str, float] = {}
        self.taken: dict[str, tuple[dict[str, Any], int]] = {}
        self.policy: Lookup[HBMPolicySpec] = NotFound(name="mine", namespace="team")
        self.model: ModelFound | None = None
        self.named: ModelFound | None = None  # what the policy names, whether or not it may run
        self.generation = 0
        self.seconds = 0.0
        self.events: list[tuple[str, str]] = []
        self.writes: list[float] = []
        self.born = 0
        self.lead_anew()
        for _ in range(self.count):
            self.join()

    # -- what people and clusters do -------------------------------------------------------------------------------------

    def ask(self, spec: dict[str, Any]) -> None:
        """Write the policy."""
        self.generation += 1
        parsed = HBMPolicySpec.model_validate(spec)
        self.policy = Found(spec=parsed, name="mine", namespace="team", generation=self.generation, source=PolicySource.POOL)
        name = parsed.learned.model
        ref = ModelRef(name=name, sha256=SHA[name], feature_spec="split-features-1") if name else None
        self.model = self.named = ModelFound(ref=ref, namespace="team") if ref is not None else None

    def delete_policy(self) -> None:
        self.policy, self.model, self.named = NotFound(name="mine", namespace="team"), None, None

    def pause(self, paused: bool = True) -> None:
        self.pool["spec"]["paused"] = paused
        self.pool["metadata"]["generation"] += 1

    def join(self) -> str:
        name = f"pool-{self.born}"
        self.born += 1
        self.instances[name] = instance_object(name, self.pool)
        self.levels[name] = math.exp(self.rng.gauss(0.0, 0.15))
        return name

    def leave(self, name: str) -> None:
        del self.instances[name]
        self.book.forget(f"uid-{name}")

    def lead_anew(self) -> None:
        """Another process leads from now on: everything that stood in memory is gone."""
        self.book = AgentBook()
        self.trial = Trial(self.book.windows)

    # -- time ----------------------------------------------------------------------------------------------------------------

    def turn(self, times: int = 1) -> None:
        """Let so many windows pass."""
        for _ in range(times):
            self.seconds += TURN_SECONDS
            common = math.exp(self.rng.gauss(0.0, 0.1))
            for name in self.instances:
                self._say(name, common)
            self.step()

    def step(self) -> None:
        """Both halves of the loop until nothing changes any more, without time passing."""
        for _ in range(4):
            before = json.dumps([self.pool, self.instances])
            self._write_intents()
            self._take_step()
            if json.dumps([self.pool, self.instances]) == before:
                return

    def until(self, phase: str, *, most: int = 300) -> int:
        """Turn until the rollout is in that phase; returns how many turns it took."""
        for turns in range(most):
            if self.phase == phase:
                return turns
            self.turn()
        raise AssertionError(f"no {phase} within {most} turns: {self.progress}")

    def _say(self, name: str, common: float) -> None:
        instance = self.instances[name]
        intent = instance["spec"].get("intent")
        if intent is None:
            return
        if name not in self.deaf:
            self.taken[name] = (intent, instance["metadata"]["generation"])
        intent, generation = self.taken[name]
        model = (intent.get("modelRef") or {}).get("sha256")
        p99 = 40.0 * self.levels[name] * common * self.factor(intent) * math.exp(self.rng.gauss(0.0, self.noise))
        status = agent_status(
            uid=f"uid-{name}",
            generation=generation,
            strategy_in_force=intent["strategy"],
            model_in_force=model,
            p99_ms=p99,
            slo_percent=min(100.0, max(0.0, self.slo_percent(intent) + self.rng.gauss(0.0, 0.05))),
            requests_per_second=0.5 if name in self.quiet else self.requests_per_second,
        )
        self.book.note(f"uid-{name}", status, now_s=self.seconds + self.rng.uniform(0.0, 1.0))
        instance["status"] = {
            "agent": {"reachable": True},
            "conditions": [
                condition_item("PolicyHealthy", "True", "StrategyActive", generation=instance["metadata"]["generation"]),
                condition_item("SplitSettled", "True", "Settled", generation=instance["metadata"]["generation"]),
            ],
        }

    def _write_intents(self) -> None:
        pool = GRServingPool.parse(self.pool)
        for stored in self.instances.values():
            intent = stored["spec"].get("intent")
            wanted = wanted_intent(pool, GRInstance.parse(stored), intent, self.policy, self.model)
            allowed = permitted_intent(pool, stored, wanted)
            if allowed is not None and allowed != intent:
                stored["spec"]["intent"] = json.loads(json.dumps(dict(allowed)))
                stored["metadata"]["generation"] += 1

    def _take_step(self) -> None:
        view = PoolView(
            pool=GRServingPool.parse(self.pool),
            stored=self.pool,
            policy=self.policy,
            instances=tuple((each, GRInstance.parse(each)) for each in self.instances.values()),
            model=self.model,
        )
        now = at(self.seconds)
        plan = decide_rollup(view, now, plan_rollout(view, self.trial, now=now, now_s=self.seconds))
        if plan.status is not None:
            phase = (plan.status.get("rollout") or {}).get("phase")
            if phase in self.lost:
                self.lost.remove(phase)
                return
            self.pool["status"] = json.loads(json.dumps(dict(plan.status)))
            self.writes.append(self.seconds)
            self.events += [(each.reason, each.note) for each in plan.announce]

    # -- what is there ---------------------------------------------------------------------------------------------------------

    @property
    def rollout(self) -> dict[str, Any]:
        return (self.pool.get("status") or {}).get("rollout") or {}

    @property
    def phase(self) -> str:
        return str(self.rollout.get("phase", ""))

    @property
    def progress(self) -> dict[str, Any]:
        """The condition RolloutProgressing."""
        items = (self.pool.get("status") or {}).get("conditions") or []
        return next((item for item in items if item["type"] == "RolloutProgressing"), {})

    @property
    def healthy(self) -> dict[str, Any]:
        items = (self.pool.get("status") or {}).get("conditions") or []
        return next((item for item in items if item["type"] == "PolicyHealthy"), {})

    @property
    def canaries(self) -> list[str]:
        return [member["name"] for member in self.rollout.get("canaries") or ()]

    def strategies(self) -> dict[str, str]:
        """What each instance is told, with the model where one is named."""
        found = {}
        for name, stored in self.instances.items():
            intent = stored["spec"].get("intent") or {}
            model = (intent.get("modelRef") or {}).get("name")
            shadow = "Shadow " if intent.get("enforcement") == "Shadow" else ""
            found[name] = shadow + str(intent.get("strategy")) + (f"/{model}" if model else "")
        return found

    def reasons(self) -> list[str]:
        """Reasons of the Events of the rollout, in order."""
        own = {
            "Measuring",
            "CanarySoaking",
            "SoakExtended",
            "Complete",
            "Inconclusive",
            "RolledBack",
            "Withdrawn",
            "RolloutEnded",
        }
        return [reason for reason, _ in self.events if reason in own]


def harmful(charge: str, factor: float) -> Any:
    """The P99 under an intent whose strategy has this name is so many times as long."""
    return lambda intent: factor if intent["strategy"] == charge and intent["enforcement"] == "Active" else 1.0


def running(world: World, spec: dict[str, Any] = SAFE, *, turns: int = 40) -> World:
    """The pool has run under this policy for a while."""
    world.ask(spec)
    world.step()
    world.turn(turns)
    return world
