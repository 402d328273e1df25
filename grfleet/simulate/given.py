"""What the options of `grfleet simulate` and `grfleet oracle` mean: from words on the command line to what is run.

A word that makes no sense is refused by the name of its option. The simulator is imported by whoever needs it, so that `--help`
and refusals do not wait for it.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from grfleet.idle import refuse_idle
from grfleet.simulate.options import RoutingName

if TYPE_CHECKING:
    from grfleet.simulate.bars import Bars
    from grfleet.simulate.choice import Choice
    from grfleet.simulate.replayed import ReadRules, Replayed
    from grfleet.simulate.served import Served
    from grfleet.simulate.translate import Fleet
    from grfleet.simulate.wanted import Wanted
    from policies.allocation.model_file import TrainedModel

T = TypeVar("T")
_OF_EVENT_LOGS: tuple[str, ...] = ("skip_bad", "candidates", "user_key_file")
_OF_REGIMES: tuple[str, ...] = ("duration", "rate", "traces")


def check_trace(context: typer.Context, trace: str) -> None:
    """Refuse a trace that is not there, and an option that would do nothing, which is how typing errors go unnoticed."""
    from grfleet.simulate.replayed import Regime
    from simulator.traces import is_request_log

    if trace in set(Regime):
        what, idle = "a regime", _OF_EVENT_LOGS
    elif not Path(trace).exists():
        raise typer.BadParameter(f"{trace} is neither a file nor one of {', '.join(Regime)}", param_hint="--trace")
    elif is_request_log(Path(trace)):
        what, idle = "a file of requests, which has that in it", _OF_EVENT_LOGS + _OF_REGIMES
    else:
        what, idle = "an event log", _OF_REGIMES
    refuse_idle(context, idle, f"{trace} is {what}")


def manifests(pool: Path, name: str | None, hbm_policy: Path | None, out: Path, *, force: bool) -> "Wanted":
    """What the manifests say; before all else, whether the result has a place."""
    from grfleet.simulate.folder import check_free
    from grfleet.simulate.wanted import wanted

    check_free(out, force=force)
    return wanted(pool, name=name, hbm_file=hbm_policy)


def model(file: Path | None) -> "TrainedModel | None":
    """The allocator model of a file, read and checked as agents do it."""
    if file is None:
        return None
    from grfleet.access import Failed
    from grfleet.model.file import read_file
    from grfleet.simulate.errors import BadInput

    try:
        return read_file(file)[1]
    except Failed as error:
        raise BadInput("--model", str(error)) from None


def choice(wanted: "Wanted", option: str, policy: str | None, model: "TrainedModel | None" = None) -> "Choice":
    """What chooses the splits, by `--policy` or `--baseline`; None takes what the manifests say."""
    from grfleet.simulate.choice import NoSuchPolicy, choice_of

    try:
        return choice_of(wanted, policy, model)
    except NoSuchPolicy as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def fleet(
    wanted: "Wanted",
    accelerator: str,
    layers: int | None,
    width: int | None,
    instances: int | None,
    *,
    load_behind: int | None = None,
) -> "Fleet":
    """The simulated fleet of the manifests, on an accelerator and a model shape that they do not know."""
    from grfleet.simulate.translate import accelerator_of, fleet_of

    return fleet_of(
        wanted,
        accelerator=accelerator_of(accelerator),
        layers=layers,
        width=width,
        instances=instances,
        load_behind_percent=load_behind,
    )


def served(
    batching: str | None,
    offload_queue: str | None,
    ttl: str | None,
    emb_versions: str | None,
    routing: RoutingName | None,
    lives: list[str],
) -> "Served":
    """What the options say of serving; lives go with the operator's routing where no other is named."""
    from grfleet.simulate.served import Served, batching_of, life_of, queue_of, versions_of

    if lives and routing is None:
        routing = RoutingName.TABLE
    every_ms, most = None, None
    if emb_versions is not None:
        every_ms, most = _parsed("--emb-versions", versions_of, emb_versions)
    return Served(
        batching=_parsed("--batching", batching_of, batching) if batching is not None else None,
        offload_queue_bytes=_parsed("--offload-queue", queue_of, offload_queue) if offload_queue is not None else None,
        ttl_ms=length_ms("--ttl", ttl) if ttl is not None else None,
        emb_version_ms=every_ms,
        max_emb_lag=most,
        routing=routing,
        lives=tuple(_parsed("--life", life_of, each) for each in lives),
    )


def rules(
    skip_bad: bool, candidates: int | None, key_file: Path | None, duration_ms: float, rate: float, traces: Path | None
) -> "ReadRules":
    """How a trace is read, and how long and dense one that is made is (`duration_ms`; `rate` in requests a second)."""
    from grfleet.simulate.replayed import ReadRules
    from grfleet.trace.reading import pool_key

    return ReadRules(
        skip_bad=skip_bad,
        candidates=candidates,
        key=pool_key(key_file),
        duration_s=duration_ms / 1e3,
        rate=rate,
        traces=traces,
    )


def requests(trace: str, rules: "ReadRules", fleet: "Fleet", wanted: "Wanted", seed: int, bars: "Bars") -> "Replayed":
    """The requests of a trace, dealt out over the fleet."""
    from grfleet.simulate.replayed import replayed

    return replayed(
        trace,
        rules,
        instances=fleet.config.instances,
        max_history_tokens=wanted.pool.spec.model.max_history_tokens,
        seed=seed,
        progress=bars("reading"),
    )


def workers(asked: int | None) -> int:
    """Number of processes; by default one a core."""
    return asked if asked is not None else os.cpu_count() or 1


def length_ms(option: str, text: str, *, of_ms: float | None = None) -> float:
    """A length of time in milliseconds; with `of_ms`, the length of a log, also a share of it such as `20%`."""
    from grfleet import durations

    return _parsed(option, partial(durations.length_ms, of_ms=of_ms), text)


def traffic_ms(duration: str) -> float:
    """The length of a trace that is made, in milliseconds."""
    from grfleet import durations

    return _parsed("--duration", durations.traffic_ms, duration)


def _parsed(option: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
