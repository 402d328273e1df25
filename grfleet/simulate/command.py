"""`grfleet simulate` and `grfleet oracle` on the command line.

Exit codes: 0 done; 1 an input cannot be used or the result not be written; 2 wrong usage; 3 done, and not to be trusted (the
result says why); 130 interrupted, nothing written.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from grfleet.idle import refuse_idle
from grfleet.inert import inert
from grfleet.simulate.options import (
    Accelerator,
    AsJson,
    Batching,
    Candidates,
    Duration,
    EmbVersions,
    Force,
    HbmPolicyFile,
    Instances,
    Layers,
    LevelName,
    Lives,
    LoadBehind,
    ModelFile,
    Name,
    OffloadQueue,
    Out,
    Pool,
    Rate,
    Routing,
    RoutingName,
    Seed,
    SkipBad,
    Trace,
    Traces,
    Ttl,
    UserKeyFile,
    Width,
    Workers,
)

if TYPE_CHECKING:
    from grfleet.simulate.bars import Bars
    from grfleet.simulate.choice import Choice
    from grfleet.simulate.replayed import Replayed
    from grfleet.simulate.schema import OracleFound, Simulated
    from grfleet.simulate.served import Served
    from grfleet.simulate.translate import Fleet
    from grfleet.simulate.wanted import Wanted
    from policies.allocation.model_file import TrainedModel

T = TypeVar("T")
NOT_TRUSTED = 3
COMPILING = "half a minute of an idle core"
_OF_EVENT_LOGS: tuple[str, ...] = ("skip_bad", "candidates", "user_key_file")
_OF_REGIMES: tuple[str, ...] = ("duration", "rate", "traces")


def simulate(
    context: typer.Context,
    trace: Trace,
    pool: Pool,
    out: Out,
    policy: Annotated[
        str | None,
        typer.Option(
            help="static:PERCENT, HillClimb, MissRatioCurve, Learned, or a file; default: what the manifests say.",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="What it is compared with, in the same forms; default: its fallback split, held.", show_default=False),
    ] = None,
    hbm_policy: HbmPolicyFile = None,
    model: ModelFile = None,
    seed: Seed = 1,
    level: Annotated[LevelName, typer.Option(help="How closely to look at embedding rows (docs/fleet.md).")] = LevelName.SAMPLED,
    warm_up: Annotated[str, typer.Option(help="What of the log only warms the caches: a share or a length of time.")] = "20%",
    load_behind: LoadBehind = None,
    batching: Batching = None,
    offload_queue: OffloadQueue = None,
    ttl: Ttl = None,
    emb_versions: EmbVersions = None,
    routing: Routing = None,
    life: Lives = None,
    workers: Workers = None,
    name: Name = None,
    accelerator: Accelerator = "a100",
    layers: Layers = None,
    width: Width = None,
    instances: Instances = None,
    skip_bad: SkipBad = False,
    candidates: Candidates = None,
    user_key_file: UserKeyFile = None,
    duration: Duration = "5m",
    rate: Rate = 80.0,
    traces: Traces = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Rehearse a policy: replay requests on the fleet of a manifest in virtual time, beside the split that it falls back to."""
    with _refusals("simulate"):
        from grfleet.simulate.bars import bars_on_stderr
        from grfleet.simulate.choice import fallback_of
        from grfleet.simulate.errors import BadInput
        from grfleet.simulate.rehearse import rehearse
        from simulator.fleet.config import Level
        from simulator.fleet.kernel import serve

        wanted = _wanted(pool, name, hbm_policy, out, force=force)
        trained = _model(model)
        choice = _choice(wanted, "--policy", policy, trained)
        beside = _choice(wanted, "--baseline", baseline, trained) if baseline is not None else fallback_of(choice)
        if trained is not None and choice.model is None and beside.model is None:
            raise BadInput("--model", "neither policy nor baseline runs it", then="give --policy Learned to see it act")
        duration_ms = _traffic_ms(duration)
        _length_ms("--warm-up", warm_up, of_ms=0.0)
        served = _served(batching, offload_queue, ttl, emb_versions, routing, life or [])
        _fits(context, trace)
        fleet = _fleet(wanted, accelerator, layers, width, instances, load_behind=load_behind)
        rules = _rules(skip_bad, candidates, user_key_file, duration_ms, rate, traces)
        with bars_on_stderr() as bars:
            requests = _replayed(trace, rules, fleet, wanted, seed, bars)
            _tell_of_compiling("simulate", serve)
            log = requests.log
            left_out_ms = _length_ms("--warm-up", warm_up, of_ms=log.duration_ms)
            if left_out_ms > log.duration_ms:
                raise BadInput(f"--warm-up {warm_up}", f"the log has {log.duration_ms / 1e3:g} s, so nothing would be measured")
            result = rehearse(
                wanted,
                fleet,
                choice,
                beside,
                requests,
                level=Level(level.value),
                seed=seed,
                measured_from_ms=float(log.arrival_ms[0]) + left_out_ms,
                workers=_workers(workers),
                bars=bars,
                served=served,
            )
        _deliver(result, out, force=force, as_json=as_json)


