"""A simulation under way: serving, moving splits, keeping series, and the result at the end, whoever chooses who serves what."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.fleet import state
from simulator.fleet.batches import serve_together
from simulator.fleet.build import Instance
from simulator.fleet.config import FleetConfig, Level
from simulator.fleet.doubts import doubts_of
from simulator.fleet.kernel import serve, user_in_service
from simulator.fleet.laws import LawTables
from simulator.fleet.resize import advance, emb_used_bytes, settle
from simulator.fleet.result import FleetResult, Move, Windows
from simulator.fleet.users import NOBODY
from simulator.request_log import RequestLog

Progress = Callable[[int, int], None]


@dataclass(kw_only=True)
class Running:
    """What every way to run a fleet shares.

    `ends` are the ends of the windows of the series; `series` has EMB limit, EMB used and KV used by window and instance;
    `served` counts by instance, of `jobs` in all.
    """

    log: RequestLog
    config: FleetConfig
    level: Level
    seed: int
    tables: LawTables
    physics: NDArray[np.float64]
    fleet: NDArray[np.int64]
    ends: NDArray[np.float64]
    progress: Progress
    series: NDArray[np.int64]
    counted: NDArray[np.int64]
    filled_at_ms: NDArray[np.float64]
    served: NDArray[np.int64]
    jobs: int
    moves: list[Move] = field(default_factory=list)

    def until_ms(self, step: int) -> float:
        """When a window ends; nothing waits beyond the last one."""
        return math.inf if step + 1 == len(self.ends) else float(self.ends[step])

    def tell(self) -> None:
        """Say how far it is."""
        self.progress(int(self.served.sum()), self.jobs)

    def run_alone(self, instance: Instance, first: int, stop: int) -> None:
        """Serve the requests at the places first..stop-1 of an instance's order, each alone."""
        serve(
            first,
            stop,
            instance.requests,
            self.physics,
            self.fleet,
            instance.ints,
            instance.floats,
            instance.users,
            instance.rows,
            self.tables.laws,
            instance.seed,
        )

    def run_together(self, instance: Instance, first: int, stop: int, until_ms: float) -> None:
        """Let the requests at some places arrive, and run the batches that can start before `until_ms`."""
        serve_together(
            first,
            stop,
            until_ms,
            instance.requests,
            self.physics,
            self.fleet,
            instance.ints,
            instance.floats,
            instance.users,
            instance.rows,
            instance.batches,
            self.tables.laws,
            instance.seed,
        )

    def move(self, instance: Instance, place: int, emb_bytes: int | None, now_ms: float) -> None:
        """Take a wanted split over: shrink now, grow now or when nothing is above a limit any more."""
        ints, before = instance.ints, int(instance.ints[state.EMB_TARGET])
        if emb_bytes is None or emb_bytes == before:
            return
        if not 0 <= emb_bytes <= self.config.pool_bytes:
            raise ValueError(f"split: {emb_bytes} bytes for EMB are not within the pool of {self.config.pool_bytes}")
        alone = self.config.batching is None  # users of a batch are pinned
        serving = user_in_service(ints, place, instance.requests, now_ms) if alone else NOBODY
        parts = (ints, instance.floats, instance.users, instance.rows, self.tables.laws)
        advance(self.physics, self.fleet, *parts, serving, now_ms)
        evicted = int(ints[state.RESIZE_EVICTED])
        ints[state.EMB_TARGET] = emb_bytes
        settle(self.physics, self.fleet, *parts, serving, now_ms)
        self.moves.append(
            Move(
                at_ms=now_ms,
                instance=instance.number,
                from_emb_bytes=before,
                to_emb_bytes=emb_bytes,
                evicted_bytes=int(ints[state.RESIZE_EVICTED]) - evicted,
            )
        )

    def note(self, instance: Instance, step: int) -> None:
        """Note limits and bytes in use at the end of a window."""
        ints = instance.ints
        used = emb_used_bytes(self.fleet, ints, instance.floats, instance.rows, self.tables.laws)
        self.series[:, step, instance.number] = ints[state.EMB_LIMIT], used, ints[state.KV_USED]

    def end(self, instance: Instance) -> None:
        """Take the counters of an instance over."""
        self.counted[instance.number] = instance.ints
        self.filled_at_ms[instance.number] = instance.floats[state.FILLED_AT]

    def made(
        self,
        columns: dict[str, NDArray[Any]],
        *,
        instance: NDArray[np.uint16],
        counts: dict[str, int],
        window_ms: float,
        measured_from_ms: float,
    ) -> FleetResult:
        """Put the outcome together, from the columns by request and the counters."""
        total = self.counted.sum(axis=0)
        if self.config.load_behind_percent is not None:
            counts = counts | {"rowsDefaulted": int(total[state.ROWS_DEFAULTED])}
        if self.config.offload_queue_bytes is not None:
            dropped = {"offloadDrops": int(total[state.OFFLOAD_DROPS]), "offloadDroppedBytes": int(total[state.OFFLOAD_DROPPED])}
            counts = counts | dropped
        if self.config.ttl_ms is not None or self.config.emb_version_ms is not None:
            aged = {"expired": state.EXPIRED, "tooStale": state.TOO_STALE, "staleHits": state.STALE_HITS}
            counts = counts | {name: int(total[place]) for name, place in aged.items()}
        made = FleetResult(
            log=self.log,
            config=self.config,
            level=self.level,
            seed=self.seed,
            instance=instance,
            latency_ms=columns["latency_ms"],
            service_ms=columns["service_ms"],
            kv_hit_tokens=columns["kv_hit_tokens"],
            host_hit_tokens=columns["host_hit_tokens"],
            ssd_hit_tokens=columns["ssd_hit_tokens"],
            rows_asked=columns["rows_asked"],
            rows_missed=columns["rows_missed"],
            windows=Windows(
                window_ms=window_ms,
                emb_limit_bytes=self.series[0],
                emb_used_bytes=self.series[1],
                kv_used_bytes=self.series[2],
            ),
            moves=tuple(self.moves),
            bytes_by_class={
                "demand": int(total[state.ROWS_MISSED]) * self.config.service.row_bytes,
                "refill": int(total[state.REFILL_BYTES]),
                "reload": int(total[state.RELOAD_BYTES]),
                "offload": int(total[state.OFFLOAD_BYTES]),
                "kvEvicted": int(total[state.KV_EVICTED]),
                "embEvicted": int(total[state.EMB_EVICTED]) * int(self.fleet[state.CELL_BYTES]),
                "resizeEvicted": int(total[state.RESIZE_EVICTED]),
            },
            counts=counts,
            measured_from_ms=measured_from_ms,
        )
        doubts = doubts_of(
            made,
            filled_at_ms=self.filled_at_ms.tolist(),
            one_in=self.tables.one_in,
            least_emb_bytes=int(self.series[0].min()),
        )
        return replace(made, doubts=doubts)


def empty_columns(count: int) -> dict[str, NDArray[Any]]:
    """Return empty columns of a result."""
    whole = ("kv_hit_tokens", "host_hit_tokens", "ssd_hit_tokens", "rows_asked", "rows_missed")
    columns: dict[str, NDArray[Any]] = {name: np.zeros(count) for name in ("latency_ms", "service_ms")}
    return columns | {name: np.zeros(count, dtype=np.int32) for name in whole}
