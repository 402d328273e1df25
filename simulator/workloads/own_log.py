"""A team's own event log as a workload: its requests, their manifest, and what reading left out or filled in."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulator.request_log import RequestLog, RowLaw
from simulator.traces import LoadReport, LogOptions, read_event_log
from simulator.traces.event_log import Progress
from simulator.workloads.manifest import Held, Ingredient, Manifest, Origin
from simulator.workloads.parts import PART_PERCENT, USERS_RULE, Part, cut

ROW_DOUBTS = "row_law_doubts"  # parameter of the manifest


def own_log(
    path: Path, options: LogOptions, *, part: Part = Part.ALL, progress: Progress | None = None
) -> tuple[RequestLog, Manifest, LoadReport]:
    """Return the requests of an event log, or of one part of it, with manifest and report.

    Raises
    ------
    TraceError, ValueError
        As `read_event_log`, and when the part is empty.
    """
    whole, report = read_event_log(path, options, progress=progress)
    log, left_out = cut(whole, part)
    manifest = Manifest(
        regime="log",
        seed=0,
        parameters=_told(options, report, log.laws[0]),
        ingredients=_ingredients(path.name, options, report, log.laws[0]),
        held=Held(part=str(part), time_percent=PART_PERCENT[part], users=USERS_RULE, left_out=left_out),
    )
    return log, manifest.of(requests=len(log), users=log.users, digest=log.digest), report


def _told(options: LogOptions, report: LoadReport, law: RowLaw) -> dict[str, Any]:
    """The rules as JSON values, and the law of rows with what is to be doubted of it; of the key only where it came from."""
    names = (
        "disorder_ms",
        "signal_window_ms",
        "merge_ms",
        "tokens_per_event",
        "max_history_tokens",
        "candidates_when_missing",
        "rows_per_token",
    )
    return {name: getattr(options, name) for name in names} | {
        "on_bad": str(options.on_bad),
        "pool_key": "random" if options.pool_key is None else "given",
        "law": asdict(law),
        ROW_DOUBTS: list(report.row_doubts),
    }


def _ingredients(name: str, options: LogOptions, report: LoadReport, law: RowLaw) -> tuple[Ingredient, ...]:
    given = report.requests - report.histories_counted
    histories = (
        f"{given} given, {report.histories_counted} counted with {options.tokens_per_event} tokens for each earlier ranking, "
        f"{report.histories_cut} cut at {options.max_history_tokens}"
    )
    slots = "user ids hashed under " + ("a random key" if report.random_key else "the given key")
    assumed = options.candidates_when_missing
    return (
        Ingredient(
            what="arrivals and users",
            origin=Origin.REAL,
            source=name,
            rule=f"{report.skipped} lines skipped, {report.merged} rankings merged",
        ),
        Ingredient(what="slots", origin=Origin.REAL if not report.random_key else Origin.SCALED, source=name, rule=slots),
        Ingredient(
            what="lengths of history",
            origin=Origin.SCALED if report.histories_counted else Origin.REAL,
            source=name,
            rule=histories,
        ),
        Ingredient(
            what="candidates",
            origin=Origin.SCALED if assumed else Origin.REAL,
            source=name,
            rule=f"{assumed} where the log says nothing" if assumed else "as the log says",
        ),
        Ingredient(
            what="early signals",
            origin=Origin.REAL,
            source=name,
            rule=f"{report.signals}, of which {report.signals_used} announce",
        ),
        _rows(name, options, report, law),
    )


def _rows(name: str, options: LogOptions, report: LoadReport, law: RowLaw) -> Ingredient:
    each = f"{options.rows_per_token} a token and a candidate"
    if report.item_law is not None:
        fitted = f"{each}, by the law of the whole log's items, each with as many rows: {report.item_law.words}"
        return Ingredient(what="embedding rows", origin=Origin.SCALED, source=name, rule=fitted)
    drift = f"{law.drift_percent_per_hour:g} percent drift an hour"
    rule = f"{each}, exponent {law.exponent:g} over {law.catalog_rows} rows, {drift}"
    return Ingredient(what="embedding rows", origin=Origin.GENERATED, source="Zipf", rule=rule)
