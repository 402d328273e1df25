"""`grfleet trace check | convert | generate`. Exit codes: 0 it worked, 1 the data cannot be used or written, 2 wrong usage.

What comes out holds no user id: neither the file of requests, nor the summary, nor an error.
"""

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from grfleet.durations import traffic_ms
from grfleet.idle import refuse_idle
from grfleet.trace.reading import (
    Candidates,
    DisorderMs,
    LogFile,
    MaxHistoryTokens,
    MaxSkipped,
    MergeMs,
    OnBadLine,
    OnBadOption,
    SignalWindowMs,
    TokensPerEvent,
    UserKeyFile,
    described,
    pool_key,
    progress_bar,
    refusals,
    summary,
)

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Event logs: check one, convert it into requests, generate some."
)

_RULES = (
    "on_bad",
    "max_skipped",
    "disorder_ms",
    "signal_window_ms",
    "merge_ms",
    "tokens_per_event",
    "max_history_tokens",
    "candidates",
)
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
PANEL = "Embedding rows; fitted to the items of the log unless a law is given"
Exponent = Annotated[
    float | None,
    typer.Option(min=0, max=4, help="Zipf exponent of their popularity.", show_default="0.95", rich_help_panel=PANEL),
]
CatalogRows = Annotated[
    int | None,
    typer.Option(min=1, max=1 << 40, help="Rows of all tables together.", show_default="40000000", rich_help_panel=PANEL),
]
Drift = Annotated[
    float | None,
    typer.Option(
        min=0, max=100_000, help="Percent of the most popular replaced an hour.", show_default="2", rich_help_panel=PANEL
    ),
]
RowsPerToken = Annotated[
    int, typer.Option(min=0, max=1024, help="Rows looked up per new token and per candidate.", rich_help_panel=PANEL)
]


class PartName(StrEnum):
    ALL = "all"
    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


class RegimeName(StrEnum):
    STEADY = "steady"
    TREND = "trend"
    BURST = "burst"
    GENERATED = "generated"


class ArrivalsName(StrEnum):
    CONVERSATION = "conversation"
    CODE = "code"


PartOption = Annotated[PartName, typer.Option(help="Only one part, cut by time and by users (docs/traces.md).")]


@app.command()
def check(
    context: typer.Context,
    file: LogFile,
    on_bad: OnBadOption = OnBadLine.STOP,
    max_skipped: MaxSkipped = 1000,
    disorder_ms: DisorderMs = 5000.0,
    signal_window_ms: SignalWindowMs = 10_000.0,
    merge_ms: MergeMs = 0.0,
    tokens_per_event: TokensPerEvent = 12,
    max_history_tokens: MaxHistoryTokens = 1 << 24,
    candidates: Candidates = None,
    as_json: AsJson = False,
) -> None:
    """Read an event log, or a file of requests, as a replay would, and say what is in it and what is wrong with it."""
    from simulator.traces import LogOptions, is_request_log, load_request_log, read_event_log

    if is_request_log(file):
        refuse_idle(context, _RULES, f"{file} is a file of requests; rules had their turn when the log was converted")
    with refusals("trace check"):
        report = manifest = None
        if is_request_log(file):
            log, manifest = load_request_log(file)
        else:
            options = LogOptions(
                on_bad=_on_bad(on_bad),
                max_skipped=max_skipped,
                disorder_ms=disorder_ms,
                signal_window_ms=signal_window_ms,
                merge_ms=merge_ms,
                tokens_per_event=tokens_per_event,
                max_history_tokens=max_history_tokens,
                candidates_when_missing=candidates,
            )
            with progress_bar(f"reading {file.name}") as progress:
                log, told = read_event_log(file, options, progress=progress)
            report = told.to_json()
        _tell(described(log), report, as_json, manifest=manifest)


@app.command()
def convert(
    file: LogFile,
    out: Annotated[
        Path, typer.Argument(help="File of requests to write; replaced if it is there.", metavar="OUT", dir_okay=False)
    ],
    on_bad: OnBadOption = OnBadLine.STOP,
    max_skipped: MaxSkipped = 1000,
    disorder_ms: DisorderMs = 5000.0,
    signal_window_ms: SignalWindowMs = 10_000.0,
    merge_ms: MergeMs = 0.0,
    tokens_per_event: TokensPerEvent = 12,
    max_history_tokens: MaxHistoryTokens = 1 << 24,
    candidates: Candidates = None,
    user_key_file: UserKeyFile = None,
    row_exponent: Exponent = None,
    catalog_rows: CatalogRows = None,
    drift_percent_per_hour: Drift = None,
    rows_per_token: RowsPerToken = 2,
    part: PartOption = PartName.ALL,
    as_json: AsJson = False,
) -> None:
    """Turn an event log into one file of requests, with digest and manifest inside and no user id."""
    from simulator.traces import LogOptions, TraceError, is_request_log, save_request_log
    from simulator.workloads import Part, own_log

    if out.exists() and out.samefile(file):
        raise typer.BadParameter("is the log itself", param_hint="OUT")
    key = pool_key(user_key_file)
    with refusals("trace convert"):
        if is_request_log(file):
            raise TraceError(file, "is a file of requests already; replays read it as it is")
        options = LogOptions(
            pool_key=key,
            on_bad=_on_bad(on_bad),
            max_skipped=max_skipped,
            disorder_ms=disorder_ms,
            signal_window_ms=signal_window_ms,
            merge_ms=merge_ms,
            tokens_per_event=tokens_per_event,
            max_history_tokens=max_history_tokens,
            candidates_when_missing=candidates,
            law=_law(row_exponent, catalog_rows, drift_percent_per_hour),
            rows_per_token=rows_per_token,
        )
        with progress_bar(f"reading {file.name}") as progress:
            log, manifest, report = own_log(file, options, part=Part(part.value), progress=progress)
        out.parent.mkdir(parents=True, exist_ok=True)
        save_request_log(out, log, manifest.to_json())
        _tell(described(log), report.to_json(), as_json)


