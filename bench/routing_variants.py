"""The gateway's configuration part by part, from plain consistent hash of the raw id up to all of it.

The whole is what `dataplane.gateway.config` renders; what is less is that text without the lines of a part, so that a part that
is rendered otherwise tomorrow is measured as it then is, and one that is no longer found is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dataplane.gateway.config import GatewayConfig, render
from dataplane.gateway.servers import Server


@dataclass(frozen=True)
class Part:
    """One part of the path of a request, by the lines that make it; `instead` replaces the first of them when it is left out."""

    name: str
    lines: str
    instead: str = ""


BOUND = Part("bound of the hash", r"^  hash-balance-factor ")
ECHO = Part("choice that the caller echoes", r"gr_echo|^  http-request del-header x-gr-instance$")
SLOTS = Part("slot table", r"gr_slot\b|,table_gpt0\(gr_slots\)")
USERS = Part("hot-user table", r"gr_user\b|set-var\(txn.gr_bare\)|,table_gpt0\(gr_users\)")
NAMES = Part("name of the instance in the answer", r"^  http-response set-header x-gr-instance ")
KEY = Part("user key at the edge", r"gr_key|^  http-request del-header x-(user-id|gr-user-key)$")
HASH = Part("hash of the key", r"^  balance hash ", "  balance hash req.fhdr(x-user-id)")

PLAIN, NAMED, KEYED, OVERRIDES, TABLES, WHOLE = (
    "plain consistent hash",
    "+ name of the instance in the answer",
    "+ user key at the edge",
    "+ hot-user table (overrides only)",
    "+ slot table",
    "+ choice that the caller echoes (the whole gateway)",
)

#: What each variant lacks of the whole, from the least to the most.
LACKS: dict[str, tuple[Part, ...]] = {
    PLAIN: (BOUND, ECHO, SLOTS, USERS, NAMES, HASH, KEY),
    NAMED: (BOUND, ECHO, SLOTS, USERS, HASH, KEY),
    KEYED: (BOUND, ECHO, SLOTS, USERS),
    OVERRIDES: (BOUND, ECHO, SLOTS),
    TABLES: (ECHO,),
    WHOLE: (),
}


def variant(name: str, config: GatewayConfig, servers: Sequence[Server]) -> str:
    """Return the configuration of a variant.

    Raises
    ------
    ValueError
        When the rendered configuration has no line of a part that is to be left out.
    """
    lines = render(config, tuple(servers)).splitlines()
    for part in LACKS[name]:
        lines = _without(part, lines)
    return "\n".join(lines) + "\n"


def _without(part: Part, lines: Sequence[str]) -> list[str]:
    found = [number for number, line in enumerate(lines) if re.search(part.lines, line)]
    if not found:
        raise ValueError(
            f"{part.name}: the gateway's configuration has no line of it; bring bench/routing_variants.py up to date"
        )
    kept = [part.instead if number == found[0] else line for number, line in enumerate(lines) if number not in found[1:]]
    return [line for line in kept if line]
