"""Hot users on the command line of `grfleet-gateway`: flags, and the loop that they ask for; off without `--agents`."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Protocol

from dataplane.gateway.agents import PERIOD_S, Addresses, ResidencyLoop, UsersFace
from dataplane.gateway.residents import Residents
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
    add("--hot-users", type=_between(0, 131_072), default=100_000, metavar="N", help="most overrides; default %(default)s")
    add(
        "--hot-user-seconds",
        type=_between(1, 86_400),
        default=300,
        metavar="S",
        help="how long an override outlives the last that is known of its user; default %(default)s",
    )
    add(
        "--override-bound-percent",
        type=_between(100, 1000),
        default=125,
        metavar="N",
        help="overrides leave an instance no more load than so much of its share; default %(default)s",
    )
    add(
        "--override-bound-floor",
        type=_between(0, 100_000),
        default=8,
        metavar="N",
        help="requests in flight below which the bound refuses nobody; default %(default)s",
    )


def loop_of(options: argparse.Namespace, agent: UsersFace, config: Bounded) -> ResidencyLoop | None:
    """Return the loop that the flags ask for, None without `--agents`.

    Raises
    ------
    ValueError
        When the addresses of the agents are neither a pattern nor a file's name.
    """
    if options.agents is None:
        return None
    limits = Limits(
        most=min(int(options.hot_users), config.max_users),
        ttl_ms=1000.0 * options.hot_user_seconds,
        bound=LoadBound(percent=options.override_bound_percent, floor=options.override_bound_floor),
    )
    return ResidencyLoop(
        agent,
        Residents(limits),
        Addresses(options.agents),
        monotonic_s=time.monotonic,
        rng=random.Random(),  # only spreads pauses
        period_s=options.agents_seconds,
        for_ms=limits.ttl_ms,
    )


def _between(low: float, high: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{low:g} to {high:g}")
        return value

    return number
