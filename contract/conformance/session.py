"""What the checks share: the client, the engine's description, and helpers that make a check read as a sentence."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx

from contract import engine, http
from contract.engine_client import EngineClient
from contract.errors import Unreachable

Restart = Callable[[], Awaitable[None]]
HISTORY_TOKENS = 512


class Failed(AssertionError):
    """The engine broke the contract; the message says how."""


class Skipped(Exception):
    """The check does not apply to this engine or this run; the message says why."""


@dataclass
class Session:
    """One run of the suite against one engine.

    Parameters
    ----------
    url, token : str
        As for `EngineClient`.
    client : EngineClient
    restart : callable, optional
        Restarts the engine at the same address; without it the restart check is skipped.
    settle_s : float
        How long a deferred change may take.
    """

    url: str
    client: EngineClient
    token: str | None = None
    restart: Restart | None = None
    settle_s: float = 10.0
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def rank(self, who: int, *, tokens: int = HISTORY_TOKENS) -> engine.RankAnswer:
        """Serve one small request of user number `who`."""
        described = await self.client.describe()
        request = engine.RankRequest(
            request_id=f"conformance-{next(self._numbers)}",
            user_key=user_key(who),
            model_version=described.model.version,
            history_tokens=tokens,
            candidates=16,
            rows_per_token=2,
        )
        return await self.client.rank(request)

    async def split(self) -> engine.SplitState:
        return (await self.client.observe()).split

    async def kv_holds_users(self) -> bool:
        """Whether the KV limit leaves room for the histories of several of the suite's users."""
        described, split = await self.client.describe(), await self.split()
        return split.limits.kv_bytes >= 8 * HISTORY_TOKENS * described.kv_bytes_per_token

    async def idle(self) -> None:
        """Wait until the engine has nothing in flight, so that nothing is pinned by a request."""
        await self._until(lambda seen: seen.gauges.in_flight == 0, "requests are still in flight")

    async def put(self, *, revision: int, emb: int, kv: int, start_id: str | None = None) -> engine.SplitAnswer:
        """Ask for a split; the process is the present one unless another is named."""
        if start_id is None:
            start_id = (await self.client.observe()).start_id
        return await self.client.put_split(
            engine.SplitRequest(start_id=start_id, revision=revision, emb_bytes=emb, kv_bytes=kv, refill_bytes_per_second=0)
        )

    async def put_next(self, *, emb: int, kv: int) -> engine.SplitAnswer:
        """Ask for a split as the successor of the one in force."""
        return await self.put(revision=(await self.split()).revision + 1, emb=emb, kv=kv)

    async def move(self, *, emb: int, kv: int) -> engine.SplitState:
        """Move to a split the way an agent does, shrink, confirm, grow; return it once in force."""
        now = await self.split()
        for step_emb, step_kv in ((min(emb, now.limits.emb_bytes), min(kv, now.limits.kv_bytes)), (emb, kv)):
            answer = await self.put_next(emb=step_emb, kv=step_kv)
            await self.confirmed(answer)
        return await self.split()

    async def confirmed(self, answer: engine.SplitAnswer) -> None:
        """Wait until nothing is above the limits of an accepted change; within the pool at every look."""
        must(answer.status in ACCEPTED, f"change refused: {answer.status.value}, {answer.reason}")
        described = await self.client.describe()

        def arrived(seen: engine.Observe) -> bool:
            must(seen.start_id == described.start_id, "the engine restarted during the check")
            must_be_within_pool(seen.split, described)
            return seen.split.overage_bytes == 0

        await self._until(arrived, "still above a limit")

    async def raw(self, method: str, path: str, *, content: bytes = b"") -> httpx.Response:
        """Send bytes as they are, to see how the engine takes what is not the contract."""
        base, transport = http.transport_for(self.url)
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        async with httpx.AsyncClient(base_url=base, transport=transport, timeout=5.0, trust_env=False) as client:
            try:
                return await client.request(method, engine.PREFIX + path, content=content, headers=headers)
            except httpx.HTTPError as error:
                raise Unreachable(f"{method} {path}: {type(error).__name__}") from error

    async def _until(self, reached: Callable[[engine.Observe], bool], what: str) -> None:
        waited_s = 0.0
        while not reached(await self.client.observe()):
            must(waited_s < self.settle_s, f"{what} after {self.settle_s} s")
            await asyncio.sleep(0.02)
            waited_s += 0.02


ACCEPTED = (engine.SplitStatus.APPLIED, engine.SplitStatus.DEFERRED)


def user_key(number: int) -> str:
    """Return a key that no real user has by accident."""
    return f"c0f0{number:028x}"


def must(condition: bool, message: str) -> None:
    """Raise Failed with the message unless the condition holds."""
    if not condition:
        raise Failed(message)


def must_be_within_pool(split: engine.SplitState, described: engine.Describe) -> None:
    """The rule that holds at any instant: limits, and for a shrinking side what is still used, fit the pool."""
    limits, used = split.limits, split.used
    total = max(limits.emb_bytes, used.emb_bytes) + max(limits.kv_bytes, used.kv_bytes)
    must(total <= described.pool_bytes, f"limits and use add up to {total}, the pool has {described.pool_bytes} bytes")
