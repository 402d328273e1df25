"""Reads one engine and says how far the reading can be trusted.

Counters are monotone for one startId, so that two readings give a window; a new startId means a new process and therefore a
new base, never a negative difference. Whatever the contract forbids (NaN, counters that fall, limits above the pool) makes the
reading untrusted: the caller freezes and the next reading becomes a fresh base.
"""

import math
from collections.abc import Callable, Iterator
from operator import attrgetter, eq, le
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from contract.engine import Counters, Describe, Observe
from contract.errors import ProtocolViolation, Unreachable
from contract.histogram import MAX_BUCKET, MIN_BUCKET
from dataplane.agent.ports import EnginePort
from dataplane.agent.reasons import Freeze

Counted = tuple[Any, ...]
"""Numbers, and None where an engine need not have one."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A trusted observation. `previous` is the base of the window, None when there is no window yet.

    `restarted` is set when the process is not the one seen before (or the first), `emptied` when its caches were, `standing`
    when the engine's clock has not moved: then the window stays open and ends with a later reading.
    """

    describe: Describe
    now: Observe
    previous: Observe | None
    restarted: bool = False
    emptied: bool = False
    standing: bool = False


class NoReading(msgspec.Struct, frozen=True, kw_only=True):
    """No answer, or one that must not be used; `reason` says which."""

    reason: Freeze
    message: str


class Observer:
    """Keeps the base of the window and the description of the engine process it belongs to."""

    def __init__(self, engine: EnginePort, *, stale_readings: int = 5) -> None:
        self._engine = engine
        self._stale_readings = stale_readings
        self._describe: Describe | None = None
        self._base: Observe | None = None
        self._base_counted: Counted = ()
        self._seen: tuple[str, int] | None = None
        self._standing_still = 0

    async def read(self) -> Reading | NoReading:
        """Return the next reading; never raises for anything the engine does."""
        try:
            now = await self._engine.observe()
            describe = self._describe
            if describe is None or (describe.start_id, describe.epoch) != (now.start_id, now.epoch):
                describe = await self._engine.describe()
        except Unreachable as error:
            return NoReading(reason=Freeze.ENGINE_UNREACHABLE, message=str(error))
        except ProtocolViolation as error:
            return self._distrust(Freeze.ENGINE_GARBAGE, str(error))
        if describe.start_id != now.start_id:
            # It restarted between the two calls; the next reading sees one process.
            self._describe = None
            return NoReading(reason=Freeze.ENGINE_UNREACHABLE, message="the engine restarted while it was read")
        base = self._base if self._base is not None and self._base.start_id == now.start_id else None
        counted = _counters_of(now.counters)
        fault = _fault(now, counted, describe=describe, base=base, base_counted=self._base_counted)
        if fault is not None:
            return self._distrust(*fault)
        if base is not None and now.clock_ms <= base.clock_ms:
            return self._standing(now, describe)
        self._standing_still = 0
        seen, self._seen = self._seen, (now.start_id, now.epoch)
        self._base, self._base_counted, self._describe = now, counted, describe
        return Reading(
            describe=describe,
            now=now,
            previous=base,
            restarted=seen is None or seen[0] != now.start_id,
            emptied=seen is not None and seen != self._seen,
        )

    def forget_base(self) -> None:
        """Make the next reading a first one: no window reaches back over what is doubtful."""
        self._base = None

    def _distrust(self, reason: Freeze, message: str) -> NoReading:
        self.forget_base()
        return NoReading(reason=reason, message=message[:1024])

    def _standing(self, now: Observe, describe: Describe) -> Reading | NoReading:
        """No time has passed for the engine: harmless once, stale when it goes on."""
        self._standing_still += 1
        if self._standing_still >= self._stale_readings:
            return NoReading(reason=Freeze.STALE_DATA, message=f"clockMs stays at {now.clock_ms:.0f}")
        return Reading(describe=describe, now=now, previous=None, standing=True)


