"""A whole engine in memory, obedient or hostile on request, and a clock that only tests move."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from contract import samples
from contract.engine import (
    Counters,
    Describe,
    DrainAnswer,
    EmbCounters,
    Evictions,
    Gauges,
    KvCounters,
    LimitsAnswer,
    LimitsRequest,
    ModelIdentity,
    Observe,
    PoolBytes,
    PreInferCounters,
    Sampling,
    SplitAnswer,
    SplitRequest,
    SplitState,
    SplitStatus,
    TransferBytes,
    WorkMs,
)
from contract.errors import ProtocolViolation, Unreachable
from contract.histogram import LatencyRecorder
from contract.residency import ResidencyReport

MIB = 1 << 20
GIB = 1 << 30


class FakeClock:
    """Seconds since an arbitrary origin; `sleep` moves it."""

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class FakeEngine:
    """Keeps the engine contract's rules; `fault` makes the next observations hostile.

    `lag_readings` is how many observations a shrink needs until its bytes are free (0 = at once).
    """

    pool_bytes: int = 16 * GIB
    granule_bytes: int = 64 * MIB
    lag_readings: int = 0
    start_id: str = "start-1"
    epoch: int = 0
    clock_ms: float = 1000.0
    revision: int = 0
    refill: int = 0
    max_change: int | None = None
    reachable: bool = True
    fault: str = ""
    put_fault: str = ""
    limits: tuple[int, int] = (8 * GIB, 8 * GIB)
    used: list[int] = field(default_factory=lambda: [8 * GIB, 8 * GIB])
    puts: list[SplitRequest] = field(default_factory=list)
    answers: list[SplitStatus] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    totals: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("requests", "tokens", "tokens_hit", "rows", "rows_hit", "service", "service_sq", "emb_miss", "kv_miss"), 0.0
        )
    )
    records: list[tuple[int, int, int, int]] = field(default_factory=list)
    lost: int = 0
    tiers: list[str] = field(default_factory=lambda: ["hbm"])
    bounds: LimitsRequest = field(default_factory=lambda: LimitsRequest(revision=0, pre_infer_slots=4, pre_infer_bytes=0))
    limits_asked: list[LimitsRequest] = field(default_factory=list)
    limits_fault: str = ""
    in_flight: int = 1
    accepted: int = 0
    refill_blocks: bool = False
    draining: bool | None = False
    drains: list[bool] = field(default_factory=list)
    drain_fault: str = ""

    def __post_init__(self) -> None:
        self.latency = LatencyRecorder(anchor_ms=100.0)
        self._lag = 0
        self._fallen = 0

    # -- what the test does to it -----------------------------------------------------------------------------------------

    def serve(self, *, seconds: float = 1.0, requests: int = 100, emb_hit: float = 0.8, kv_hit: float = 0.5) -> None:
        """Let time pass and requests come, with the given hit shares."""
        self.clock_ms += seconds * 1000
        tokens, rows = requests * 1000, requests * 2000
        emb_miss, kv_miss = rows * (1 - emb_hit) * 0.001, tokens * (1 - kv_hit) * 0.001
        service = emb_miss + kv_miss + requests * 1.0
        added = {
            "requests": requests, "tokens": tokens, "tokens_hit": tokens * kv_hit, "rows": rows, "rows_hit": rows * emb_hit,
            "service": service, "service_sq": service**2 / max(requests, 1) * 1.3, "emb_miss": emb_miss, "kv_miss": kv_miss,
        }  # fmt: skip
        for name, value in added.items():
            self.totals[name] += value
        for _ in range(min(requests, 50)):
            self.latency.record(service / max(requests, 1))

    def touch(self, *, kind: int, key: int, size: int, time_ms: float) -> None:
        self.records.append((kind, size, key, int(time_ms * 1000)))

    def restart(self) -> None:
        """Kill -9 and start: new process, empty counters, revision 0, split back to half and half."""
        number = int(self.start_id.rsplit("-", 1)[1]) + 1
        fresh = FakeEngine(pool_bytes=self.pool_bytes, granule_bytes=self.granule_bytes, start_id=f"start-{number}", clock_ms=1.0)
        names = (
            "puts",
            "answers",
            "violations",
            "lag_readings",
            "limits_asked",
            "limits_fault",
            "drains",
            "drain_fault",
            "tiers",
        )
        fresh.limits = (self.pool_bytes // 2, self.pool_bytes // 2)
        fresh.used = list(fresh.limits)
        kept = {name: getattr(self, name) for name in names}
        self.__dict__.update(fresh.__dict__ | kept)

    def foreign_write(self, *, emb_bytes: int) -> None:
        """Somebody else moves the split."""
        self.revision += 1
        self.limits = (emb_bytes, self.pool_bytes - emb_bytes)
        self.used = list(self.limits)

    # -- EnginePort ---------------------------------------------------------------------------------------------------------

    async def describe(self) -> Describe:
        self._answer()
        return Describe(
            contract_version="v1", engine="fake", emulation=True, start_id=self.start_id, epoch=self.epoch,
            model=ModelIdentity(name="m", version="1"), pool_bytes=self.pool_bytes, granule_bytes=self.granule_bytes,
            link_bytes_per_second=20_000_000_000, kv_bytes_per_token=8192, emb_row_bytes=4096, resizable=["emb", "kv"],
            key_kinds=["user", "row"], tiers=self.tiers, p99_ms=100.0, sampling=Sampling(users_one_in=1, rows_one_in=16),
            max_split_change_bytes=self.max_change, refill_blocks_serving=self.refill_blocks,
        )  # fmt: skip

    async def observe(self) -> Observe:
        self._answer()
        if self.fault == "garbage":
            raise ProtocolViolation("Observe: Expected `object`, got `array`")
        self._work()
        t = self.totals
        observation = Observe(
            start_id=self.start_id,
            epoch=self.epoch,
            clock_ms=self.clock_ms,
            counters=Counters(
                requests=int(t["requests"]),
                kv=KvCounters(tokens_asked=int(t["tokens"]), tokens_hit_hbm=int(t["tokens_hit"])),
                emb=EmbCounters(rows_asked=int(t["rows"]), rows_hit=int(t["rows_hit"])),
                bytes=TransferBytes(),
                evictions=Evictions(),
                work_ms=WorkMs(
                    service=t["service"], service_squared=t["service_sq"], emb_miss=t["emb_miss"], kv_miss=t["kv_miss"]
                ),
                pre_infer=PreInferCounters(accepted=self.accepted),
            ),
            gauges=Gauges(queue=0, in_flight=self.in_flight),
            split=self.split_state(),
            latency=self.latency.snapshot(),
            draining=self.draining,
        )
        return self._spoil(observation)

    async def put_split(self, request: SplitRequest) -> SplitAnswer:
        self._answer()
        self.puts.append(request)
        status = self._judge(request)
        self.answers.append(status)
        split = self.split_state()
        if self.put_fault == "lost":
            raise Unreachable("PUT /split: TimeoutError")
        if self.put_fault == "garbage":
            raise ProtocolViolation("PUT /split: Expected `object`, got `array`")
        if self.put_fault == "above pool":
            split = msgspec.structs.replace(split, limits=PoolBytes(emb_bytes=self.pool_bytes, kv_bytes=self.granule_bytes))
        started = "start-0" if self.put_fault == "another process" else self.start_id
        return SplitAnswer(status=status, split=split, start_id=started)

    async def put_limits(self, request: LimitsRequest) -> LimitsAnswer:
        """The same rules as for the split. `lost before`, `lost after`: no answer comes, and the change is made in the latter."""
        self._answer()
        self.limits_asked.append(request)
        if self.limits_fault == "lost before":
            raise Unreachable("PUT /limits: TimeoutError")
        if self.limits_fault == "garbage":
            raise ProtocolViolation("PUT /limits: status 404")
        status = self._judge_limits(request)
        if self.limits_fault == "lost after":
            raise Unreachable("PUT /limits: TimeoutError")
        return LimitsAnswer(status=status, limits=self.bounds)

    async def drain(self, *, draining: bool) -> DrainAnswer:
        self._answer()
        if self.drain_fault == "lost":
            raise Unreachable("POST /drain: TimeoutError")
        self.drains.append(draining)
        taken = draining or self.drain_fault == "for ever"
        self.draining = None if self.draining is None else taken
        return DrainAnswer(draining=taken, in_flight=self.in_flight)

    async def residency(self, cursor: int, *, most: int) -> ResidencyReport | None:
        return None

    async def samples(self, cursor: int) -> tuple[NDArray[Any], int, int]:
        self._answer()
        if self.fault == "bad samples":
            raise ProtocolViolation("samples: 7 bytes are not whole records")
        out = np.empty(len(self.records) - cursor, dtype=samples.RECORD)
        for row, (kind, size, key, time_us) in enumerate(self.records[cursor:]):
            out[row] = (cursor + row, (kind << 30) | size, key, time_us)
        lost, self.lost = self.lost, 0
        return out, len(self.records), lost

    # -- inside ---------------------------------------------------------------------------------------------------------------

    def split_state(self) -> SplitState:
        over = max(0, self.used[0] - self.limits[0]) + max(0, self.used[1] - self.limits[1])
        return SplitState(
            revision=self.revision,
            limits=PoolBytes(emb_bytes=self.limits[0], kv_bytes=self.limits[1]),
            used=PoolBytes(emb_bytes=self.used[0], kv_bytes=self.used[1]),
            overage_bytes=over,
            refill_backlog_bytes=0,
            refill_bytes_per_second=self.refill,
        )

    def _answer(self) -> None:
        if not self.reachable:
            raise Unreachable("GET: ConnectError")

    def _work(self) -> None:
        """Evict what is above a limit, `lag_readings` readings after the shrink; then fill what is free."""
        if self._lag > 0:
            self._lag -= 1
            return
        self.used = [min(used, limit) for used, limit in zip(self.used, self.limits, strict=True)]
        self.used = list(self.limits)

    def _judge_limits(self, request: LimitsRequest) -> SplitStatus:
        if request.revision < self.bounds.revision:
            return SplitStatus.STALE
        if request.revision == self.bounds.revision:
            return SplitStatus.APPLIED if request == self.bounds else SplitStatus.CONFLICT
        if request.revision > self.bounds.revision + 1:
            return SplitStatus.CONFLICT
        missing = (request.host_bytes and "dram" not in self.tiers) or (request.ssd_bytes and "ssd" not in self.tiers)
        if missing or self.limits_fault == "unsupported":
            return SplitStatus.UNSUPPORTED
        if (
            request.pre_infer_bytes > self.bounds.pre_infer_bytes
            and request.pre_infer_bytes + self.split_most() > self.pool_bytes
        ):
            self.violations.append(f"prefixes raised to {request.pre_infer_bytes} beside a split of {self.split_most()}")
        self.bounds = request
        return SplitStatus.APPLIED

    def split_most(self) -> int:
        """Bytes that the split may take at this instant."""
        return sum(max(limit, used) for limit, used in zip(self.limits, self.used, strict=True))

    def _judge(self, request: SplitRequest) -> SplitStatus:
        asked = (request.emb_bytes, request.kv_bytes)
        if sum(asked) > self.pool_bytes:
            self.violations.append(f"asked for {asked} in a pool of {self.pool_bytes}")
            return SplitStatus.UNSUPPORTED
        if self.put_fault == "unsupported":
            return SplitStatus.UNSUPPORTED
        if self.put_fault == "conflict" or request.start_id != self.start_id:
            return SplitStatus.CONFLICT
        if self.max_change is not None and any(abs(a - b) > self.max_change for a, b in zip(asked, self.limits, strict=True)):
            self.violations.append(f"{asked} changes {self.limits} by more than {self.max_change}")
            return SplitStatus.UNSUPPORTED
        if request.revision == self.revision and asked == self.limits:
            return SplitStatus.APPLIED
        if request.revision <= self.revision:
            return SplitStatus.STALE if request.revision < self.revision else SplitStatus.CONFLICT
        if request.revision != self.revision + 1:
            return SplitStatus.CONFLICT
        for side, name in enumerate(("emb", "kv")):
            other = 1 - side
            held = max(self.limits[other], self.used[other])
            if asked[side] > self.limits[side] and asked[side] + max(held, asked[other]) > self.pool_bytes:
                self.violations.append(f"{name} grew to {asked[side]} while the other side still held {held}")
                return SplitStatus.CONFLICT
        shrinks = any(new < used for new, used in zip(asked, self.used, strict=True))
        self.revision, self.limits, self.refill = request.revision, asked, request.refill_bytes_per_second
        if shrinks and self.lag_readings:
            self._lag = self.lag_readings
            return SplitStatus.DEFERRED
        self.used = [min(used, limit) for used, limit in zip(self.used, self.limits, strict=True)]
        return SplitStatus.APPLIED

    def _spoil(self, observation: Observe) -> Observe:
        """Make an observation hostile in the way `fault` names."""
        replace = msgspec.structs.replace
        if self.fault == "nan":
            work = replace(observation.counters.work_ms, service=float("nan"))
            return replace(observation, counters=replace(observation.counters, work_ms=work))
        if self.fault == "infinite clock":
            return replace(observation, clock_ms=float("inf"))
        if self.fault == "counters fall":
            self._fallen += 150
            requests = max(0, observation.counters.requests - self._fallen)
            return replace(observation, counters=replace(observation.counters, requests=requests))
        if self.fault == "limits above pool":
            limits = PoolBytes(emb_bytes=self.pool_bytes, kv_bytes=1)
            return replace(observation, split=replace(observation.split, limits=limits))
        if self.fault == "more hits than asked":
            emb = EmbCounters(rows_asked=int(self.totals["rows"]), rows_hit=int(self.totals["rows"]) + 1)
            return replace(observation, counters=replace(observation.counters, emb=emb))
        if self.fault == "negative":
            work = replace(observation.counters.work_ms, kv_miss=-1.0)
            return replace(observation, counters=replace(observation.counters, work_ms=work))
        return observation
