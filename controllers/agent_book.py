"""What the agents said last, by GRInstance uid: one book for all loops of a process.

The allocation loop asks the agents and enters each believable word; other loops only read. Silence enters nothing, so a reader
judges by the age of what is there. A new term of leadership begins with an empty book.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from contract.agent import AgentStatus
from controllers.agent_windows import AgentWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A believable status of an agent and the monotonic second at which it came."""

    status: AgentStatus
    at_s: float


class Statuses(Protocol):
    """Where the last status of an agent is found; `AgentBook` is the real one."""

    def last(self, uid: str) -> Heard | None:
        """What the agent of the GRInstance with this uid said last, or None."""


class AgentBook:
    """Statuses by uid, and in `windows` what they measured over the last quarter of an hour."""

    def __init__(self) -> None:
        self._heard: dict[str, Heard] = {}
        self.windows = AgentWindows()

    def note(self, uid: str, status: AgentStatus, *, now_s: float) -> None:
        """An agent answered within its contract; the same answer entered again keeps its first time."""
        last = self._heard.get(uid)
        if last is None or last.status is not status:
            self._heard[uid] = Heard(status=status, at_s=now_s)
            self.windows.note(uid, status, at_s=now_s)

    def last(self, uid: str) -> Heard | None:
        """What the agent of the GRInstance with this uid said last, or None."""
        return self._heard.get(uid)

    def forget(self, uid: str) -> None:
        """The instance is gone."""
        self._heard.pop(uid, None)
        self.windows.forget(uid)

    def forget_all(self) -> None:
        """Trust nothing that was heard before: this process leads anew."""
        self._heard.clear()
        self.windows.forget_all()
