"""Leader election by a Lease, and the fence that every write passes.

Validity is a local, monotonic statement: "my last successful renewal was sent less than ten seconds ago". A follower
takes over only after it has itself seen the same record for fifteen seconds, so that the two never overlap, whatever
the wall clocks say. A write that is already on its way when validity ends is refused by its resourceVersion.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from controllers.runtime.clock import Clock, within
from controllers.runtime.errors import NotLeader, ReconcileError
from controllers.runtime.kube import KubeApi
from controllers.runtime.metrics import Metrics
from controllers.runtime.resources import LEASES, Key, Object, identity

_logger = logging.getLogger(__name__)
_MANAGER = "grfleet-leader-election"
WORK_ENDS_SECONDS = 15.0
"""How long the work of a lost term may take to end after its cancellation, on a machine that is only just awake again."""


class Fence(Protocol):
    """Asked right before every write."""

    def check(self) -> None:
        """Raise NotLeader unless this process certainly leads now."""


class OpenFence:
    """The fence of a process that runs without election: always open."""

    def check(self) -> None:
        """Never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Times of the protocol in seconds; lease > renew > retry. ``look`` is how often a follower reads the Lease: it
    bounds the gap after a release."""

    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0
    look_seconds: float = 0.7
    request_seconds: float = 4.0


class LeaderElector:
    """Holds or contends for one Lease.

    Parameters
    ----------
    identity
        Unique for each process start, or a restarted process would mistake its predecessor for itself.
    """

    def __init__(
        self,
        kube: KubeApi,
        lease: Key,
        identity: str,
        *,
        clock: Clock,
        rng: random.Random,
        metrics: Metrics,
        times: LeaseTimes | None = None,
    ) -> None:
        self._kube = kube
        self._key = lease
        self._identity = identity
        self._clock = clock
        self._rng = rng
        self._times = times or LeaseTimes()
        self._valid_until = float("-inf")
        self._held: Object | None = None  # the Lease as our last successful write left it
        self._seen: tuple[str, str, str] | None = None  # holder, renewTime, resourceVersion of somebody else
        self._seen_at = float("-inf")
        self._status = metrics.leader.labels(lease.name)
        self._status.set_function(lambda: float(self.is_leader()))

    def is_leader(self) -> bool:
        """Whether this process certainly holds the Lease at this instant."""
        return self._clock.monotonic() < self._valid_until

    def check(self) -> None:
        """The fence. Raises NotLeader."""
        if not self.is_leader():
            raise NotLeader()

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Contend for ever; while leading, ``lead()`` runs, and it is cancelled as soon as validity is lost.

        No term begins before the work of the one before has ended. If ``lead`` itself ends with an exception, the Lease is given
        back and the exception passed on.
        """
        while True:
            await self._until_leading()
            _logger.info("leading as %s", self._identity)
            work = asyncio.ensure_future(lead())
            try:
                await self._while_leading(work)
            finally:
                work.cancel()
                await asyncio.wait({work}, timeout=1.0)
            if not work.done():
                await asyncio.wait({work}, timeout=WORK_ENDS_SECONDS)
            if not work.done():  # to lead again beside it would be two leaders in one process
                raise RuntimeError(f"the work of a leader goes on {WORK_ENDS_SECONDS:g} s after it was cancelled")
            if not work.cancelled() and (error := work.exception()) is not None:
                await self.release()
                raise error
            _logger.warning("no longer leading")

    async def step(self) -> bool:
        """One attempt to acquire or renew; True if the Lease is ours afterwards. Any trouble counts as "not renewed"."""
        try:
            return await within(self._clock, self._times.request_seconds, self._acquire_or_renew())
        except (ReconcileError, TimeoutError) as error:
            self._held = None
            _logger.info("the Lease was not renewed: %s", error)
            return False

    async def release(self) -> None:
        """Give the Lease back at once, so that a follower need not wait; harmless if we do not hold it."""
        held, leading = self._held, self.is_leader()
        self._valid_until = float("-inf")
        self._held = None
        if held is None or not leading:
            return
        spec = {**held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro(self._clock.now())}
        try:
            release = self._kube.replace(LEASES, {**held, "spec": spec}, field_manager=_MANAGER)
            await within(self._clock, 1.0, release)
        except (ReconcileError, TimeoutError) as error:
            _logger.info("the Lease was not released: %s", error)

    # -- inside -------------------------------------------------------------------------------------------------

    async def _until_leading(self) -> None:
        while not (await self.step() and self.is_leader()):
            await self._clock.sleep(self._jittered(self._times.look_seconds))

    async def _while_leading(self, work: asyncio.Future[None]) -> None:
        """Renew until validity ends or the work does. A hanging renewal never delays the end of validity."""
        renewals = asyncio.ensure_future(self._renew())
        try:
            while self.is_leader() and not work.done():
                rest = asyncio.ensure_future(self._clock.sleep(self._valid_until - self._clock.monotonic()))
                try:
                    await asyncio.wait({rest, work, renewals}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    rest.cancel()
                if renewals.done():
                    renewals.result()
                    return
        finally:
            renewals.cancel()

    async def _renew(self) -> None:
        """Renew every few seconds; returns when somebody else holds the Lease."""
        while True:
            await self._clock.sleep(self._jittered(self._times.retry_seconds))
            await self.step()
            if not self.is_leader():
                return

    def _jittered(self, seconds: float) -> float:
        return seconds * self._rng.uniform(0.8, 1.2)

    async def _acquire_or_renew(self) -> bool:
        held = self._held
        if held is None:
            held = await self._kube.get(LEASES, self._key)
            if held is None:
                return await self._write(None)
            if not self._may_take(held):
                return False
        return await self._write(held)

    def _may_take(self, lease: Object) -> bool:
        """Whether the record is ours, empty, or has stood still for its whole duration under our own eyes."""
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if holder in ("", self._identity):
            return True
        self._valid_until = float("-inf")  # somebody else wrote: whatever we believed is over
        record = (holder, str(spec.get("renewTime")), str(lease["metadata"].get("resourceVersion")))
        now = self._clock.monotonic()
        if record != self._seen:
            self._seen, self._seen_at = record, now
        duration = max(self._times.lease_seconds, float(spec.get("leaseDurationSeconds") or 0))
        return now >= self._seen_at + duration

    async def _write(self, lease: Object | None) -> bool:
        sent = self._clock.monotonic()
        body = self._record(lease)
        if lease is None:
            self._held = await self._kube.create(LEASES, body, field_manager=_MANAGER)
        else:
            self._held = await self._kube.replace(LEASES, body, field_manager=_MANAGER)
        self._valid_until = sent + self._times.renew_seconds
        return True

    def _record(self, lease: Object | None) -> dict[str, Any]:
        now = _micro(self._clock.now())
        old: dict[str, Any] = dict((lease or {}).get("spec") or {})
        spec = {
            **old,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._times.lease_seconds),
            "renewTime": now,
        }
        if old.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(old.get("leaseTransitions") or 0) + (1 if lease is not None else 0)
        return {**(lease or identity(LEASES, self._key)), "spec": spec}


def _micro(moment: datetime) -> str:
    """A MicroTime: the API server wants exactly six digits."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
