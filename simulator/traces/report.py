"""What a reader tells about an event log: how much it used, what it left out and why, and what it filled in by a rule."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from simulator.traces.item_law import ItemLaw

REPORT_FORMAT = "grfleet-trace-report/1"


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A line that was left out: where, and why. Never what stood there."""

    line: int
    field: str | None
    problem: str


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """Summary of one reading.

    Attributes
    ----------
    lines, requests, signals : int
        Lines that are not blank (a CSV's first one aside), rankings, early signals.
    signals_used : int
        Signals that announced a ranking; the others came too early, or twice, or their ranking never came.
    users : int
        Users with a ranking.
    span_ms : float
        From the first ranking to the last.
    reordered : int
        Lines that came a little out of order and were sorted.
    histories_counted, histories_cut : int
        Histories that the log does not give, counted from the user's earlier rankings; histories cut at the model's context.
    merged : int
        Rankings that were part of an earlier one.
    skipped : int
        Lines left out.
    skipped_by : dict of str to int
        `field: problem` and how often.
    skipped_first : tuple of Skipped
        The first of them.
    unknown_columns : tuple of str
        Columns that were ignored.
    random_key : bool
        User ids were hashed under a key that nobody has any more, so slots are not those of a real pool.
    items_named : bool
        The log names items, and no law of rows was given that would make them idle.
    item_law : ItemLaw or None
        The law that was fitted to them; None without items, or with too few.
    """

    lines: int
    requests: int
    signals: int
    signals_used: int
    users: int
    span_ms: float
    reordered: int
    histories_counted: int
    histories_cut: int
    merged: int
    skipped: int
    skipped_by: dict[str, int]
    skipped_first: tuple[Skipped, ...]
    unknown_columns: tuple[str, ...]
    random_key: bool
    items_named: bool = False
    item_law: ItemLaw | None = None

    @property
    def row_doubts(self) -> tuple[str, ...]:
        """Why embedding rows drawn for these requests may not be like the log's items."""
        if self.item_law is not None:
            return tuple(f"embedding rows: {doubt}" for doubt in self.item_law.doubts)
        few = "embedding rows: the log names too few items to fit their popularity, so a general law is taken"
        return (few,) if self.items_named else ()

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, `format` first."""
        law = self.item_law.to_json() if self.item_law is not None else None
        return {"format": REPORT_FORMAT, **asdict(replace(self, item_law=None)), "item_law": law}
