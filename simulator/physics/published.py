"""Published measurements that the laws are fitted to or held against: tables with a source, as data files."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.physics.sourced import ProfileError, shipped

Cell = str | int | float


@dataclass(frozen=True, kw_only=True)
class Table:
    """One published table.

    Parameters
    ----------
    name, summary, source, notes : str
        What was measured, where it stands, how it was read.
    rows : tuple of mappings
        One a measurement, by column.
    """

    name: str
    summary: str
    source: str
    notes: str
    rows: tuple[Mapping[str, Cell], ...]

    def numbers(self, column: str) -> list[float]:
        """One column as floats."""
        return [float(row[column]) for row in self.rows]


def load_table(name: str) -> Table:
    """Load a table that comes with grfleet.

    Raises
    ------
    ProfileError
        When there is none of that name, or rows and columns do not match.
    """
    document = tomllib.loads(shipped("published", name).read_text(encoding="utf-8"))
    columns = document["columns"]
    for index, row in enumerate(document["rows"]):
        if len(row) != len(columns):
            raise ProfileError(f"{name}: row {index} has {len(row)} cells for {len(columns)} columns")
    return Table(
        name=name,
        summary=document["summary"],
        source=document["source"],
        notes=document["notes"],
        rows=tuple(dict(zip(columns, row, strict=True)) for row in document["rows"]),
    )