@app.command()
def generate(
    regime: Annotated[RegimeName, typer.Argument(help="Which (docs/traces.md says what is real in each).")],
    out: Annotated[Path, typer.Option(help="File of requests to write; replaced if it is there.", dir_okay=False)],
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 1,
    duration: Annotated[str, typer.Option(help="Length, from 1s to 250h.")] = "5m",
    rate: Annotated[float, typer.Option(min=0.01, max=1e6, help="Requests a second of all instances together.")] = 640.0,
    instances: Annotated[int, typer.Option(min=1, max=4096, help="Copies of the recorded users side by side.")] = 32,
    arrivals: Annotated[ArrivalsName, typer.Option(help="Recording that gives the arrivals; `code` is bursty.")] = (
        ArrivalsName.CONVERSATION
    ),
    max_history_tokens: Annotated[int, typer.Option(min=1, max=1 << 24, help="Context of the model.")] = 16_384,
    users: Annotated[
        int | None, typer.Option(min=1, max=1 << 30, help="`generated` only: size of the population; default: a million.")
    ] = None,
    burst_strength: Annotated[
        float | None, typer.Option(min=0, max=100, help="`burst` only: multiplies what bursts add; default: 1.")
    ] = None,
    part: PartOption = PartName.ALL,
    traces: Annotated[
        Path | None, typer.Option(help="Folder of the public traces; default: those of the checkout.", file_okay=False)
    ] = None,
    as_json: AsJson = False,
    seconds: Annotated[str | None, typer.Option(hidden=True)] = None,
    per_second: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Make a workload: the same seed gives the same requests. Prints their figures; the manifest is in the file."""
    from simulator.traces import TraceError, save_request_log
    from simulator.workloads import Part, Traffic, burst, generated, steady, trend

    _renamed(seconds, "--seconds", f"--duration {seconds}s")
    _renamed(per_second, "--per-second", f"--rate {per_second}")
    _fits(regime, users=users, burst_strength=burst_strength, part=part)
    duration_s = _seconds(duration)
    with refusals("trace generate"):
        traffic = Traffic(
            seed=seed,
            duration_s=duration_s,
            requests_per_second=rate,
            instances=instances,
            part=Part(part.value),
            arrivals=arrivals.value,
            max_history_tokens=max_history_tokens,
        )
        try:
            if regime is RegimeName.GENERATED:
                log, manifest = generated(traffic, users=1_000_000 if users is None else users)
            elif regime is RegimeName.BURST:
                log, manifest = burst(traffic, strength=1.0 if burst_strength is None else burst_strength, traces=traces)
            else:
                log, manifest = (steady if regime is RegimeName.STEADY else trend)(traffic, traces=traces)
        except TraceError as error:
            then = "the public traces come with a checkout of grfleet; name their folder with --traces"
            raise ValueError(f"{error}; {then}") from None
        out.parent.mkdir(parents=True, exist_ok=True)
        save_request_log(out, log, manifest.to_json())
        _tell(described(log), None, as_json, manifest=manifest.to_json())


def _renamed(value: str | None, old: str, new: str) -> None:
    if value is not None:
        raise typer.BadParameter(f"is called {new.split()[0]}, as in `grfleet simulate`: {new}", param_hint=old)


def _seconds(duration: str) -> float:
    try:
        return traffic_ms(duration) / 1e3
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--duration") from None


def _fits(regime: RegimeName, *, users: int | None, burst_strength: float | None, part: PartName) -> None:
    """Refuse an option that would do nothing, which is how typing errors go unnoticed."""
    if users is not None and regime is not RegimeName.GENERATED:
        raise typer.BadParameter(
            "only `generated` has a population; the others take that of their recording", param_hint="--users"
        )
    if burst_strength is not None and regime is not RegimeName.BURST:
        raise typer.BadParameter("only `burst` has bursts", param_hint="--burst-strength")
    if part is not PartName.ALL and regime is RegimeName.GENERATED:
        raise typer.BadParameter("`generated` is of no recording that has parts; take another seed", param_hint="--part")


def _law(exponent: float | None, catalog_rows: int | None, drift: float | None) -> Any:
    """The law that was asked for, what was left out being that of logs without items; None where nothing was asked for."""
    from simulator.traces import DEFAULT_LAW

    if exponent is None and catalog_rows is None and drift is None:
        return None
    law = DEFAULT_LAW if exponent is None else replace(DEFAULT_LAW, exponent=exponent)
    law = law if catalog_rows is None else replace(law, catalog_rows=catalog_rows)
    return law if drift is None else replace(law, drift_percent_per_hour=drift)


def _on_bad(chosen: OnBadLine) -> Any:
    from simulator.traces import OnBad

    return OnBad(chosen.value)


def _tell(log: dict[str, Any], report: dict[str, Any] | None, as_json: bool, *, manifest: dict[str, Any] | None = None) -> None:
    if as_json:
        said = {"log": log} | ({"report": report} if report else {}) | ({"manifest": manifest} if manifest else {})
        typer.echo(json.dumps(said, allow_nan=False))
        return
    for line in summary(log, report):
        typer.echo(line)
