"""Fleets, users and what is known of them, for the tests of the routing kernel."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from policies.routing.types import InstanceFacts, Limits, LoadBound, Override, Residency

NOW_MS = 1_000_000.0
UNBOUND = LoadBound(percent=1000.0, floor=1e9)


def an_instance(number: int, **changes: Any) -> InstanceFacts:
    """An instance that computes a token in 0.05 ms and loads it in 0.01."""
    base: dict[str, Any] = {
        "name": f"rank-{number}",
        "uid": f"uid-{number}",
        "start_id": f"start-{number}",
        "in_flight": 4.0,
        "ms_per_token_recompute": 0.05,
        "ms_per_token_host": 0.01,
        "ms_per_token_ssd": 0.03,
        "emb_overlap": 0.8,
        "ms_per_row": 0.001,
        "rows_per_request": 1000.0,
        "queue_ms": 0.0,
    }
    return InstanceFacts(**(base | changes))


def state_of(user: str, number: int, hbm: int = 1000, **changes: Any) -> Residency:
    """1 000 tokens in HBM, reported just now."""
    base: dict[str, Any] = {
        "user_key": user,
        "instance_uid": f"uid-{number}",
        "start_id": f"start-{number}",
        "kv_tokens_hbm": hbm,
        "seen_ms": NOW_MS,
    }
    return Residency(**(base | changes))


def away(user: str, number: int, *, until_ms: float = NOW_MS + 1000.0) -> Override:
    return Override(user_key=user, instance_uid=f"uid-{number}", saved_ms=0.0, until_ms=until_ms)


@dataclass(frozen=True)
class Case:
    """Arguments of `plan_overrides`."""

    residency: list[Residency]
    facts: list[InstanceFacts]
    homes: dict[str, str]
    limits: Limits
    previous: list[Override] = field(default_factory=list)
    silent: frozenset[str] = frozenset()

    @property
    def slot_owner(self) -> Callable[[str], str | None]:
        return self.homes.get

    @property
    def named(self) -> dict[str, Any]:
        return {
            "residency": self.residency,
            "facts": self.facts,
            "slot_owner": self.slot_owner,
            "limits": self.limits,
            "now_ms": NOW_MS,
            "previous": self.previous,
            "silent": self.silent,
        }

    def place(self, user: str, overrides: "tuple[Override, ...] | list[Override]") -> str | None:
        """Where a user is under a table."""
        return next((each.instance_uid for each in overrides if each.user_key == user), self.homes.get(user))


floats = st.one_of(st.floats(0.0, 100.0), st.just(math.nan))


@st.composite
def instances(draw: st.DrawFn, number: int) -> InstanceFacts:
    return an_instance(
        number,
        ready=draw(st.sampled_from([True, True, True, False])),
        draining=draw(st.sampled_from([False, False, False, True])),
        weight_percent=draw(st.sampled_from([100, 100, 50, 25, 0])),
        in_flight=draw(floats),
        ms_per_token_recompute=draw(st.one_of(st.floats(0.0, 0.1), st.just(math.nan))),
        ms_per_token_host=draw(st.one_of(st.floats(0.0, 0.1), st.just(math.nan))),
        emb_overlap=draw(st.one_of(st.floats(0.0, 1.0), st.just(math.nan))),
        refilling=draw(st.booleans()),
        queue_ms=draw(floats),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Fleets of which anything may be wrong, users with state here and there, and a table in force."""
    count = draw(st.integers(1, 6))
    facts = [draw(instances(number)) for number in range(count)]
    users = [f"user-{number}" for number in range(draw(st.integers(0, 12)))]
    somewhere = st.integers(0, count)  # one number more than there are
    homes = {user: f"uid-{draw(somewhere)}" for user in users}
    residency = [
        state_of(
            user,
            at,
            draw(st.integers(0, 4000)),
            kv_tokens_host=draw(st.integers(0, 1000)),
            seen_ms=NOW_MS - draw(st.sampled_from([0.0, 1000.0, 50_000.0, 400_000.0])),
            speculative=draw(st.booleans()),
            start_id=draw(st.sampled_from([f"start-{at}", f"start-{at}", "another"])),
        )
        for user in users
        for at in draw(st.lists(somewhere, max_size=4))
    ]
    previous = [
        away(user, draw(somewhere), until_ms=NOW_MS + draw(st.floats(-1000.0, 1000.0))) for user in users if draw(st.booleans())
    ]
    limits = Limits(
        most=draw(st.sampled_from([100, 100, 3, 0])),
        margin_ms=draw(st.sampled_from([0.0, 1.0, 20.0])),
        bound=draw(st.sampled_from([UNBOUND, LoadBound(), LoadBound(percent=110.0, floor=0.0)])),
        load_per_user=draw(st.sampled_from([None, 1.0, 0.1])),
    )
    silent = frozenset(fact.uid for fact in facts if draw(st.sampled_from([False, False, True])))
    return Case(residency, facts, homes, limits, previous, silent)