def _fault(
    now: Observe, counted: Counted, *, describe: Describe, base: Observe | None, base_counted: Counted
) -> tuple[Freeze, str] | None:
    """Return what the contract forbids in a reading, or None; `counted` are its counters in the order of `_COUNTERS`."""
    if not _all_numbers_are_sound(now, counted):
        for name, value in _numbers("", now):
            if not math.isfinite(value):
                return Freeze.NOT_A_NUMBER, f"{name} is {value}"
            if value < 0:
                return Freeze.ENGINE_GARBAGE, f"{name} is {value}, below zero"
    split, counters = now.split, now.counters
    if not now.start_id:
        return Freeze.ENGINE_GARBAGE, "startId is empty"
    if split.limits.emb_bytes + split.limits.kv_bytes > describe.pool_bytes:
        return (
            Freeze.LIMITS_ABOVE_POOL,
            f"limits {split.limits.emb_bytes} + {split.limits.kv_bytes} are above the pool of {describe.pool_bytes} bytes",
        )
    if counters.emb.rows_hit > counters.emb.rows_asked:
        return Freeze.ENGINE_GARBAGE, "counters.emb: more rows hit than asked"
    if counters.kv.tokens_hit_hbm + counters.kv.tokens_hit_dram + counters.kv.tokens_hit_ssd > counters.kv.tokens_asked:
        return Freeze.ENGINE_GARBAGE, "counters.kv: more tokens hit than asked"
    buckets = now.latency.counts
    if not now.latency.anchor_ms > 0 or (buckets and not (min(buckets) >= MIN_BUCKET and max(buckets) <= MAX_BUCKET)):
        return Freeze.ENGINE_GARBAGE, "latency: not the histogram of the contract"
    return _regression(now, counted, base, base_counted) if base is not None else None


def _regression(now: Observe, counted: Counted, base: Observe, base_counted: Counted) -> tuple[Freeze, str] | None:
    """Return the first thing that fell although it may only grow for one startId."""
    if now.epoch < base.epoch:
        return Freeze.COUNTERS_WENT_BACK, f"epoch fell from {base.epoch} to {now.epoch}"
    if now.clock_ms < base.clock_ms:
        return Freeze.COUNTERS_WENT_BACK, f"clockMs fell from {base.clock_ms:.0f} to {now.clock_ms:.0f}"
    if None in counted or None in base_counted or not all(map(le, base_counted, counted)):  # who fell is looked for only then
        for name, new, old in zip(_COUNTERS, counted, base_counted, strict=True):
            if new is not None and old is not None and new < old:  # a counter that an engine need not have may come and go
                return Freeze.COUNTERS_WENT_BACK, f"counters.{name} fell from {old} to {new}"
    counts, earlier = now.latency.counts, base.latency.counts
    # Engines write buckets in one order, new ones last; only if not is each looked up.
    if len(counts) >= len(earlier) and all(map(eq, earlier, counts)) and all(map(le, earlier.values(), counts.values())):
        return None
    for bucket, count in earlier.items():
        if counts.get(bucket, 0) < count:
            return Freeze.COUNTERS_WENT_BACK, f"latency bucket {bucket} fell"
    return None


def _paths(kind: type[msgspec.Struct], before: str = "") -> Iterator[str]:
    """Yield the dotted name of every number inside a kind of wire value; mappings are left out."""
    for field in msgspec.structs.fields(kind):
        kinds = get_args(field.type) if get_origin(field.type) in (UnionType, Union) else (field.type,)
        bare = [get_args(one)[0] if get_origin(one) is Annotated else one for one in kinds]
        for one in bare:
            if isinstance(one, type) and issubclass(one, msgspec.Struct):
                yield from _paths(one, f"{before}{field.name}.")
            elif one in (int, float):
                yield before + field.name


_COUNTERS = tuple(_paths(Counters))
_counters_of: Callable[[Counters], Counted] = attrgetter(*_COUNTERS)
_rest_of: Callable[[Observe], Counted] = attrgetter(*(path for path in _paths(Observe) if not path.startswith("counters.")))


def _all_numbers_are_sound(now: Observe, counted: Counted) -> bool:
    """Say at once whether every number is finite and none below zero; who is to blame is looked for only when not."""
    values: Counted = (*counted, *_rest_of(now), *now.latency.counts.values())
    if None in values:
        values = tuple([value for value in values if value is not None])
    # A sum is finite only if all it adds is: neither infinities nor NaN cancel out.
    return math.isfinite(sum(values)) and min(values) >= 0


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield every number inside a wire value with its dotted name."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _numbers(f"{name}.{field}" if name else field, getattr(value, field))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(f"{name}[{key}]", inner)
    elif isinstance(value, (int, float)):
        yield name, value
