"""Tables for people and JSON for programs.

On a terminal, columns that do not fit are left out and named; into a file or a pipe everything goes, without colour.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from grfleet.inert import inert
from grfleet.top.columns import LEGEND, Column, instance_columns, pool_columns
from grfleet.top.order import Urgency, instance_urgency, pool_urgency, worst_first, worst_instances_first
from grfleet.top.view import PoolView

_GAP = 2
_MESSAGES = 3  # the worst explain themselves in words; the others have their reason
_STYLES = {
    Urgency.DOWN: "bold red",
    Urgency.DEGRADED: "red",
    Urgency.POLICY: "yellow",
    Urgency.OBJECTIVE: "yellow",
    Urgency.LEAVING: "dim",
    Urgency.UNMEASURED: "dim",
}

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one look at the API server found.

    Attributes
    ----------
    pool
        Name of the only pool to show, with its instances; empty for all pools.
    namespace
        Empty for all of them.
    notes
        What could not be read, and what to do about it.
    """

    pools: Sequence[PoolView]
    now: datetime
    namespace: str
    pool: str = ""
    notes: tuple[str, ...] = ()


def as_json(seen: Seen, *, indent: int) -> str:
    """One object: the time and the pools with their instances, worst first; null is what is not known."""
    pools = [
        msgspec.structs.replace(pool, instances=None if pool.instances is None else tuple(worst_instances_first(pool)))
        for pool in worst_first(list(seen.pools))
    ]
    found = {"time": seen.now, "notes": seen.notes, "pools": pools}
    encoded = msgspec.json.encode(found)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()


@dataclass(frozen=True, kw_only=True)
class Frame:
    """How much there is room for; None for as much as there is to show.

    Attributes
    ----------
    wide
        Whether to show the columns of `-o wide` too.
    width
        Characters of a line.
    rows
        Rows of the longest table.
    """

    wide: bool = False
    width: int | None = None
    rows: int | None = None


def as_table(seen: Seen, frame: Frame) -> RenderableType:
    """The tables, and under them what is wrong with the worst in words."""
    pools = worst_first(list(seen.pools))
    columns = pool_columns(namespaces=not seen.namespace)
    parts = [_table(pools, columns, lambda pool: _STYLES.get(pool_urgency(pool), ""), frame)]
    parts += [_message(pool.name, pool.message) for pool in pools[:_MESSAGES] if pool.message and pool.ready is not True]
    for pool in pools if seen.pool else ():
        parts += [Text(), *_members(pool, frame, title=len(pools) > 1)]
    parts += [inert(note, style="yellow") for note in seen.notes]
    return Group(*parts)


def _members(pool: PoolView, frame: Frame, *, title: bool) -> list[RenderableType]:
    rows = worst_instances_first(pool)
    if not rows:
        return [inert(f"{pool.namespace}/{pool.name} has no instance yet")]
    parts: list[RenderableType] = [inert(f"{pool.namespace}/{pool.name}", style="bold")] if title else []
    parts.append(_table(rows, instance_columns(), lambda each: _STYLES.get(instance_urgency(each, pool), ""), frame))
    parts += [_message(each.name, each.message) for each in rows[:_MESSAGES] if each.message and each.ready is not True]
    return parts


def _message(name: str, words: str) -> Text:
    return inert(f"{name}: {words}", style="dim")


def headline(seen: Seen, *, host: str) -> Text:
    """The first line of the live view."""
    instances = [each for pool in seen.pools for each in pool.instances or ()]
    ready = sum(each.ready is True for each in instances)
    pools = "1 pool" if len(seen.pools) == 1 else f"{len(seen.pools)} pools"
    where = f"namespace {seen.namespace}" if seen.namespace else "all namespaces"
    return Text(
        f"{seen.now:%H:%M:%S}Z · {host} · {where} · {pools}, {ready} of {len(instances)} instances ready",
        style="bold",
        no_wrap=True,
        overflow="ellipsis",
    )


def legend() -> Text:
    """The last line of the live view."""
    return Text(LEGEND, style="dim")


def plain(renderable: RenderableType) -> str:
    """Lines for a file or a pipe: no colour, nothing cut, no blanks at the ends."""
    console = Console(width=10_000, color_system=None, force_terminal=False, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _table(rows: Sequence[Row], columns: Sequence[Column[Row]], style: Callable[[Row], str], frame: Frame) -> RenderableType:
    fitting = rows if frame.rows is None else rows[: frame.rows]
    shown = [column for column in columns if frame.wide or not column.wide]
    cells = {column.title: [column.cell(row) for row in fitting] for column in shown}
    hidden: list[str] = []
    if frame.width is not None:
        shown, hidden = _fitting(shown, cells, frame.width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in shown:
        table.add_column(column.title, no_wrap=True, justify="right" if column.right else "left", overflow="ellipsis")
    for at, row in enumerate(fitting):
        table.add_row(*(inert(cells[column.title][at]) for column in shown), style=style(row))
    parts: list[RenderableType] = [table]
    if len(fitting) < len(rows):
        parts.append(Text(f"and {len(rows) - len(fitting)} more, none of them worse", style="dim"))
    if hidden:
        parts.append(Text(f"not shown, the terminal is too narrow: {', '.join(hidden)}", style="dim"))
    return Group(*parts)


def _fitting(columns: list[Column[Row]], cells: dict[str, list[str]], width: int) -> tuple[list[Column[Row]], list[str]]:
    """The columns that fit into `width` characters, those to keep longest last to leave, and the titles of the others."""
    needed = {c.title: max(len(text) for text in (c.title, *cells[c.title])) + _GAP for c in columns}
    kept, hidden = list(columns), []
    while len(kept) > 2 and sum(needed[c.title] for c in kept) - _GAP > width:
        leaving = min(reversed(kept), key=lambda column: column.keep)
        kept.remove(leaving)
        hidden.append(leaving.title)
    return kept, hidden
