"""What a workload is made of, for people and for machines: each part real, scaled or generated, with its source and its rule.

A result is worth what its workload is worth, so the manifest travels with the requests: in the file that holds them, and into
every report that is made of them.
"""

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

MANIFEST_FORMAT = "grfleet-workload/1"


class Origin(StrEnum):
    """Where a part comes from: a recording as it is, a recording changed by a stated rule, or a law and a seed."""

    REAL = "real"
    SCALED = "scaled"
    GENERATED = "generated"


@dataclass(frozen=True, kw_only=True)
class Ingredient:
    """One part of a workload.

    Attributes
    ----------
    what : str
        Which property of the requests.
    origin : Origin
        Real, scaled or generated.
    source : str
        Trace file with the start of its SHA-256, or the law.
    rule : str
        What was done to it.
    """

    what: str
    origin: Origin
    source: str
    rule: str


@dataclass(frozen=True, kw_only=True)
class Event:
    """A burst: its kind, its place in time (milliseconds), and the requests that it added or changed."""

    kind: str
    start_ms: float
    end_ms: float
    requests: int


@dataclass(frozen=True, kw_only=True)
class Cloning:
    """How often recorded visits were played: copies side by side (`streams`), and plays of each visit on average."""

    visits: str
    recorded: int
    streams: int
    plays_per_visit: float


@dataclass(frozen=True, kw_only=True)
class Held:
    """Which part of the recordings was used: percent of their time, and how users are kept apart between parts."""

    part: str
    time_percent: tuple[float, float]
    users: str
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of one workload.

    Attributes
    ----------
    regime : str
        `steady`, `trend`, `burst`, `generated`, or `log` for a team's own.
    seed : int
        Of everything that is drawn.
    parameters : dict
        What the generator was called with; JSON values only.
    ingredients : tuple of Ingredient
        Every property of the requests, once.
    cloning : tuple of Cloning
        Empty where nothing recorded was played more than once.
    events : tuple of Event
        Bursts in order of time.
    held : Held or None
        None where nothing recorded is in it.
    requests, users, digest
        Of the requests it describes; `digest` is that of the RequestLog.
    """

    regime: str
    seed: int
    parameters: dict[str, Any]
    ingredients: tuple[Ingredient, ...]
    cloning: tuple[Cloning, ...] = ()
    events: tuple[Event, ...] = ()
    held: Held | None = None
    requests: int = 0
    users: int = 0
    digest: str = ""

    def of(self, *, requests: int, users: int, digest: str) -> "Manifest":
        """Return the manifest bound to the requests that were made."""
        return replace(self, requests=requests, users=users, digest=digest)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, `format` first."""
        return {"format": MANIFEST_FORMAT, **asdict(self)}
