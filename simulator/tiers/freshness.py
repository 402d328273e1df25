"""Whether stored state may still be used: it expires, belongs to one version of the model, and ages with the embeddings.

State of another model version is useless. State computed from older embedding rows is usable but stale, since continuous training
has changed the rows under it: it is served up to a bound of versions, and counted.
"""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What to do with stored state."""

    FRESH = "fresh"
    STALE = "stale"
    OTHER_MODEL = "other model"
    TOO_STALE = "too stale"
    EXPIRED = "expired"

    @property
    def usable(self) -> bool:
        return self in (Verdict.FRESH, Verdict.STALE)


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """Of one user's state: the model version and the oldest embedding version it was computed with, and when it was last used."""

    model: int
    emb: int
    used_ms: float


@dataclass(kw_only=True)
class Freshness:
    """Versions in force, bounds, and counts of verdicts.

    Parameters
    ----------
    ttl_ms : float, optional
        State that was not used for so long is dropped.
    max_emb_lag : int, optional
        Embedding versions that state may be behind; None for any.
    """

    ttl_ms: float | None = None
    max_emb_lag: int | None = None
    model: int = 0
    emb: int = 0
    lag_sum: int = 0

    def __post_init__(self) -> None:
        if (self.ttl_ms is not None and not self.ttl_ms > 0) or (self.max_emb_lag is not None and self.max_emb_lag < 0):
            raise ValueError(f"ttl_ms, max_emb_lag: {self.ttl_ms}, {self.max_emb_lag} must be above and at least 0")
        self.verdicts: dict[Verdict, int] = dict.fromkeys(Verdict, 0)

    def judge(self, stamp: Stamp, *, now_ms: float) -> Verdict:
        """Judge state that a request asks for, and count the verdict."""
        verdict = self._judge(stamp, now_ms)
        self.verdicts[verdict] += 1
        if verdict is Verdict.STALE:
            self.lag_sum += self.emb - stamp.emb
        return verdict

    def expired(self, stamp: Stamp, *, now_ms: float) -> bool:
        return self.ttl_ms is not None and now_ms - stamp.used_ms > self.ttl_ms

    def stamp(self, old: Stamp | None, *, now_ms: float) -> Stamp:
        """Return the stamp of state that was computed now, on top of `old` state where there is some."""
        return Stamp(model=self.model, emb=self.emb if old is None else old.emb, used_ms=now_ms)

    @property
    def stale_share(self) -> float:
        """Share of usable state that was stale when it was served."""
        used = self.verdicts[Verdict.FRESH] + self.verdicts[Verdict.STALE]
        return self.verdicts[Verdict.STALE] / used if used else 0.0

    @property
    def mean_lag(self) -> float:
        """Embedding versions that stale state was behind, on average."""
        stale = self.verdicts[Verdict.STALE]
        return self.lag_sum / stale if stale else 0.0

    def _judge(self, stamp: Stamp, now_ms: float) -> Verdict:
        if stamp.model != self.model:
            return Verdict.OTHER_MODEL
        if self.expired(stamp, now_ms=now_ms):
            return Verdict.EXPIRED
        lag = self.emb - stamp.emb
        if lag <= 0:
            return Verdict.FRESH
        return Verdict.STALE if self.max_emb_lag is None or lag <= self.max_emb_lag else Verdict.TOO_STALE
