"""One host link as a fluid event model: five classes of transfer in strict priority, two directions that slow each other down.

At any instant each direction gives its whole rate to its first class with bytes ready, in order of submission, except for what a
class's cap withholds, which goes to the next class. A higher class takes over at once: copies are cut into chunks far shorter
than a request. A transfer's fixed time passes before its bytes are ready and does not occupy the link.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from simulator.physics.transfer import Direction, TransferCost

EPSILON_BYTES = 1e-6


class Purpose(IntEnum):
    """What a transfer is for; a lower number goes first."""

    DEMAND = 0
    RELOAD = 1
    PREFETCH = 2
    REFILL = 3
    OFFLOAD = 4

    @property
    def direction(self) -> Direction:
        return Direction.TO_HOST if self is Purpose.OFFLOAD else Direction.TO_DEVICE


@dataclass(frozen=True, kw_only=True)
class Done:
    """A finished transfer."""

    transfer: int
    purpose: Purpose
    byte_count: int
    submitted_ms: float
    finished_ms: float


@dataclass(slots=True)
class _Flow:
    transfer: int
    purpose: Purpose
    byte_count: int
    submitted_ms: float
    ready_ms: float
    left_bytes: float


class HostLink:
    """The link of one instance.

    Parameters
    ----------
    cost : TransferCost
        Fixed times, rates, duplex penalty.
    caps_bytes_per_second : Mapping[Purpose, float]
        Most that a class may take even when nothing else wants the link; no cap for those absent.

    Raises
    ------
    ValueError
        For a cap that would never let its class finish.
    """

    def __init__(self, cost: TransferCost, *, caps_bytes_per_second: Mapping[Purpose, float] | None = None) -> None:
        self.cost = cost
        self.clock_ms = 0.0
        self._caps: dict[Purpose, float] = {}
        for purpose, cap in (caps_bytes_per_second or {}).items():
            self.set_cap(purpose, cap)
        self._flows: dict[int, _Flow] = {}
        self._next = 0
        self._moved = dict.fromkeys(Purpose, 0.0)
        self._submitted = dict.fromkeys(Purpose, 0.0)
        self._cancelled = dict.fromkeys(Purpose, 0.0)

    def set_cap(self, purpose: Purpose, bytes_per_second: float | None) -> None:
        """Change the cap of a class from now on; None lifts it.

        Raises
        ------
        ValueError
            For a cap that is not positive.
        """
        if bytes_per_second is None:
            self._caps.pop(purpose, None)
        elif not bytes_per_second > 0:
            raise ValueError(f"{purpose.name}: a cap of {bytes_per_second} bytes per second would never let it finish")
        else:
            self._caps[purpose] = bytes_per_second / 1e3

    def submit(self, purpose: Purpose, byte_count: int, *, now_ms: float) -> int:
        """Ask for a transfer and return its number; call `advance` up to `now_ms` first.

        Raises
        ------
        ValueError
            For no bytes, or a time behind the clock.
        """
        if byte_count < 1:
            raise ValueError(f"byte_count: {byte_count} must be at least 1")
        if now_ms < self.clock_ms:
            raise ValueError(f"now_ms: {now_ms} is before {self.clock_ms}, where the link is")
        number, self._next = self._next, self._next + 1
        ready = now_ms + self.cost.fixed_ms(purpose.direction)
        self._flows[number] = _Flow(number, purpose, byte_count, now_ms, ready, float(byte_count))
        self._submitted[purpose] += byte_count
        return number

    def promote(self, transfer: int, purpose: Purpose) -> bool:
        """Move a waiting transfer into another class of its direction: a prefetch that a request now waits for.

        Returns False when it has finished. Its bytes so far stay with the old class, the rest count for the new one.

        Raises
        ------
        ValueError
            When the class goes the other way.
        """
        flow = self._flows.get(transfer)
        if flow is None:
            return False
        if purpose.direction is not flow.purpose.direction:
            raise ValueError(f"{purpose.name} goes {purpose.direction}, transfer {transfer} goes {flow.purpose.direction}")
        self._submitted[flow.purpose] -= flow.left_bytes
        self._submitted[purpose] += flow.left_bytes
        flow.purpose = purpose
        return True

    def cancel(self, transfer: int) -> int:
        """Give a transfer up and return the bytes it had not moved (0 when it has finished)."""
        flow = self._flows.pop(transfer, None)
        if flow is None:
            return 0
        self._cancelled[flow.purpose] += flow.left_bytes
        return round(flow.left_bytes)

    def next_event_ms(self) -> float | None:
        """When the rates change next if nothing is submitted: bytes get ready, or a transfer finishes. Always after the clock."""
        times = [flow.ready_ms for flow in self._flows.values() if flow.ready_ms > self.clock_ms]
        for flow, rate in self._rates():
            times.append(self.clock_ms + flow.left_bytes / rate)
        # What is too short to move a large clock ends at the next number, so that who steps from event to event gets on.
        return max(min(times), math.nextafter(self.clock_ms, math.inf)) if times else None

    def advance(self, now_ms: float) -> list[Done]:
        """Move time forward and return what finished, in order.

        Raises
        ------
        ValueError
            When time would go backwards.
        """
        if now_ms < self.clock_ms:
            raise ValueError(f"now_ms: {now_ms} is before {self.clock_ms}, where the link is")
        finished: list[Done] = []
        while self.clock_ms < now_ms:
            event = self.next_event_ms()
            until = now_ms if event is None else min(event, now_ms)
            finished += self._move(until)
            if event is None:
                break
        self.clock_ms = now_ms
        return finished

    def backlog_bytes(self, purpose: Purpose) -> float:
        """Bytes of a class that were asked for and have not moved."""
        return sum(flow.left_bytes for flow in self._flows.values() if flow.purpose is purpose)

    def moved_bytes(self, purpose: Purpose) -> float:
        """Bytes of a class that have moved."""
        return self._moved[purpose]

    def wait_ms(self, purpose: Purpose) -> float:
        """Time that everything ahead of a new transfer of this class needs, at full rate and without caps: a lower bound."""
        ahead = sum(self.backlog_bytes(other) for other in Purpose if other.direction is purpose.direction and other <= purpose)
        return ahead / self.cost.bytes_per_ms(purpose.direction, duplex=self._busy(_other(purpose.direction)))

    def balance_bytes(self) -> float:
        """Submitted less moved, waiting and cancelled, over all classes: zero but for rounding."""
        left = sum(flow.left_bytes for flow in self._flows.values())
        return sum(self._submitted.values()) - sum(self._moved.values()) - sum(self._cancelled.values()) - left

    def _busy(self, direction: Direction) -> bool:
        now = self.clock_ms
        return any(flow.ready_ms <= now and flow.purpose.direction is direction for flow in self._flows.values())

    def _rates(self) -> list[tuple[_Flow, float]]:
        """The transfers that move now, with bytes per millisecond; flows are kept in order of submission."""
        heads: dict[Purpose, _Flow] = {}
        for flow in self._flows.values():
            if flow.ready_ms <= self.clock_ms:
                heads.setdefault(flow.purpose, flow)
        both = len({purpose.direction for purpose in heads}) == 2
        free = {direction: self.cost.bytes_per_ms(direction, duplex=both) for direction in Direction}
        moving = []
        for purpose in sorted(heads):
            rate = min(free[purpose.direction], self._caps.get(purpose, math.inf))
            if rate > 0:
                free[purpose.direction] -= rate
                moving.append((heads[purpose], rate))
        return moving

    def _move(self, until_ms: float) -> list[Done]:
        finished = []
        since, moving = self.clock_ms, self._rates()
        self.clock_ms = until_ms
        for flow, rate in moving:
            step = min(flow.left_bytes, rate * (until_ms - since))
            # The second test ends what is too short to move a large clock.
            if flow.left_bytes - step < EPSILON_BYTES or since + flow.left_bytes / rate <= until_ms:
                step = flow.left_bytes
                del self._flows[flow.transfer]
                finished.append(
                    Done(
                        transfer=flow.transfer,
                        purpose=flow.purpose,
                        byte_count=flow.byte_count,
                        submitted_ms=flow.submitted_ms,
                        finished_ms=until_ms,
                    )
                )
            flow.left_bytes -= step
            self._moved[flow.purpose] += step
        return finished


def _other(direction: Direction) -> Direction:
    return Direction.TO_HOST if direction is Direction.TO_DEVICE else Direction.TO_DEVICE
