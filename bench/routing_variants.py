"""The gateway's configuration part by part, from plain consistent hash of the raw id up to all of it.

The whole is what `dataplane.gateway.config` renders; what is less is that text without the lines of a part, so that a part that
is rendered otherwise tomorrow is measured as it then is, and one that is no longer found is an error. Floors are consistent hash
with what no configuration can do without, whose result is thrown away: what a goal asks below them, HAProxy cannot give.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from contract.keys import SLOTS as SLOT_COUNT
from dataplane.gateway.config import FLEET, SLOT_TABLE, USER_TABLE, GatewayConfig, render
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

FLOOR_KEY, FLOOR_USERS, FLOOR_WHOLE = (
    "floor: consistent hash that names the instance, and the keyed hash for nothing",
    "floor: consistent hash with the same headers, and a look-up among hot users for nothing",
    "floor: consistent hash that names the instance, keyed hash and both look-ups for nothing",
)
_FOR_NOTHING = "  http-request set-var(txn.floor)"
_USERS_FOR_NOTHING = f"{_FOR_NOTHING} var(txn.gr_key),table_gpt0({USER_TABLE})"
_SLOTS_FOR_NOTHING = f"{_FOR_NOTHING} var(txn.gr_key),xxh32,mod({SLOT_COUNT}),table_gpt0({SLOT_TABLE})"

#: Each floor: the variant that it adds to, whether it makes a user key, and its other rules.
_FLOORS: dict[str, tuple[str, bool, tuple[str, ...]]] = {
    FLOOR_KEY: (NAMED, True, ()),
    FLOOR_USERS: (KEYED, False, (_USERS_FOR_NOTHING,)),
    FLOOR_WHOLE: (NAMED, True, (_USERS_FOR_NOTHING, _SLOTS_FOR_NOTHING)),
}
FLOORS = tuple(_FLOORS)


def variant(name: str, config: GatewayConfig, servers: Sequence[Server]) -> str:
    """Return the configuration of a variant or a floor.

    Raises
    ------
    ValueError
        When the rendered configuration has no line of a part that is to be left out.
    """
    whole = render(config, tuple(servers)).splitlines()
    base, keyed, rules = _FLOORS.get(name, (name, False, ()))
    lines = whole
    for part in LACKS[base]:
        lines = _without(part, lines)
    # Where the frontend ends its rules for requests; the rule of the key as the product has it.
    at = next(number for number, line in enumerate(lines) if line == f"  default_backend {FLEET}")
    key = [line for line in whole if "set-var(txn.gr_key)" in line and ",hmac(" in line] if keyed else []
    return "\n".join([*lines[:at], *key, *rules, *lines[at:]]) + "\n"


def _without(part: Part, lines: Sequence[str]) -> list[str]:
    found = [number for number, line in enumerate(lines) if re.search(part.lines, line)]
    if not found:
        raise ValueError(
            f"{part.name}: the gateway's configuration has no line of it; bring bench/routing_variants.py up to date"
        )
    kept = [part.instead if number == found[0] else line for number, line in enumerate(lines) if number not in found[1:]]
    return [line for line in kept if line]
