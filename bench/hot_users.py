"""One round of a gateway over 100 000 hot users: reports decoded and merged, moves weighed, and the bytes that this takes.

Residents of 32 instances, with the reports that their agents would send, and no process but this one. The baseline of a round is
the same round when every user is weighed anew, which is what happens when instances come or go; times are of the processor.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bench.report import Result, publish, single, summarise
from contract.keys import SLOTS, slot_of
from contract.residency import (
    InstanceLoad,
    OverrideTable,
    ResidencyReport,
    UserState,
    decode_report,
    pack_overrides,
    unpack_overrides,
)
from contract.table import InstanceState, TableInstance
from dataplane.agent.residency import KEPT
from dataplane.hot_users.residents import Chosen, Residents

USERS, INSTANCES, CHANGES = 100_000, 32, 600
PERIOD_MS = 2_000.0
GOAL_S = 1.0
AWAY = {"1 in 20 away from home": 0.05, "all away from home": 1.0}
LOAD = InstanceLoad(
    reachable=True, queue=2, in_flight=3, service_ms=20.0, emb_hit_percent=80.0, rows_per_request=3000.0, ms_per_row=0.001,
    ms_per_token=0.02,
)  # fmt: skip


@dataclass
class Fleet:
    """Residents, and where the state of each user lies."""

    residents: Residents
    states: list[list[UserState]]
    now_ms: float = 0.0
    cursor: int = 1

    def bodies(self, most: int) -> list[tuple[str, bytes]]:
        """What each agent answers when so many of its users changed; the first time, reports of everything."""
        since, self.cursor = (self.cursor if self.cursor > 1 else 0), self.cursor + 1
        reports = [
            (
                f"uid-{number}",
                ResidencyReport(
                    uid=f"uid-{number}",
                    start_id="s",
                    generation=0,
                    since=since,
                    cursor=self.cursor,
                    users=states[:most],
                    load=LOAD,
                ),
            )
            for number, states in enumerate(self.states)
        ]
        return [(uid, msgspec.json.encode(report)) for uid, report in reports]

    def merge(self, bodies: Sequence[tuple[str, bytes]]) -> float:
        """Processor seconds for taking some reports in."""
        self.now_ms += PERIOD_MS
        start = time.process_time()
        for uid, body in bodies:
            self.residents.heard(uid, decode_report(body), now_ms=self.now_ms)
        return time.process_time() - start

    def weigh(self) -> tuple[float, Chosen]:
        """Processor seconds for choosing, and what was chosen."""
        start = time.process_time()
        chosen = self.residents.choose(now_ms=self.now_ms)
        return time.process_time() - start, chosen


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    rounds = 3 if quick else 9
    results = [figure for name, away in AWAY.items() for figure in _figures(name, away, rounds=rounds, seed=seed)]
    publish("hot-users", results, seed=seed, quick=quick, as_json=as_json, notes=_NOTES)


_NOTES = (
    f"{USERS} users, {INSTANCES} instances; in a round {CHANGES} users of each instance have changed. Processor time."
    " Baseline of a round: the round in which all users are weighed anew."
)


def _fleet(away: float, *, seed: int) -> Fleet:
    rng = random.Random(seed)
    states: list[list[UserState]] = [[] for _ in range(INSTANCES)]
    for key in (f"{rng.getrandbits(128):032x}" for _ in range(USERS)):
        at = slot_of(key) % INSTANCES
        if rng.random() < away:
            at = (at + 1 + rng.randrange(INSTANCES - 1)) % INSTANCES
        states[at].append(UserState(key=key, tokens_hbm=rng.randrange(200, 4000), age_ms=rng.randrange(20_000) / 10.0))
    residents = Residents()
    rows = [
        TableInstance(name=f"i-{n}", uid=f"uid-{n}", address=f"10.0.0.{n}:9000", weight_percent=100, state=InstanceState.READY)
        for n in range(INSTANCES)
    ]
    residents.follow(rows, [slot % INSTANCES for slot in range(SLOTS)])
    return Fleet(residents, states)


def _figures(name: str, away: float, *, rounds: int, seed: int) -> list[Result]:
    fleet = _fleet(away, seed=seed)
    first = fleet.bodies(max(map(len, fleet.states)))
    merged_s = fleet.merge(first)
    weighed_s, chosen = fleet.weigh()
    whole_s = merged_s + weighed_s
    times, size = [], 0
    for _ in range(rounds):
        bodies = fleet.bodies(CHANGES)
        size = sum(len(body) for _, body in bodies)
        merged_s = fleet.merge(bodies)
        times.append(merged_s + fleet.weigh()[0])
    packed = msgspec.json.encode(pack_overrides(chosen.users, for_ms=1.0))
    start = time.process_time()
    unpack_overrides(msgspec.json.decode(packed, type=OverrideTable))
    unpacked_s = time.process_time() - start
    return [
        summarise(f"a round, {name}", times, unit="s", baseline=whole_s, goal=GOAL_S),
        single(f"first round, everything new, {name}", whole_s, "s"),
        single(f"overrides, {name}", len(chosen.users), "users"),
        single(f"reports of a round, {name}", size / 1e6, "MB"),
        single(f"an agent's first report, {name}", _first_report(fleet) / 1e3, "kB"),
        single(f"overrides as clients read them, {name}", len(packed) / 1e6, "MB"),
        single(f"a client takes them in, {name}", unpacked_s, "s"),
    ]


def _first_report(fleet: Fleet) -> int:
    report = ResidencyReport(start_id="s", generation=0, since=0, cursor=1, users=fleet.states[0][:KEPT], load=LOAD)
    return len(msgspec.json.encode(report))
