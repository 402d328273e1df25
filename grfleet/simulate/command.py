"""`grfleet simulate` and `grfleet oracle` on the command line.

Exit codes: 0 done; 1 an input cannot be used or the result not be written; 2 wrong usage; 3 done, and not to be trusted (the
result says why); 130 interrupted, nothing written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grfleet.inert import inert
from grfleet.simulate import given
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
    from grfleet.simulate.schema import OracleFound, Simulated

NOT_TRUSTED = 3
COMPILING = "half a minute of an idle core"


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

        wanted = given.manifests(pool, name, hbm_policy, out, force=force)
        trained = given.model(model)
        choice = given.choice(wanted, "--policy", policy, trained)
        beside = given.choice(wanted, "--baseline", baseline, trained) if baseline is not None else fallback_of(choice)
        if trained is not None and choice.model is None and beside.model is None:
            raise BadInput("--model", "neither policy nor baseline runs it", then="give --policy Learned to see it act")
        duration_ms = given.traffic_ms(duration)
        given.length_ms("--warm-up", warm_up, of_ms=0.0)
        served = given.served(batching, offload_queue, ttl, emb_versions, routing, life or [])
        given.check_trace(context, trace)
        fleet = given.fleet(wanted, accelerator, layers, width, instances, load_behind=load_behind)
        rules = given.rules(skip_bad, candidates, user_key_file, duration_ms, rate, traces)
        with bars_on_stderr() as bars:
            requests = given.requests(trace, rules, fleet, wanted, seed, bars)
            _tell_of_compiling("simulate", serve)
            log = requests.log
            left_out_ms = given.length_ms("--warm-up", warm_up, of_ms=log.duration_ms)
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
                workers=given.workers(workers),
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

        window_ms, duration_ms = given.length_ms("--window", window), given.traffic_ms(duration)
        wanted = given.manifests(pool, name, hbm_policy, out, force=force)
        given.check_trace(context, trace)
        fleet = given.fleet(wanted, accelerator, layers, width, instances)
        rules = given.rules(skip_bad, candidates, user_key_file, duration_ms, rate, traces)
        with bars_on_stderr() as bars:
            requests = given.requests(trace, rules, fleet, wanted, seed, bars)
            _tell_of_compiling("oracle", advance)
            try:
                result = look_back(
                    wanted,
                    fleet,
                    requests,
                    window_ms=window_ms,
                    seed=seed,
                    workers=given.workers(workers),
                    cache=None if fresh else OracleCache.of_user(),
                    bars=bars,
                )
            except ValueError as error:
                raise BadInput(f"--window {window}", str(error)) from None
            except WorkerLost as error:
                raise BadInput("--workers", str(error), then="fewer processes need less memory") from None
        _deliver(result, out, force=force, as_json=as_json)


def _tell_of_compiling(command: str, loops: Any) -> None:
    """Say on stderr why nothing seems to happen, where no earlier run has left machine code."""
    from simulator.compiled import is_kept

    if not is_kept(loops):
        typer.echo(f"{command}: compiling the simulator's loops, once for each version of them: {COMPILING}", err=True)


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
