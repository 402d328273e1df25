"""Runs of the allocation study: an episode under each row, the figures of each kept by what they depend on.

A figure's name is a SHA-256 over the episode, the row, the model and the code that can change it (without comments and
docstrings), so that a run that was killed goes on where it was, and one after a change of one layer repeats only what that layer
touches. All rows of an episode share log, seed and the users' curves; nothing else.
"""

import ast
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import allocator_rows as rows
from bench import allocator_site as site
from bench.allocator_rows import ROWS, Agents, Plan
from bench.allocator_site import FEWER, INSTANCES, START_UP_S, WINDOW_S, Episode
from policies.allocation.model_file import TrainedModel, read_model
from policies.allocation.path import kernel
from simulator.fleet.allocation import UserCurves
from simulator.fleet.config import RefillMode
from simulator.fleet.policies import SplitPolicy
from simulator.fleet.result import FleetResult
from simulator.fleet.run import simulate
from simulator.oracle.run import SPLITS, split_bytes
from simulator.request_log import RequestLog

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "out" / "bench" / "allocator"
_SIMULATOR = ("simulator/core", "simulator/fleet", "simulator/physics", "simulator/traces", "simulator/workloads")
_FILES = ("simulator/request_log.py", "simulator/replay.py", "bench/allocator_site.py", "bench/allocator_runs.py")
#: Of these folders, what no episode uses: other people's logs, other workloads.
_UNUSED = (
    "own_log",
    "generated",
    "demo",
    "compose",
    "event_log",
    "events",
    "log_file",
    "reading",
    "report",
    "rows",
    "assembling",
)
_POLICY = ("policies/allocation",)
_POLICY_FILES = ("policies/measurement.py", "bench/allocator_rows.py")
_KINDS: Mapping[str, tuple[str, ...]] = {"fixed": (), "agents": _POLICY, "oracle": ("simulator/oracle",)}
_pinned: dict[str, str] = {}
_parent: list[int] = []
WINDOW_MS = 1000.0 * WINDOW_S
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Task:
    """An episode under some rows, with the file of the model that learned rows run."""

    episode: Episode
    keys: tuple[str, ...]
    model: bytes | None = None


@dataclass
class Played:
    """The log of one traffic, made when it is first wanted, and what runs of it share."""

    traffic: Episode
    users: dict[int, UserCurves] = field(default_factory=dict)
    _made: tuple[RequestLog, Any] | None = None

    def whole(self) -> tuple[RequestLog, Any]:
        """Return the requests of all instances, and how often what was cloned."""
        if self._made is None:
            log, manifest = self.traffic.whole()
            self._made = log, manifest.to_json()["cloning"]
        return self._made

    def curves(self, instances: int) -> UserCurves:
        """Return curves of users that are known of as many instances, or new ones."""
        known = [curves for count, curves in self.users.items() if count >= instances and curves.complete]
        return known[0] if known else self.users.setdefault(instances, UserCurves())


