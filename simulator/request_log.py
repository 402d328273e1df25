"""The requests of a workload as columns: what every trace loader and generator makes, and fleet, tiers and oracle replay.

One row is one ranking request. Users are dense numbers; who they are outside was hashed at the door (`contract.keys.user_key`),
and all that is left is the slot by which they are routed. Embedding rows are not listed: a law says how they are drawn.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from contract.keys import SLOTS

MAX_HISTORY_TOKENS = 1 << 24
MAX_CANDIDATES = 1 << 20
MOST_ROWS = 1 << 40


@dataclass(frozen=True, kw_only=True)
class RowLaw:
    """Popularity of embedding rows: Zipf over a catalogue whose head drifts.

    Attributes
    ----------
    exponent : float
        Zipf exponent of popularity over rank.
    catalog_rows : int
        Rows of all tables together.
    drift_percent_per_hour : float
        Percent of the most popular `head_rows` ranks that a new row takes over within an hour; 0 is a still catalogue.
    head_rows : int
        What counts as the head.
    offset : int
        Rotation of the ranks: laws with other offsets make other rows popular.
    """

    exponent: float
    catalog_rows: int
    drift_percent_per_hour: float = 0.0
    head_rows: int = 65_536
    offset: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.exponent <= 4.0:  # refuses NaN as well
            raise ValueError(f"exponent: {self.exponent} lies outside 0..4")
        if not 1 <= self.catalog_rows <= MOST_ROWS:
            raise ValueError(f"catalogRows: {self.catalog_rows} lies outside 1..2**40")
        if not 0.0 <= self.drift_percent_per_hour <= 100_000.0:
            raise ValueError(f"driftPercentPerHour: {self.drift_percent_per_hour} lies outside 0..100000")
        if not 1 <= self.head_rows <= 1 << 24:
            raise ValueError(f"headRows: {self.head_rows} lies outside 1..2**24")


@dataclass(frozen=True, kw_only=True)
class RequestLog:
    """Ranking requests, sorted by arrival.

    Attributes
    ----------
    arrival_ms : float64, shape (requests,)
        Milliseconds since the start, never falling.
    user : uint32, shape (requests,)
        Number of the user, below `len(user_slots)`.
    history_tokens, candidates : int32, shape (requests,)
        Length of the user's history at that moment, and items to rank.
    signal_lead_ms : float32, shape (requests,)
        How long before its arrival the cascade's early signal announced the request; 0 where there was none.
    law : uint8, shape (requests,)
        Index into `laws`.
    user_slots : uint16, shape (users,)
        Slot of each user in the routing table, 0..4095.
    laws : tuple of RowLaw
        At least one.
    rows_per_token : int
        Embedding rows looked up per token that is not cached, and per candidate.
    """

    arrival_ms: NDArray[np.float64]
    user: NDArray[np.uint32]
    history_tokens: NDArray[np.int32]
    candidates: NDArray[np.int32]
    signal_lead_ms: NDArray[np.float32]
    law: NDArray[np.uint8]
    user_slots: NDArray[np.uint16]
    laws: tuple[RowLaw, ...]
    rows_per_token: int

    def __post_init__(self) -> None:
        count = len(self.arrival_ms)
        for name, (dtype, least, most) in self._bounds().items():
            column = getattr(self, name)
            if column.dtype != dtype or column.ndim != 1:
                raise ValueError(f"{name}: {column.dtype} of {column.ndim} dimensions, {np.dtype(dtype)} of one is needed")
            if name != "user_slots" and len(column) != count:
                raise ValueError(f"{name}: {len(column)} values for {count} requests")
            if len(column) and not (least <= column.min() and column.max() <= most):  # refuses NaN as well
                raise ValueError(f"{name}: values lie outside {least}..{most}")
        if not count:
            raise ValueError("arrival_ms: there is no request")
        if np.any(np.diff(self.arrival_ms) < 0):
            raise ValueError("arrival_ms: not sorted")
        if self.rows_per_token < 0:
            raise ValueError(f"rows_per_token: {self.rows_per_token} is negative")

    def __len__(self) -> int:
        return len(self.arrival_ms)

    @property
    def users(self) -> int:
        return len(self.user_slots)

    @property
    def duration_ms(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival_ms[-1] - self.arrival_ms[0])

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all columns and laws: equal for equal requests, on every machine."""
        header = {"laws": [asdict(law) for law in self.laws], "rowsPerToken": self.rows_per_token}
        total = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
        for name in self._bounds():
            column = getattr(self, name)
            total.update(f"{name}:{len(column)}:".encode())
            total.update(np.ascontiguousarray(column.astype(column.dtype.newbyteorder("<"), copy=False)).tobytes())
        return total.hexdigest()

    def rows(self, start: int, stop: int) -> "RequestLog":
        """Return the requests start..stop-1 with all users and laws; views, no copies."""
        columns = {name: getattr(self, name)[start:stop] for name in self._bounds() if name != "user_slots"}
        return RequestLog(user_slots=self.user_slots, laws=self.laws, rows_per_token=self.rows_per_token, **columns)

    def _bounds(self) -> dict[str, tuple[type[np.generic], float, float]]:
        """Columns in the order in which they are written, with type, least and greatest value."""
        return {
            "arrival_ms": (np.float64, 0.0, 1e12),
            "user": (np.uint32, 0, len(self.user_slots) - 1),
            "history_tokens": (np.int32, 0, MAX_HISTORY_TOKENS),
            "candidates": (np.int32, 0, MAX_CANDIDATES),
            "signal_lead_ms": (np.float32, 0.0, 1e9),
            "law": (np.uint8, 0, len(self.laws) - 1),
            "user_slots": (np.uint16, 0, SLOTS - 1),
        }
