"""Residency: which users' states an instance holds, told in changes since a cursor, and the overrides that are made of it.

A report names the users whose state changed last, the most recent first, with the tokens that each tier holds; one that holds
nothing any more has zeros. Keys are keyed hashes of user ids, never the ids. A report is bound to one start of one engine: counts
and cursors of another start mean nothing. docs/contract.md has the rules, docs/routing.md what becomes of it.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from contract.engine import Count, Milliseconds, Name, UserKey, Wire
from contract.errors import ProtocolViolation

MAX_USERS = 5000
"""Most users in one report."""
MAX_REPORT_BYTES = 1024 * 1024
"""Largest report that is read."""
MAX_OVERRIDES = 131_072
MAX_OVERRIDES_MS = 86_400_000.0
"""A day: for so long the overrides of a gateway that is gone hold at most."""
OVERRIDES_PATH = "/gr/v1/overrides"
"""Where a gateway tells its overrides to clients."""
_KEY_BYTES = 16


class UserState(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """State of one user: history tokens by the fastest tier that holds them (each counts once), and time since it was used.

    Zeros in all tiers mean that the state is gone.
    """

    key: UserKey
    tokens_hbm: Count = 0
    tokens_host: Count = 0
    tokens_ssd: Count = 0
    age_ms: Milliseconds = 0.0

    @property
    def gone(self) -> bool:
        """Whether nothing is left of it."""
        return not (self.tokens_hbm or self.tokens_host or self.tokens_ssd)


class InstanceLoad(Wire, frozen=True, kw_only=True):
    """What an agent knows of its engine beside its users; None is unknown, never zero.

    `reachable` says whether the engine answers its agent. `serviceMs` is the mean of the last ten seconds; times a token or a row
    are what one that misses costs. `embHitPercent` is of the rows asked.
    """

    reachable: bool
    draining: bool = False
    refilling: bool = False
    queue: Count | None = None
    in_flight: Count | None = None
    service_ms: Milliseconds | None = None
    emb_hit_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    rows_per_request: Milliseconds | None = None
    ms_per_row: Milliseconds | None = None
    ms_per_token: Milliseconds | None = None
    ms_per_token_host: Milliseconds | None = None


class ResidencyReport(Wire, frozen=True, kw_only=True):
    """Answer of GET /residency?cursor=, of an engine and of an agent.

    Attributes
    ----------
    uid
        Of the GRInstance; empty from an engine, which does not know it.
    start_id
        Of the engine's process.
    generation
        Of its caches (the `epoch`): a later one begins with nothing of the one before.
    since
        The report tells all that changed after this cursor. It is the one that was asked for; or 0, when that is unknown or more
        has changed than a report holds: then what was known before is to be forgotten.
    cursor
        To ask for next; at least 1.
    users
        What changed, most recent first; with `since` 0 the last ones that hold anything.
    load
        From an agent.
    """

    start_id: Name
    generation: Count
    since: Count
    cursor: Annotated[int, Meta(ge=1, le=1 << 62)]
    users: Annotated[list[UserState], Meta(max_length=MAX_USERS)]
    uid: Name = ""
    load: InstanceLoad | None = None


class OverrideTable(Wire, frozen=True, kw_only=True):
    """Hot users that go elsewhere than their slot says, as a gateway tells clients.

    `keys` are 16 bytes for each user, `owners` a little-endian u16 for each, an index into `instances` (uids); both base64. They
    hold for `forMs` from when they are read. Whoever asks names the `revision` that it has (`?known=`), and is answered 204 where
    that is the one in force.
    """

    instances: Annotated[list[Name], Meta(max_length=4096)]
    keys: str
    owners: str
    for_ms: Annotated[float, Meta(ge=0, le=MAX_OVERRIDES_MS)]
    revision: Name = ""


def pack_overrides(users: Mapping[str, str], *, for_ms: float, revision: str = "") -> OverrideTable:
    """Return the packed form of overrides (user key -> instance uid)."""
    number: dict[str, int] = {}
    owners = bytearray()
    for uid in users.values():
        owners += number.setdefault(uid, len(number)).to_bytes(2, "little")
    keys = bytes.fromhex("".join(users))
    return OverrideTable(
        instances=list(number),
        keys=base64.b64encode(keys).decode(),
        owners=base64.b64encode(owners).decode(),
        for_ms=for_ms,
        revision=revision,
    )


def unpack_overrides(table: OverrideTable) -> dict[str, str]:
    """Return instance uid by user key.

    Raises
    ------
    ProtocolViolation
        When it is no such table.
    """
    try:
        keys = base64.b64decode(table.keys, validate=True)
        owners = base64.b64decode(table.owners, validate=True)
    except (ValueError, binascii.Error) as error:
        raise ProtocolViolation("overrides: not base64") from error
    count = len(owners) // 2
    if len(owners) != 2 * count or len(keys) != _KEY_BYTES * count or count > MAX_OVERRIDES:
        raise ProtocolViolation(f"overrides: {len(keys)} bytes of keys and {len(owners)} of owners")
    text, uids = keys.hex(), table.instances
    try:
        return {text[32 * at : 32 * at + 32]: uids[owners[2 * at] | owners[2 * at + 1] << 8] for at in range(count)}
    except IndexError:
        raise ProtocolViolation(f"overrides: an owner is not below the {len(uids)} instances") from None


def decode_report(body: bytes) -> ResidencyReport:
    """Return a report from its bytes.

    Raises
    ------
    ProtocolViolation
        When it is too large, or no report.
    """
    if len(body) > MAX_REPORT_BYTES:
        raise ProtocolViolation(f"residency: {len(body)} bytes, at most {MAX_REPORT_BYTES} are read")
    try:
        return _REPORTS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"residency: {error}") from error


_REPORTS = msgspec.json.Decoder(ResidencyReport)
