"""The public traces as arrays, cut into train, validation and test by time **and** by users.

**Rule of the parts.** Time is cut at fixed percents of a trace's span. A user belongs to the part in which it first comes; its
requests in a later part are left out. So no user and no moment is in two parts, whatever is cloned from them later. The test part
is the last 40 percent: nothing may be tuned on it.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.traces import load_azure, load_mooncake, user_events

MOONCAKE_FILE = "mooncake_conversation.jsonl"
AZURE_FILES = {"conversation": "azure_llm_2023_conv.csv", "code": "azure_llm_2023_code.csv"}
USERS_RULE = "a user belongs to the part in which it first comes; its requests in a later part are left out"


class Part(StrEnum):
    """Which part of the recordings may be used; ALL is for figures that nothing was tuned for."""

    ALL = "all"
    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


PART_PERCENT: dict[Part, tuple[float, float]] = {
    Part.ALL: (0.0, 100.0),
    Part.TRAIN: (0.0, 45.0),
    Part.VALIDATION: (45.0, 60.0),
    Part.TEST: (60.0, 100.0),
}


@dataclass(frozen=True, kw_only=True)
class Visits:
    """Recorded visits in their order.

    Attributes
    ----------
    name : str
        Shown to people.
    user : int64, shape (visits,)
        Number of the user, dense from 0.
    history_tokens : int64, shape (visits,)
        Length of the user's history at that visit.
    left_out : int
        Visits of the same time whose user belongs to another part.
    """

    name: str
    user: NDArray[np.int64]
    history_tokens: NDArray[np.int64]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.user)

    @property
    def users(self) -> int:
        return int(self.user.max()) + 1 if len(self.user) else 0

    def only(self, keep: NDArray[np.bool_], name: str) -> "Visits":
        """Return the chosen visits, users numbered anew."""
        _, user = np.unique(self.user[keep], return_inverse=True)
        return Visits(name=name, user=user, history_tokens=self.history_tokens[keep], left_out=self.left_out)

    def returning(self) -> "Visits":
        """Return all visits of users that come twice or more."""
        return self.only(np.bincount(self.user)[self.user] > 1, "returning users")

    def newcomers(self) -> "Visits":
        """Return visits of users that come once, with a history up to the median of all visits."""
        once = np.bincount(self.user)[self.user] == 1
        return self.only(once & (self.history_tokens <= np.median(self.history_tokens)), "newcomers")

    def longest(self, percent: float) -> "Visits":
        """Return the visits with the longest histories, `percent` of all."""
        return self.only(self.history_tokens >= np.percentile(self.history_tokens, 100.0 - percent), "long histories")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """One part of the traces, and the start of each file's SHA-256."""

    part: Part
    visits: Visits
    arrivals_ms: dict[str, NDArray[np.float64]]
    names: dict[str, str]


def traces_folder() -> Path:
    """Return the folder of the traces in a checkout."""
    return Path(__file__).resolve().parents[2] / "traces"


@lru_cache(maxsize=8)
def load_sources(folder: Path, part: Part = Part.ALL) -> Sources:
    """Return the traces under `folder`, cut to `part`.

    Raises
    ------
    TraceError
        When a file is missing or bad.
    """
    times, visits = _all_visits(folder / MOONCAKE_FILE)
    first_of_user = np.full(visits.users, np.inf)
    np.minimum.at(first_of_user, visits.user, times)
    inside = _inside(times, part)
    own = inside & _inside(first_of_user, part, span=(times[0], times[-1]))[visits.user]
    kept = visits.only(own, "all users")
    arrivals = {}
    for name, file in AZURE_FILES.items():
        series = load_azure(folder / file)
        cut = series[_inside(series, part)]
        arrivals[name] = cut - cut[0]
    files = {"mooncake": MOONCAKE_FILE, **AZURE_FILES}
    return Sources(
        part=part,
        visits=Visits(name=kept.name, user=kept.user, history_tokens=kept.history_tokens, left_out=int(inside.sum() - own.sum())),
        arrivals_ms=arrivals,
        names={name: f"{file} ({_digest(folder / file)})" for name, file in files.items()},
    )


def _all_visits(path: Path) -> tuple[NDArray[np.float64], Visits]:
    events = user_events(load_mooncake(path))
    numbers: dict[str, int] = {}
    user = np.array([numbers.setdefault(event.user, len(numbers)) for event in events], dtype=np.int64)
    tokens = np.array([event.history_tokens for event in events], dtype=np.int64)
    return np.array([event.time_ms for event in events]), Visits(name="all users", user=user, history_tokens=tokens)


def _inside(times: NDArray[np.float64], part: Part, *, span: tuple[float, float] | None = None) -> NDArray[np.bool_]:
    """Which times lie in the part; its upper edge belongs to the next part, except the end of the trace."""
    first, last = span or (float(times[0]), float(times[-1]))
    low, high = (first + (last - first) * edge / 100.0 for edge in PART_PERCENT[part])
    return (times >= low) & ((times < high) | (PART_PERCENT[part][1] == 100.0))


def _digest(path: Path) -> str:
    return "sha256 " + hashlib.sha256(path.read_bytes()).hexdigest()[:12]
