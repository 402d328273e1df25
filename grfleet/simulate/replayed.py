"""The requests of a run: a team's event log, a converted log, or one of the generated regimes.

User ids of an event log are hashed while it is read and nothing of them is kept. Without a key of the pool they are hashed under
a fixed one, so that two runs over the same log have the same slots and the same digest.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from grfleet.simulate.errors import BadInput
from simulator.request_log import RequestLog
from simulator.traces import LogOptions, OnBad, TraceError, is_request_log, load_request_log
from simulator.traces.event_log import Progress
from simulator.workloads import ROW_DOUBTS, Traffic, burst, own_log, steady, trend

MOST_DOUBTS, MOST_DOUBT = 8, 400
_SLOTS_KEY = b"grfleet simulate: slots of users in the absence of the pool's key"


class Regime(StrEnum):
    """Workloads that are generated from public traces."""

    STEADY = "steady"
    TREND = "trend"
    BURST = "burst"


@dataclass(frozen=True, kw_only=True)
class ReadRules:
    """How an event log is read, and how much is generated of a regime.

    Attributes
    ----------
    skip_bad : bool
        Bad lines are left out and counted.
    candidates : int, optional
        Items to rank where a log says nothing.
    key : bytes, optional
        The pool key, for the slots that users have in the pool.
    duration_s, rate : float
        Of a regime: length, and requests a second of the whole fleet.
    traces : Path, optional
        Folder of the public traces.
    """

    skip_bad: bool = False
    candidates: int | None = None
    key: bytes | None = None
    duration_s: float = 300.0
    rate: float = 80.0
    traces: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Requests with their origin.

    Attributes
    ----------
    name : str
        Of the file or regime, without any folder.
    manifest : dict
        What of the requests is real, scaled and generated (`simulator.workloads.manifest`).
    assumptions : tuple of str
        What was filled in or cut for this run.
    doubts : tuple of str
        Where the law of embedding rows may not be that of the log's items.
    """

    log: RequestLog
    name: str
    manifest: dict[str, Any]
    assumptions: tuple[str, ...]
    doubts: tuple[str, ...] = ()


def replayed(
    trace: str, rules: ReadRules, *, instances: int, max_history_tokens: int, seed: int, progress: Progress | None = None
) -> Replayed:
    """Return the requests that a `--trace` names.

    Parameters
    ----------
    instances, max_history_tokens : int
        Of the pool: a regime has as many streams of users, and no history is longer.
    progress : callable, optional
        Called with (bytes read, bytes in all).

    Raises
    ------
    BadInput
        Names file, line and field.
    """
    try:
        if trace in set(Regime):
            made = _generated(Regime(trace), rules, instances=instances, max_history_tokens=max_history_tokens, seed=seed)
        elif is_request_log(Path(trace)):
            log, manifest = load_request_log(Path(trace))
            made = Replayed(log=log, name=Path(trace).name, manifest=manifest, assumptions=(), doubts=_doubts_of(manifest))
        else:
            made = _event_log(Path(trace), rules, max_history_tokens, progress)
    except ValueError as error:  # a TraceError is one, and names its place
        public = isinstance(error, TraceError) and trace in set(Regime)
        then = "the public traces come with a checkout of grfleet; name their folder with --traces" if public else ""
        raise BadInput("--trace", str(error), then=then) from None
    return _cut(made, max_history_tokens)


def _generated(regime: Regime, rules: ReadRules, *, instances: int, max_history_tokens: int, seed: int) -> Replayed:
    traffic = Traffic(
        seed=seed,
        duration_s=rules.duration_s,
        requests_per_second=rules.rate,
        instances=instances,
        max_history_tokens=max_history_tokens,
    )
    make = {Regime.STEADY: steady, Regime.TREND: trend, Regime.BURST: burst}[regime]
    log, manifest = make(traffic, traces=rules.traces)
    return Replayed(log=log, name=str(regime), manifest=manifest.to_json(), assumptions=())


def _event_log(path: Path, rules: ReadRules, max_history_tokens: int, progress: Progress | None) -> Replayed:
    options = LogOptions(
        pool_key=rules.key or _SLOTS_KEY,
        on_bad=OnBad.SKIP if rules.skip_bad else OnBad.STOP,
        candidates_when_missing=rules.candidates,
        max_history_tokens=max_history_tokens,
    )
    log, manifest, report = own_log(path, options, progress=progress)
    rows = next(each for each in manifest.ingredients if each.what == "embedding rows")
    told = [f"embedding rows: no log has them; {rows.rule} (`grfleet trace convert` takes other laws)"]
    if rules.key is None:
        told.append("slots: user ids were hashed under a fixed key, not the pool's, so users are not on their own instances")
    if report.skipped:
        told.append(f"log: {report.skipped} of {report.lines} lines were bad and left out")
    if report.histories_counted:
        told.append(f"histories: {report.histories_counted} of {report.requests} are not in the log and were counted from it")
    if report.histories_cut:
        told.append(f"histories: {report.histories_cut} were longer than maxHistoryTokens and cut there")
    return Replayed(
        log=log,
        name=path.name,
        manifest=_without_key(manifest.to_json(), rules),
        assumptions=tuple(told),
        doubts=report.row_doubts,
    )


def _doubts_of(manifest: dict[str, Any]) -> tuple[str, ...]:
    """What a conversion found to be doubted; a file is other people's, so only what looks like that is taken."""
    parameters = manifest.get("parameters")
    told = parameters.get(ROW_DOUBTS) if isinstance(parameters, dict) else None
    return tuple(each[:MOST_DOUBT] for each in told[:MOST_DOUBTS] if isinstance(each, str)) if isinstance(told, list) else ()


def _without_key(manifest: dict[str, Any], rules: ReadRules) -> dict[str, Any]:
    """Say that slots are made up when the key is not the pool's: whoever reads the manifest must not take them for real."""
    if rules.key is not None:
        return manifest
    slots = {"origin": "scaled", "rule": "user ids hashed under a fixed key"}
    ingredients = [each | slots if each["what"] == "slots" else each for each in manifest["ingredients"]]
    return manifest | {"ingredients": ingredients, "parameters": manifest["parameters"] | {"pool_key": "fixed"}}


def _cut(made: Replayed, max_history_tokens: int) -> Replayed:
    longer = int(np.count_nonzero(made.log.history_tokens > max_history_tokens))
    if not longer:
        return made
    log = replace(made.log, history_tokens=np.minimum(made.log.history_tokens, np.int32(max_history_tokens)))
    told = f"histories: {longer} were longer than maxHistoryTokens and cut there"
    return replace(made, log=log, assumptions=(*made.assumptions, told))
