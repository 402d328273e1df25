"""Histories that outgrow the model: cut in whole chunks at the front, with state that stays usable, and honest about being equal.

With positions decoupled from the state (relative, applied when it is loaded) what is left of a cut history needs no recomputing.
It is **equal** to a recomputation only where no kept token that matters has seen a dropped one: one layer; sliding windows whose
reach over all layers lies within what is kept; encoders local to chunks, cut at their borders. Everywhere else it is an
approximation that drifts with each cut, so approximate serves are counted and state is recomputed after so many cuts.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Positions:
    """How the model sees positions and context.

    Parameters
    ----------
    decoupled : bool
        False when positions are baked into the state: any cut makes it useless.
    layers : int
    window_tokens : int, optional
        Sliding window of attention; None for full attention.
    local_chunk_tokens : int, optional
        Encoders whose tokens see their own chunk only.
    """

    layers: int
    decoupled: bool = True
    window_tokens: int | None = None
    local_chunk_tokens: int | None = None

    def exact(self, *, dropped_tokens: int, kept_tokens: int) -> bool:
        """Whether state that is left after a cut gives what a recomputation of the kept tokens would give."""
        if self.layers == 1:
            return True
        if self.local_chunk_tokens is not None:
            return dropped_tokens % self.local_chunk_tokens == 0
        return self.window_tokens is not None and self.layers * self.window_tokens < kept_tokens


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What one visit finds.

    Attributes
    ----------
    tokens : int
        History that the model sees.
    dropped_tokens : int
        Cut off its front now.
    usable : bool
        Whether stored state may be used at all; False asks for recomputing all of it.
    exact : bool
        Whether using it equals recomputing it.
    """

    tokens: int
    dropped_tokens: int
    usable: bool
    exact: bool


@dataclass(slots=True)
class _History:
    origin: int = 0
    approximate: bool = False
    cuts: int = 0


@dataclass(slots=True)
class HistoryCounts:
    """Visits by kind, and cuts; `recomputes` counts those that the rules here asked for."""

    exact: int = 0
    approximate: int = 0
    cuts: int = 0
    recomputes: int = 0


@dataclass(kw_only=True)
class HistoryBook:
    """Where each user's kept history begins.

    Parameters
    ----------
    positions : Positions
    max_tokens : int
        Most that the model sees.
    cut_tokens : int
        Cuts are multiples of this: whole chunks of the host tier.
    recompute_after : int, optional
        Approximate cuts after which state is recomputed; None for never.

    Raises
    ------
    ValueError
        When a cut would leave nothing.
    """

    positions: Positions
    max_tokens: int
    cut_tokens: int
    recompute_after: int | None = None
    counts: HistoryCounts = field(default_factory=HistoryCounts)

    def __post_init__(self) -> None:
        if not 1 <= self.cut_tokens < self.max_tokens:
            raise ValueError(f"cut_tokens: {self.cut_tokens} must lie within 1..{self.max_tokens - 1}")
        self._users: dict[int, _History] = {}

    def visit(self, user: int, total_tokens: int, *, stored: bool = True) -> Visit:
        """Note a visit of a user whose whole history, with all that was ever cut, has `total_tokens`.

        `stored` says whether any tier has state of the user: without, the visit computes all of it and is exact.
        """
        history = self._users.setdefault(user, _History())
        if not stored:
            self.recomputed(user)
        tokens = total_tokens - history.origin
        dropped = 0
        if tokens > self.max_tokens:
            dropped = -(-(tokens - self.max_tokens) // self.cut_tokens) * self.cut_tokens
            usable = self._cut(history, dropped=dropped, kept=tokens - dropped)
        else:
            usable = True
        if not usable:
            self.counts.recomputes += stored
        if not usable or not stored:
            self.recomputed(user)
        if history.approximate:
            self.counts.approximate += 1
        else:
            self.counts.exact += 1
        return Visit(tokens=tokens - dropped, dropped_tokens=dropped, usable=usable, exact=not history.approximate)

    def recomputed(self, user: int) -> None:
        """The user's state was computed anew, for whatever reason: it is exact again."""
        history = self._users.get(user)
        if history is not None:
            history.approximate, history.cuts = False, 0

    def _cut(self, history: _History, *, dropped: int, kept: int) -> bool:
        """Move the origin; return whether stored state may be used after that."""
        history.origin += dropped
        self.counts.cuts += 1
        if not self.positions.decoupled:
            return False
        if self.positions.exact(dropped_tokens=dropped, kept_tokens=kept):
            return True
        history.approximate = True
        history.cuts += 1
        return self.recompute_after is None or history.cuts <= self.recompute_after
