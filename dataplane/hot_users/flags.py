"""Hot users on the command line of gateways and pickers: flags, and the loop that they ask for; off without `--agents`.

Their number, time and bound are what the pool's table says, but for what a flag says.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from contract.table import TableLimits
from dataplane.hot_users.agents import PERIOD_S, Addresses, ResidencyLoop, UsersFace
from dataplane.hot_users.residents import Residents
from policies.routing.types import Limits, LoadBound


class Bounded(Protocol):
    """What says how many hot users there is room for."""

    @property
    def max_users(self) -> int: ...


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of hot users."""
    add = parser.add_argument
    add(
        "--agents",
        metavar="PATTERN|FILE",
        help="send hot users to where their state is, by what the agents of instances report; they are at a URL with {host} "
        "(of the instance's address) or {name}, such as http://{host}:9001, or in a JSON file of URLs by instance name",
    )
    add(
        "--agents-seconds",
        type=_between(0.1, 60.0),
        default=PERIOD_S,
        metavar="S",
        help="time between two looks at each agent; default %(default)s",
    )
    add("--hot-users", type=_between(0, 131_072), metavar="N", help="most overrides; default: what the table says")
    add(
        "--hot-user-seconds",
        type=_between(1, 86_400),
        metavar="S",
        help="how long an override outlives the last that is known of its user; default: what the table says",
    )
    add(
        "--override-bound-percent",
        type=_between(100, 1000),
        metavar="N",
        help="overrides leave an instance no more load than so much of its share; default: what the table says",
    )
    add(
        "--override-bound-floor",
        type=_between(0, 100_000),
        metavar="N",
        help="requests in flight below which the bound refuses nobody; default: what the table says",
    )


@dataclass(frozen=True, kw_only=True)
class GivenLimits:
    """Limits of the hot users as far as flags gave them; the table, and after it `Limits`, fills in the rest.

    Attributes
    ----------
    room
        Hot users that there is room for, whatever anybody says.
    """

    most: float | None = None
    ttl_s: float | None = None
    percent: float | None = None
    floor: float | None = None
    room: int

    def with_table(self, said: TableLimits) -> Limits:
        """Return the limits under a table that says this."""
        usual = Limits()
        return Limits(
            most=min(int(_first(self.most, said.hot_users_max, usual.most)), self.room),
            ttl_ms=1000.0 * _first(self.ttl_s, said.hot_user_seconds, usual.ttl_ms / 1000.0),
            bound=LoadBound(
                percent=_first(self.percent, said.bounded_load_percent, usual.bound.percent),
                floor=_first(self.floor, said.bounded_load_floor, usual.bound.floor),
            ),
        )


def _first(*values: float | None) -> float:
    return float(next(value for value in values if value is not None))


def loop_of(options: argparse.Namespace, agent: UsersFace, config: Bounded) -> ResidencyLoop | None:
    """Return the loop that the flags ask for, None without `--agents`.

    Raises
    ------
    ValueError, OSError
        When the addresses of the agents are neither a pattern nor a file's name, or there are no authorities in `--ca-file`.
    """
    if options.agents is None:
        return None
    loop = _loop(options, agent, config)
    if options.ca_file is not None:
        loop.trust(Path(options.ca_file).read_bytes())
    return loop


def _loop(options: argparse.Namespace, agent: UsersFace, config: Bounded) -> ResidencyLoop:
    given = GivenLimits(
        most=options.hot_users,
        ttl_s=options.hot_user_seconds,
        percent=options.override_bound_percent,
        floor=options.override_bound_floor,
        room=config.max_users,
    )
    return ResidencyLoop(
        agent,
        Residents(given.with_table(TableLimits())),
        Addresses(options.agents),
        monotonic_s=time.monotonic,
        rng=random.Random(),  # only spreads pauses
        period_s=options.agents_seconds,
        limits_under=given.with_table,
    )


def _between(low: float, high: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{low:g} to {high:g}")
        return value

    return number
