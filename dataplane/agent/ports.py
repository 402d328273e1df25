"""What the agent needs from the world: one engine. `EngineLink` is the real one; tests bring their own."""

from typing import Any, Protocol

from numpy.typing import NDArray

from contract.engine import Describe, DrainAnswer, LimitsAnswer, LimitsRequest, Observe, SplitAnswer, SplitRequest
from contract.residency import ResidencyReport


class EnginePort(Protocol):
    """One engine; every call raises `contract.errors.Unreachable` or `contract.errors.ProtocolViolation` when it fails."""

    async def describe(self) -> Describe: ...

    async def observe(self) -> Observe: ...

    async def put_split(self, request: SplitRequest) -> SplitAnswer: ...

    async def put_limits(self, request: LimitsRequest) -> LimitsAnswer: ...

    async def drain(self, *, draining: bool) -> DrainAnswer: ...

    async def residency(self, cursor: int, *, most: int) -> ResidencyReport | None:
        """Return whose state changed after `cursor`, of at most so many users; None from an engine that does not tell."""
        ...

    async def samples(self, cursor: int) -> tuple[NDArray[Any], int, int]:
        """Return (records after `cursor`, next cursor, records lost in between)."""
        ...
