"""The public traces as arrays, or one part of them (`parts.py`).

They are cut before anything is cloned from them, so that clones of one recorded user never get into two parts.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.traces import load_azure, load_mooncake, user_events
from simulator.workloads.parts import Part, inside, own_requests

MOONCAKE_FILE = "mooncake_conversation.jsonl"
AZURE_FILES = {"conversation": "azure_llm_2023_conv.csv", "code": "azure_llm_2023_code.csv"}


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
    own, left_out = own_requests(times, visits.user, part)
    arrivals = {}
    for name, file in AZURE_FILES.items():
        series = load_azure(folder / file)
        stretch = series[inside(series, part, (series[0], series[-1]))]
        arrivals[name] = stretch - stretch[0]
    files = {"mooncake": MOONCAKE_FILE, **AZURE_FILES}
    return Sources(
        part=part,
        visits=replace(visits.only(own, "all users"), left_out=left_out),
        arrivals_ms=arrivals,
        names={name: f"{file} ({_digest(folder / file)})" for name, file in files.items()},
    )


def _all_visits(path: Path) -> tuple[NDArray[np.float64], Visits]:
    events = user_events(load_mooncake(path))
    numbers: dict[str, int] = {}
    user = np.array([numbers.setdefault(event.user, len(numbers)) for event in events], dtype=np.int64)
    tokens = np.array([event.history_tokens for event in events], dtype=np.int64)
    return np.array([event.time_ms for event in events]), Visits(name="all users", user=user, history_tokens=tokens)


def _digest(path: Path) -> str:
    return "sha256 " + hashlib.sha256(path.read_bytes()).hexdigest()[:12]
