"""The prefixes that one caller of the trigger has under way: single flight per user, bytes by Little's law, a token bucket.

It is the small memory beside `judge`: what was admitted within the lifetime of a prefix is what lives, also when the instance's
own report is old. Rate and lifetime bound it, it forgets by itself, and losing it costs a few refusals by the engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

import msgspec

from policies.measurement import Fresh, Measurement
from policies.preinference.trigger import Load, Signal, TriggerRules, Verdict, judge


class TokenBucket(msgspec.Struct, frozen=True, kw_only=True):
    """Starts that are left at a moment; refills at a rate, holds at most one second's worth and at least one."""

    tokens: float
    at_ms: float

    def refilled(self, *, per_second: float, now_ms: float) -> TokenBucket:
        """The bucket at `now_ms`; time that goes back adds nothing."""
        grown = self.tokens + max(0.0, now_ms - self.at_ms) / 1000.0 * per_second
        return TokenBucket(tokens=min(grown, _depth(per_second)), at_ms=max(now_ms, self.at_ms))

    def taken(self) -> TokenBucket:
        """The bucket after one start."""
        return TokenBucket(tokens=self.tokens - 1.0, at_ms=self.at_ms)


class _Flight(msgspec.Struct):
    bytes: int
    admitted_ms: float
    computing: bool = True


class Flights:
    """Prefixes of one instance's users, admitted by this caller."""

    def __init__(self) -> None:
        self._flights: OrderedDict[Hashable, _Flight] = OrderedDict()  # in the order of admission
        self._bytes = 0
        self._computing = 0
        self._bucket: TokenBucket | None = None

    def judge(
        self, user: Hashable, signal: Signal, *, rules: TriggerRules, reported_live_bytes: Measurement, now_ms: float
    ) -> Verdict:
        """Judge a signal and, when it is admitted, count it.

        Parameters
        ----------
        user
            Pseudonymous key of the user; only compared.
        reported_live_bytes
            What the instance says; the larger of this and the own count holds, the own count alone when it is not fresh.
        """
        self._expire(life_ms=rules.life_ms, now_ms=now_ms)
        bucket = self._bucket or TokenBucket(tokens=_depth(rules.max_per_second), at_ms=now_ms)
        bucket = bucket.refilled(per_second=rules.max_per_second, now_ms=now_ms)
        reported = reported_live_bytes.value if isinstance(reported_live_bytes, Fresh) else 0.0
        verdict = judge(
            signal,
            rules=rules,
            load=Load(
                computing_same_user=user in self._flights,
                computing=self._computing,
                live_bytes=max(reported, self._bytes),
                starts_left=bucket.tokens,
            ),
        )
        if verdict is Verdict.ADMIT:
            bucket = bucket.taken()
            self._flights[user] = _Flight(bytes=signal.bytes, admitted_ms=now_ms)
            self._bytes += signal.bytes
            self._computing += 1
        self._bucket = bucket
        return verdict

    def computed(self, user: Hashable) -> None:
        """The prefix is finished and waits for its ranking request."""
        flight = self._flights.get(user)
        if flight is not None and flight.computing:
            flight.computing = False
            self._computing -= 1

    def ended(self, user: Hashable) -> None:
        """The prefix is used, refused by the engine or given up."""
        flight = self._flights.pop(user, None)
        if flight is not None:
            self._bytes -= flight.bytes
            self._computing -= flight.computing

    def __len__(self) -> int:
        return len(self._flights)

    def _expire(self, *, life_ms: float, now_ms: float) -> None:
        while self._flights:
            user, oldest = next(iter(self._flights.items()))
            if now_ms - oldest.admitted_ms < life_ms:
                return
            self.ended(user)


def _depth(per_second: float) -> float:
    return max(1.0, per_second) if per_second > 0.0 else 0.0
