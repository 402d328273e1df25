"""Follows the instances through the API server and draws them: what is shown is the real status, as `kubectl get grp,gri` has it.

On a terminal the table is redrawn in place; elsewhere one line is printed every ten seconds.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grfleet.demo import objects
from grfleet.demo.cluster import Api, condition_status
from grfleet.demo.driver import Progress

LINE_EVERY_S = 10.0
_LEGEND = (
    "target, EMB%: share of HBM that EMB shall have and has, KV has the rest; settled: it has arrived; "
    "hits and P99: last ten seconds, model time; reason: why the split is what it is (docs/agent.md)"
)
_COLUMNS = ("instance", "target", "EMB%", "settled", "KV\nhit", "EMB\nhit", "P99\nms", "strategy", "reason")
_LEAST = {"instance": 17}  # a narrow terminal cuts the text at the right, never the name


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The status of one instance at one moment: what the API server said, None where it said nothing."""

    unix_s: float
    pool: str
    instance: str
    target_percent: int | None
    accepted_percent: int | None
    settled: str
    kv_hit_percent: int | None
    emb_hit_percent: int | None
    p99_ms: str | None
    strategy: str
    reason: str


@dataclass
class Watcher:
    """Collects what was seen and shows it.

    Parameters
    ----------
    api : Api
    console : Console
    progress_file : Path
        Where the driver says how far it is.
    duration_ms : float
        Length of the workload.
    """

    api: Api
    console: Console
    progress_file: Path
    duration_ms: float
    phase_names: tuple[tuple[float, str], ...]
    history: list[Seen] = field(default_factory=list)
    table_generations: dict[str, int] = field(default_factory=dict)
    _next_line_s: float = 0.0
    _live: Live | None = None

    def __enter__(self) -> "Watcher":
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def look(self) -> None:
        """Read the objects once, remember them, and show them."""
        now_s = time.time()
        rows = sorted((_seen(item, now_s) for item in self.api.list("grinstances")), key=lambda row: row.instance)
        self.history.extend(rows)
        for table in self.api.list("grroutingtables"):
            self.table_generations[table["metadata"]["namespace"]] = int(table.get("status", {}).get("generation", 0))
        progress = self.progress()
        if self._live is not None:
            self._live.update(Group(Text(self._headline(progress)), _table(rows), Text(_LEGEND, style="dim")), refresh=True)
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + LINE_EVERY_S
            self.console.print(self._line(progress, rows), soft_wrap=True, highlight=False)

    def progress(self) -> Progress | None:
        """Where the driver is; None before it has begun."""
        try:
            return msgspec.json.decode(self.progress_file.read_bytes(), type=Progress)
        except (OSError, msgspec.MsgspecError):
            return None

    def _headline(self, progress: Progress | None) -> str:
        if progress is None:
            return "connecting"
        name = next((name for end_ms, name in self.phase_names if progress.trace_ms < end_ms), self.phase_names[-1][1])
        return (
            f"{progress.trace_ms / 1000:.0f} of {self.duration_ms / 1000:.0f} s · {name} · "
            f"{progress.answered} answered, {progress.failed} failed · latest sent up to {progress.max_lag_ms:.1f} ms late"
        )

    def _line(self, progress: Progress | None, rows: list[Seen]) -> str:
        parts = []
        for pool in objects.NAMESPACES:
            mine = [row for row in rows if row.pool == pool]
            shares = "/".join(_text(row.accepted_percent) for row in mine)
            reasons = ",".join(sorted({row.reason for row in mine}))
            parts.append(f"{pool} EMB% {shares} ({reasons})")
        return f"{self._headline(progress)} · {' · '.join(parts)}"


def _table(rows: list[Seen]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, no_wrap=True, min_width=_LEAST.get(column, max(map(len, column.split("\n")))))
    previous = ""
    for row in rows:
        if previous and row.pool != previous:
            table.add_row()
        previous = row.pool
        table.add_row(
            row.instance,
            _text(row.target_percent),
            _text(row.accepted_percent),
            row.settled,
            _text(row.kv_hit_percent),
            _text(row.emb_hit_percent),
            row.p99_ms or "-",
            row.strategy,
            row.reason,
        )
    return table


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)


def _seen(item: dict[str, Any], now_s: float) -> Seen:
    status = item.get("status") or {}
    split = status.get("split") or {}
    caches = status.get("caches") or {}
    return Seen(
        unix_s=now_s,
        pool=item["metadata"]["namespace"],
        instance=f"{item['metadata']['namespace']}/{item['metadata']['name']}",
        target_percent=(split.get("target") or {}).get("embPercent"),
        accepted_percent=(split.get("accepted") or {}).get("embPercent"),
        settled=condition_status(item, "SplitSettled"),
        kv_hit_percent=caches.get("kvHitPercent"),
        emb_hit_percent=caches.get("embHitPercent"),
        p99_ms=status.get("p99Ms"),
        strategy=status.get("strategyInForce", ""),
        reason=status.get("reason", ""),
    )