@dataclass(frozen=True)
class Kept:
    """A folder of figures by name."""

    folder: Path

    def load(self, name: str) -> Figures | None:
        """Return what was kept, None where there is nothing that can be read."""
        try:
            found: Figures = json.loads((self.folder / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        return found

    def store(self, name: str, figures: Figures) -> None:
        """Keep figures; written aside and renamed, so that a killed run leaves no half."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=self.folder, suffix=".part")
        with os.fdopen(handle, "w") as file:
            json.dump(figures, file)
        os.replace(aside, self.folder / f"{name}.json")


def pin(digests: Mapping[str, str]) -> None:
    """Take over the digests of the process that started this one, since files may have changed; do not outlive it."""
    _pinned.update(digests)
    _parent.append(os.getppid())


def code_digests() -> dict[str, str]:
    """Return the digests that names are made of."""
    return {kind: code_digest(kind) for kind in _KINDS}


@cache
def code_digest(kind: str) -> str:
    """Return a SHA-256 over the code that a figure depends on: `fixed`, `agents` or `oracle`."""
    if kind in _pinned:
        return _pinned[kind]
    folders = _SIMULATOR + _KINDS[kind]
    files = _FILES + (_POLICY_FILES if kind == "agents" else ())
    paths = sorted(
        {ROOT / file for file in files}
        | {path for folder in folders for pattern in ("*.py", "*.c", "*.toml") for path in (ROOT / folder).rglob(pattern)}
    )
    paths = [path for path in paths if not (path.stem in _UNUSED and path.parent.name in ("traces", "workloads"))]
    total = hashlib.sha256(kernel().encode() if kind == "agents" else b"")
    for path in paths:
        total.update(str(path.relative_to(ROOT)).encode())
        total.update(_code(path))
    return total.hexdigest()


def _code(path: Path) -> bytes:
    """Return what of a file can change a result: of Python neither comments nor docstrings."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body[0].value = ast.Constant(value=None)
    return ast.dump(tree).encode()


def name_of(episode: Episode, key: str, model_sha256: str | None, hindsight: Figures) -> str:
    """Return the name under which the figures of a row in an episode are kept."""
    row = ROWS[key]
    content = {
        "code": code_digest("fixed" if row.strategy is None else "agents"),
        "hindsight": [hindsight["staticPercent"], hindsight["plannedPercents"]],
        "episode": episode.plain(),
        "row": rows.plain(row),
        "model": model_sha256 if row.learned else None,
    }
    return _named(content)


def hindsight_name(episode: Episode) -> str:
    """Return the name under which it is kept what hindsight says of an episode."""
    return _named({"hindsight": True, "code": code_digest("oracle"), "episode": _for_hindsight(episode).plain()})


def _named(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def missing(task: Task, kept: Kept, sha256: str | None) -> list[str]:
    """Return the runs of a task that are not kept, without those that another row's run stands for."""
    wanted, hindsight = runs_of(task), kept.load(hindsight_name(task.episode))
    if hindsight is None:
        return wanted
    return [key for key in wanted if kept.load(name_of(task.episode, key, sha256, hindsight)) is None]


def runs_of(task: Task) -> list[str]:
    """Return the keys of the runs that a task needs, in order."""
    blocking = task.episode.refill == RefillMode.BLOCKING.value
    return list(dict.fromkeys(rows.same_run(key, blocking=blocking) for key in task.keys))


def carry_out_together(tasks: Sequence[Task], folder: Path) -> int:
    """Run what is missing of tasks that have their traffic in common, those of most instances first; return how many runs."""
    played = Played(tasks[0].episode)
    return sum(carry_out(task, folder, played) for task in sorted(tasks, key=lambda task: -task.episode.instances))


def carry_out(task: Task, folder: Path, played: Played | None = None) -> int:
    """Run what is missing of a task and keep it; return how many runs that were."""
    kept, model = Kept(folder), None if task.model is None else read_model(task.model)
    sha256 = None if model is None else rows.decisive(model)
    if not missing(task, kept, sha256):
        return 0
    played = played or Played(task.episode)
    whole, cloning = played.whole()
    hindsight = _hindsight(task.episode, whole, kept, cloning)
    todo = missing(task, kept, sha256)
    log = site.of_some_instances(whole, task.episode.instances)
    users, done = played.curves(task.episode.instances), len(todo)
    todo.sort(key=lambda key: key != "residual")  # it may stand for others
    while todo:
        key = todo.pop(0)
        if _parent and os.getppid() != _parent[0]:
            raise SystemExit("the command that asked for this is gone")
        for episode, figures in _run(task.episode, key, log, hindsight, users=users, model=model):
            same = rows.same_outcome(key, figures.get("acted", ()))
            for one in (key, *same):
                kept.store(name_of(episode, one, sha256, hindsight), figures)
            if episode == task.episode:
                todo = [other for other in todo if other not in same]
    return done


def results(task: Task, folder: Path, sha256: str | None) -> dict[str, Figures]:
    """Return the kept figures of a task by row, and those of hindsight as `hindsight`.

    Raises
    ------
    KeyError
        When one of them is missing.
    """
    kept = Kept(folder)
    blocking = task.episode.refill == RefillMode.BLOCKING.value
    hindsight = kept.load(hindsight_name(task.episode))
    if hindsight is None:
        raise KeyError(f"{task.episode.regime}, seed {task.episode.seed}: hindsight")
    out: dict[str, Figures] = {"hindsight": hindsight}
    for key in task.keys:
        run = rows.same_run(key, blocking=blocking)
        figures = kept.load(name_of(task.episode, run, sha256, hindsight))
        if figures is None:
            raise KeyError(f"{task.episode.regime}, seed {task.episode.seed}: {key}")
        out[key] = figures
    return out


def _for_hindsight(episode: Episode) -> Episode:
    """Return the episode as hindsight sees it: the whole fleet, whatever the agents' estimates are."""
    return replace(episode, noise=0.0, instances=INSTANCES)


def _hindsight(episode: Episode, whole: RequestLog, kept: Kept, cloning: Any) -> Figures:
    name = hindsight_name(episode)
    known = kept.load(name)
    if known is None:
        found = site.look(whole, _for_hindsight(episode))
        places = np.where(found.fleet.planned >= 0, found.fleet.planned, found.fleet.static)
        best = np.where(found.fleet.best >= 0, found.fleet.best, found.fleet.static)
        known = {
            "staticPercent": found.splits[site.static_place(found)],
            "plannedPercents": [found.splits[place] for place in places.tolist()],
            "bestPercents": [found.splits[place] for place in best.tolist()],
            "gainPercent": found.fleet.gain_percent,
            "plannedGainPercent": found.fleet.planned_gain_percent,
            "noiseFloorPercent": found.noise.regret_percent,
            "confirmedGainPercent": found.noise.confirmed_gain_percent,
            "doubts": list(found.doubts),
            "cloning": cloning,
        }
        kept.store(name, known)
    return known


def _run(
    episode: Episode, key: str, log: RequestLog, hindsight: Figures, *, users: UserCurves, model: TrainedModel | None
) -> list[tuple[Episode, Figures]]:
    """Run an episode; return its figures, and those of the same with fewer instances."""
    row, first = ROWS[key], 50
    policy: SplitPolicy
    if row.strategy is None:
        percents = {
            "static-50": [50],
            "static-best": [hindsight["staticPercent"]],
            "oracle": hindsight["plannedPercents"],
        }[key]
        emb_bytes, _ = split_bytes(episode.fleet(), SPLITS)
        first = percents[0]
        policy = Plan(tuple(int(emb_bytes[SPLITS.index(percent)]) for percent in percents), interval_ms=WINDOW_MS)
    else:
        blocking = episode.refill == RefillMode.BLOCKING.value
        policy = Agents(row, model=model, blocking=blocking, users=users, noise=episode.noise, seed=episode.seed)
    result = simulate(log, episode.fleet(emb_percent=first), split=policy, seed=episode.seed)
    if isinstance(policy, Agents):
        users.complete = True
    found = []
    for instances in (episode.instances, *(count for count in FEWER if count < episode.instances)):
        part = replace(episode, instances=instances)
        figures = figures_of(result, part, wanted_percents=hindsight["plannedPercents"])
        if isinstance(policy, Agents):
            figures |= policy.words(instances)
        found.append((part, {"of": [key, part.regime, part.seed, part.refill, part.noise, part.shift], **figures}))
    return found


def figures_of(result: FleetResult, episode: Episode, *, wanted_percents: Sequence[int]) -> Figures:
    """Return what one run says: latencies after the start and before, the split beside the wanted one, and what moved.

    Parameters
    ----------
    episode : Episode
        That of the run, or one with fewer instances: of the run, then, the first so many.
    wanted_percents : sequence of int
        The oracle's split of each window.
    """
    mine = slice(None) if episode.instances == result.config.instances else result.instance < episode.instances
    arrival, latency = result.log.arrival_ms[mine], result.latency_ms[mine]
    start_ms = 1000.0 * START_UP_S
    late = slice(int(np.searchsorted(arrival, start_ms, side="left")), None)
    windows = int(arrival[-1] // WINDOW_MS) + 1
    ends = np.searchsorted(arrival, WINDOW_MS * np.arange(windows + 1), side="left")
    p99 = [_p99(latency[first:stop]) for first, stop in pairwise(ends.tolist())]
    count = np.diff(ends)
    from_window = int(START_UP_S // WINDOW_S)
    weight = count[from_window:].astype(np.float64)
    moves = [move for move in result.moves if move.at_ms >= start_ms and move.instance < episode.instances]
    gib = sum(abs(move.to_emb_bytes - move.from_emb_bytes) for move in moves) / 2**30
    minutes = (episode.seconds - START_UP_S) / 60.0
    share = _shares(result)[:, : episode.instances]
    wanted = np.array(wanted_percents, dtype=np.float64)
    middles = result.windows.window_ms * (np.arange(len(share)) + 0.5)
    of = np.minimum((middles // WINDOW_MS).astype(np.int64), len(wanted) - 1)
    apart = np.abs(share - wanted[of][:, None]).mean(axis=1)
    return {
        "p99Ms": float(np.average(p99[from_window:], weights=weight)),
        "pooledP99Ms": _p99(latency[late]),
        "p50Ms": float(np.percentile(latency[late], 50.0)),
        "meanMs": float(latency[late].mean()),
        "sloPercent": 100.0 * float((latency[late] <= episode.slo_ms).mean()),
        "startUpP99Ms": float(np.average(p99[:from_window], weights=count[:from_window])),
        "windowP99Ms": [round(value, 4) for value in p99],
        "windowEmbPercent": [round(float(share[of == number].mean()), 2) for number in range(windows)],
        "apartPoints": float(apart[middles >= start_ms].mean()),
        "gibMoved": gib / episode.instances / minutes,
        "moves": len(moves),
        "requests": len(arrival) - late.start,
        "busyPercent": 100.0
        * float(result.service_ms[mine][late].sum())
        / (1000.0 * episode.seconds - start_ms)
        / episode.instances,
    }


def _shares(result: FleetResult) -> NDArray[np.float64]:
    """Return EMB limits in percent of the pool, shape (steps, instances)."""
    return np.asarray(100.0 * result.windows.emb_limit_bytes / result.config.pool_bytes)


def _p99(latency_ms: NDArray[np.float64]) -> float:
    return float(np.percentile(latency_ms, 99.0)) if len(latency_ms) else 0.0


def rule(regime: str, part: str, shift: str, folder: Path) -> tuple[float, float, float]:
    """Return what `allocator_site.rate_by_rule` gives, from what is kept if it is there."""
    content = {
        "rule": [regime, part, shift],
        "code": code_digest("oracle"),
        "episode": Episode(regime=regime, part=part, seed=0, rate=0.0, slo_ms=1.0, shift=shift).plain(),
    }
    name, kept = _named(content), Kept(folder)
    known = kept.load(name)
    if known is None:
        rate, busy, planned_ms = site.rate_by_rule(regime, part, shift)
        known = {"rate": rate, "busy": busy, "plannedMs": planned_ms}
        kept.store(name, known)
    return known["rate"], known["busy"], known["plannedMs"]
