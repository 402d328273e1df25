"""What the allocation loop remembers of an instance between two looks. Losing it costs a repeated call, nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from controllers.pace import WriteTimes
from controllers.runtime.resources import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the agent did not take the intent: its own word, or ours when the intent could not be signed (`status` None)."""

    status: str | None
    reason: str

    @property
    def words(self) -> str:
        """As a condition says it."""
        if self.status is None:
            return f"the intent cannot be signed: {self.reason}"
        return f"the agent answered {self.status}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """An intent that was handed over: its generation, the monotonic second, and the refusal if it was not taken."""

    generation: int
    at_s: float
    refusal: Refusal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPushed:
    """The bytes of a model that were to be handed over.

    Attributes
    ----------
    at_s, since_s
        Monotonic seconds of the last attempt, and of the first one in a row that came to nothing.
    taken
        Whether the agent holds them since.
    refusal
        Why the agent refused them, if it did.
    """

    sha256: str
    at_s: float
    since_s: float
    taken: bool
    refusal: str | None


@dataclass(slots=True)
class _Entry:
    uids: set[str] = field(default_factory=set)
    pushed: Pushed | None = None
    unanswered: tuple[int, int] = (0, 0)  # generation, and how often it was offered without an answer
    model: ModelPushed | None = None


class Memory:
    """Memories by instance."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._writes = WriteTimes()

    def last_push(self, key: Key) -> Pushed | None:
        """The last intent handed over."""
        entry = self._entries.get(key)
        return entry.pushed if entry is not None else None

    def write_ages_s(self, key: Key, *, now_s: float) -> tuple[float, ...]:
        """Seconds since the last status writes, newest first."""
        return self._writes.ages(key, now_s=now_s)

    def met(self, key: Key, uid: str) -> None:
        """The instance has this uid; what was pushed to a predecessor of the name does not count."""
        entry = self._entries.setdefault(key, _Entry())
        if uid not in entry.uids:
            entry.uids.add(uid)
            entry.pushed = entry.model = None
            entry.unanswered = (0, 0)

    def pushed(self, key: Key, what: Pushed | None, *, generation: int) -> None:
        """An intent of this generation was handed over; None when the agent did not answer."""
        entry = self._entries.setdefault(key, _Entry())
        if what is not None:
            entry.pushed, entry.unanswered = what, (0, 0)
        else:
            entry.unanswered = (generation, self.unanswered(key, generation=generation) + 1)

    def unanswered(self, key: Key, *, generation: int) -> int:
        """How often in a row the intent of this generation was offered without an answer."""
        entry = self._entries.get(key)
        return entry.unanswered[1] if entry is not None and entry.unanswered[0] == generation else 0

    def last_model(self, key: Key) -> ModelPushed | None:
        """The last bytes of a model handed over."""
        entry = self._entries.get(key)
        return entry.model if entry is not None else None

    def pushed_model(self, key: Key, what: ModelPushed) -> None:
        """Bytes of a model were handed over, or could not be; attempts in vain for the same digest count as one wait."""
        entry = self._entries.setdefault(key, _Entry())
        last = entry.model
        if last is not None and last.sha256 == what.sha256 and not last.taken:
            what = replace(what, since_s=last.since_s)
        entry.model = what

    def forget_model(self, key: Key) -> None:
        """The intent names these bytes no more."""
        self._entries.setdefault(key, _Entry()).model = None

    def wrote(self, key: Key, *, now_s: float) -> None:
        """The status was written."""
        self._writes.note(key, now_s=now_s)

    def forget(self, key: Key) -> frozenset[str]:
        """The instance is gone; returns the uids it had."""
        self._writes.forget(key)
        entry = self._entries.pop(key, None)
        return frozenset(entry.uids) if entry is not None else frozenset()