def oracle(
    context: typer.Context,
    trace: Trace,
    pool: Pool,
    out: Out,
    window: Annotated[str, typer.Option(help="Length of the windows; a P99 needs 1 000 requests in each.")] = "60s",
    hbm_policy: HbmPolicyFile = None,
    seed: Seed = 1,
    workers: Workers = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute anew what an earlier run has kept.")] = False,
    name: Name = None,
    accelerator: Accelerator = "a100",
    layers: Layers = None,
    width: Width = None,
    instances: Instances = None,
    skip_bad: SkipBad = False,
    candidates: Candidates = None,
    user_key_file: UserKeyFile = None,
    duration: Duration = "5m",
    rate: Rate = 80.0,
    traces: Traces = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Find the best split of each window in hindsight, the best fixed one, what moving would have gained, and how sure it is."""
    with _refusals("oracle"):
        from grfleet.simulate.bars import bars_on_stderr
        from grfleet.simulate.errors import BadInput
        from grfleet.simulate.hindsight import look_back
        from simulator.oracle.cache import OracleCache
        from simulator.oracle.lindley import advance
        from simulator.oracle.parallel import WorkerLost

        window_ms, duration_ms = _length_ms("--window", window), _traffic_ms(duration)
        wanted = _wanted(pool, name, hbm_policy, out, force=force)
        _fits(context, trace)
        fleet = _fleet(wanted, accelerator, layers, width, instances)
        rules = _rules(skip_bad, candidates, user_key_file, duration_ms, rate, traces)
        with bars_on_stderr() as bars:
            requests = _replayed(trace, rules, fleet, wanted, seed, bars)
            _tell_of_compiling("oracle", advance)
            try:
                result = look_back(
                    wanted,
                    fleet,
                    requests,
                    window_ms=window_ms,
                    seed=seed,
                    workers=_workers(workers),
                    cache=None if fresh else OracleCache.of_user(),
                    bars=bars,
                )
            except ValueError as error:
                raise BadInput(f"--window {window}", str(error)) from None
            except WorkerLost as error:
                raise BadInput("--workers", str(error), then="fewer processes need less memory") from None
        _deliver(result, out, force=force, as_json=as_json)


def _workers(asked: int | None) -> int:
    return asked if asked is not None else os.cpu_count() or 1


def _fits(context: typer.Context, trace: str) -> None:
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


def _wanted(pool: Path, name: str | None, hbm_policy: Path | None, out: Path, *, force: bool) -> "Wanted":
    """The manifests, and before all else whether the result has a place."""
    from grfleet.simulate.folder import check_free
    from grfleet.simulate.wanted import wanted

    check_free(out, force=force)
    return wanted(pool, name=name, hbm_file=hbm_policy)


def _model(file: Path | None) -> "TrainedModel | None":
    if file is None:
        return None
    from grfleet.access import Failed
    from grfleet.model.file import read_file
    from grfleet.simulate.errors import BadInput

    try:
        return read_file(file)[1]
    except Failed as error:
        raise BadInput("--model", str(error)) from None


def _choice(wanted: "Wanted", option: str, policy: str | None, model: "TrainedModel | None" = None) -> "Choice":
    from grfleet.simulate.choice import NoSuchPolicy, choice_of

    try:
        return choice_of(wanted, policy, model)
    except NoSuchPolicy as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _fleet(
    wanted: "Wanted",
    accelerator: str,
    layers: int | None,
    width: int | None,
    instances: int | None,
    *,
    load_behind: int | None = None,
) -> "Fleet":
    from grfleet.simulate.translate import accelerator_of, fleet_of

    return fleet_of(
        wanted,
        accelerator=accelerator_of(accelerator),
        layers=layers,
        width=width,
        instances=instances,
        load_behind_percent=load_behind,
    )


def _served(
    batching: str | None,
    offload_queue: str | None,
    ttl: str | None,
    emb_versions: str | None,
    routing: RoutingName | None,
    lives: list[str],
) -> "Served":
    """What the options say of serving; lives go with the operator's routing where no other is named."""
    from grfleet.simulate import served

    if lives and routing is None:
        routing = RoutingName.TABLE
    every_ms, most = None, None
    if emb_versions is not None:
        every_ms, most = _parsed("--emb-versions", served.versions_of, emb_versions)
    return served.Served(
        batching=_parsed("--batching", served.batching_of, batching) if batching is not None else None,
        offload_queue_bytes=_parsed("--offload-queue", served.queue_of, offload_queue) if offload_queue is not None else None,
        ttl_ms=_length_ms("--ttl", ttl) if ttl is not None else None,
        emb_version_ms=every_ms,
        max_emb_lag=most,
        routing=routing,
        lives=tuple(_parsed("--life", served.life_of, each) for each in lives),
    )


def _parsed(option: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _tell_of_compiling(command: str, loops: Any) -> None:
    """Say on stderr why nothing seems to happen, where no earlier run has left machine code."""
    from simulator.compiled import is_kept

    if not is_kept(loops):
        typer.echo(f"{command}: compiling the simulator's loops, once for each version of them: {COMPILING}", err=True)


def _rules(
    skip_bad: bool, candidates: int | None, key_file: Path | None, duration_ms: float, rate: float, traces: Path | None
) -> Any:
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


def _replayed(trace: str, rules: Any, fleet: "Fleet", wanted: "Wanted", seed: int, bars: "Bars") -> "Replayed":
    from grfleet.simulate.replayed import replayed

    return replayed(
        trace,
        rules,
        instances=fleet.config.instances,
        max_history_tokens=wanted.pool.spec.model.max_history_tokens,
        seed=seed,
        progress=bars("reading"),
    )


def _length_ms(option: str, text: str, *, of_ms: float | None = None) -> float:
    from grfleet.durations import length_ms

    try:
        return length_ms(text, of_ms=of_ms)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _traffic_ms(duration: str) -> float:
    from grfleet.durations import traffic_ms

    try:
        return traffic_ms(duration)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--duration") from None


def _deliver(result: "Simulated | OracleFound", out: Path, *, force: bool, as_json: bool) -> None:
    """Write everything, tell the gist, and leave with the code that fits."""
    from grfleet.simulate.folder import filled
    from grfleet.simulate.markdown import headline, summary
    from grfleet.simulate.plots import HOW_TO_GET, draw
    from grfleet.simulate.schema import encoded

    text = encoded(result)
    with filled(out, force=force) as folder:
        (folder / "result.json").write_text(text)
        (folder / "summary.md").write_text(summary(result))
        drawn = draw(folder, result)
    if as_json:
        typer.echo(text, nl=False)
    else:
        for line in headline(result):
            typer.echo(inert(line).plain)
        typer.echo(f"{inert(str(out)).plain}/summary.md says more")
    if not drawn:
        typer.echo(f"{result.command}: {HOW_TO_GET}", err=True)
    if not result.trusted:
        raise typer.Exit(NOT_TRUSTED)


@contextmanager
def _refusals(command: str) -> Iterator[None]:
    """Turn what cannot be used into one line on stderr and exit code 1."""
    from grfleet.simulate.errors import BadInput

    try:
        yield
    except BadInput as error:
        typer.echo(f"{command}: {inert(str(error)).plain}", err=True)
        raise typer.Exit(1) from None
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        typer.echo(
            f"{command}: the simulator needs numba, which is not there: `make setup`, or pip install '.[sim]' in the checkout",
            err=True,
        )
        raise typer.Exit(1) from None
    except MemoryError:
        typer.echo(f"{command}: not enough memory for a log of this size; replay a part of it", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo(f"{command}: interrupted; nothing was written", err=True)
        raise typer.Exit(130) from None
