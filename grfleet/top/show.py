"""Where a look goes: redrawn in place on a terminal, appended elsewhere, one JSON object a line for programs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from grfleet.top.follow import Screen
from grfleet.top.render import Frame, Seen, as_json, as_table, headline, legend, plain

_OTHER_LINES = 14
"""Lines of a screen that are not rows: headline, titles, the row of the pool, messages, legend."""


@contextmanager
def screen_of(*, terminal: bool, json: bool, wide: bool, live: bool, host: str) -> Iterator[Screen]:
    """The screen for this way of showing."""
    if json:
        yield Json(indent=0 if live else 2)
    elif terminal and not (console := Console(highlight=False)).is_dumb_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as drawn:
            yield Redrawn(drawn, wide=wide, host=host)
    else:
        yield Appended(wide=wide, stamped=live)


@dataclass
class Json:
    """One object a look on standard output; problems go to standard error."""

    indent: int

    def show(self, seen: Seen, *, problem: str) -> None:
        """See :class:`Screen`."""
        if problem:
            print(f"top: {problem}", file=sys.stderr, flush=True)
        else:
            print(as_json(seen, indent=self.indent), flush=True)


@dataclass
class Appended:
    """Plain lines; on a terminal with colours, as wide as it is."""

    wide: bool
    stamped: bool

    def show(self, seen: Seen, *, problem: str) -> None:
        """See :class:`Screen`."""
        if problem:
            print(f"top: {problem}", file=sys.stderr, flush=True)
            return
        if self.stamped:
            print(f"{seen.now:%Y-%m-%dT%H:%M:%SZ}")
        if not seen.pools:
            print(nothing(seen), file=sys.stderr, flush=True)
        elif sys.stdout.isatty():
            console = Console(highlight=False)
            console.print(as_table(seen, Frame(wide=self.wide, width=console.width)))
        else:
            print(plain(as_table(seen, Frame(wide=self.wide))), flush=True)


@dataclass
class Redrawn:
    """A live table."""

    drawn: Live
    wide: bool
    host: str

    def show(self, seen: Seen, *, problem: str) -> None:
        """See :class:`Screen`."""
        parts: list[RenderableType] = [headline(seen, host=self.host)]
        if problem:
            parts.append(Text(f"nothing newer than this: {problem}", style="bold red"))
        width, height = self.drawn.console.size
        frame = Frame(wide=self.wide, width=width, rows=max(3, height - _OTHER_LINES))
        body = as_table(seen, frame) if seen.pools else Text(nothing(seen))
        self.drawn.update(Group(*parts, body, legend()), refresh=True)


def nothing(seen: Seen) -> str:
    """What to say when there is no pool."""
    if seen.namespace:
        return f"no GRServingPool in namespace {seen.namespace}; -A looks in all namespaces, -n in another"
    return "no GRServingPool in any namespace; docs/first-pool.md makes one"
