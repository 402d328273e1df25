"""The split of one HBM pool between its two tenants, moved by revisions and safe at any instant.

A change is accepted only as the successor of the one in force. What shrinks, shrinks first; what grows, grows when nothing is
above a limit any more. So the sum of max(limit, used) over both tenants never exceeds the pool, also while a shrink waits for
entries in service (deferred).
"""

from dataclasses import dataclass
from typing import Protocol

from contract.engine import SplitRequest, SplitStatus


class Tenant(Protocol):
    """One cache of the pool."""

    limit_bytes: int

    @property
    def overage_bytes(self) -> int: ...

    def set_limit(self, limit_bytes: int) -> None: ...

    def trim(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class SplitValue:
    """What a revision says; two requests with the same revision must carry the same value."""

    emb_bytes: int
    kv_bytes: int
    refill_bytes_per_second: int


@dataclass(frozen=True, kw_only=True)
class SplitRules:
    """What this engine can do: pool and link, the largest change of one revision, and how long it holds a shrink back.

    `defer_shrinks_ms` makes every shrink of the KV cache wait, for tests of callers; entries in service wait anyway.
    """

    pool_bytes: int
    link_bytes_per_second: int
    max_change_bytes: int | None = None
    defer_shrinks_ms: float = 0.0


class PoolSplit:
    """Revisions and limits of the two tenants; evicts through them, counts what it evicted."""

    def __init__(self, rules: SplitRules, *, emb: Tenant, kv: Tenant) -> None:
        self._rules = rules
        self._emb = emb
        self._kv = kv
        self.revision = 0
        self._wanted = SplitValue(emb_bytes=emb.limit_bytes, kv_bytes=kv.limit_bytes, refill_bytes_per_second=0)
        self._hold_until_ms = 0.0
        self.evicted_bytes = 0

    @property
    def refill_bytes_per_second(self) -> int:
        return self._wanted.refill_bytes_per_second

    @property
    def deferred(self) -> bool:
        """Accepted, but something is still above its limit or a growth still waits for it."""
        emb, kv = self._emb.limit_bytes, self._kv.limit_bytes
        in_force = emb == self._wanted.emb_bytes and kv == self._wanted.kv_bytes
        return not in_force or bool(self._emb.overage_bytes or self._kv.overage_bytes)

    def put(self, request: SplitRequest, *, now_ms: float) -> tuple[SplitStatus, str]:
        """Take one change in; return its status and, unless applied, the reason."""
        value = SplitValue(
            emb_bytes=request.emb_bytes,
            kv_bytes=request.kv_bytes,
            refill_bytes_per_second=request.refill_bytes_per_second,
        )
        refusal = self._refusal(request.revision, value)
        if refusal is not None:
            return refusal
        if request.revision != self.revision:
            self._accept(request.revision, value, now_ms)
        if self.deferred:
            over = self._emb.overage_bytes + self._kv.overage_bytes
            return SplitStatus.DEFERRED, f"{over} bytes above a limit are still in use; growth waits for them"
        return SplitStatus.APPLIED, ""

    def settle(self, now_ms: float) -> None:
        """Evict what may go by now and, when nothing is above a limit, let the waiting side grow."""
        if not self.deferred:
            return
        if now_ms >= self._hold_until_ms:
            self.evicted_bytes += self._emb.trim() + self._kv.trim()
        if not (self._emb.overage_bytes or self._kv.overage_bytes):
            self._emb.set_limit(self._wanted.emb_bytes)
            self._kv.set_limit(self._wanted.kv_bytes)

    def held(self, now_ms: float) -> bool:
        """Say whether a shrink is held back on purpose."""
        return now_ms < self._hold_until_ms and bool(self._kv.overage_bytes)

    def _refusal(self, revision: int, value: SplitValue) -> tuple[SplitStatus, str] | None:
        rules = self._rules
        if revision < self.revision:
            return SplitStatus.STALE, f"revision {revision} is older than {self.revision} in force"
        if revision == self.revision:
            if value == self._wanted:
                return None
            return SplitStatus.CONFLICT, f"revision {revision} is in force with another value"
        if revision > self.revision + 1:
            return SplitStatus.CONFLICT, f"revision {revision} does not follow {self.revision} in force"
        total = value.emb_bytes + value.kv_bytes
        if total > rules.pool_bytes:
            return SplitStatus.UNSUPPORTED, f"embBytes + kvBytes = {total} is above the pool of {rules.pool_bytes} bytes"
        if value.refill_bytes_per_second > rules.link_bytes_per_second:
            return SplitStatus.UNSUPPORTED, f"refillBytesPerSecond is above the link's {rules.link_bytes_per_second}"
        change = abs(value.emb_bytes - self._emb.limit_bytes)
        if rules.max_change_bytes is not None and change > rules.max_change_bytes:
            return SplitStatus.UNSUPPORTED, f"embBytes changes by {change}, at most {rules.max_change_bytes} in one revision"
        return None

    def _accept(self, revision: int, value: SplitValue, now_ms: float) -> None:
        self.revision = revision
        self._wanted = value
        shrinks = value.kv_bytes < self._kv.limit_bytes
        self._emb.set_limit(min(self._emb.limit_bytes, value.emb_bytes))
        self._kv.set_limit(min(self._kv.limit_bytes, value.kv_bytes))
        if shrinks and self._kv.overage_bytes:
            self._hold_until_ms = now_ms + self._rules.defer_shrinks_ms
        self.settle(now_ms)
