"""The door to the oracle: a log and a fleet in, the best splits of every window in hindsight out.

Instances do not influence one another, since routing is fixed by slots; so each is looked at from the first request to the last,
at all splits at once: KV hits from stack distances, EMB misses from the laws of the log, queues by Lindley's recursion.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from contract.keys import SLOTS
from simulator.fleet.build import WarmUsers
from simulator.fleet.config import FleetConfig
from simulator.fleet.service import fleet_floats
from simulator.oracle import lindley
from simulator.oracle.cache import OracleCache, key_of
from simulator.oracle.choice import Choice, NoiseFloor, choose, noise_floor, warm_up_windows
from simulator.oracle.costs import compute_columns
from simulator.oracle.doubts import doubts_of
from simulator.oracle.embedding import middle_miss_ratio, with_miss_ratios
from simulator.oracle.gather import Gathered, Progress, gather
from simulator.oracle.lindley import ASKED, BUSY, GOOD, HALVES, KV_ASKED, KV_MISSED, LATENCY, MISSED
from simulator.oracle.moves import Moves
from simulator.oracle.parallel import chunks
from simulator.oracle.result import OracleResult
from simulator.oracle.stack import previous_access
from simulator.oracle.windows import Grid, Group, Requests
from simulator.replay import even_slots
from simulator.request_log import RequestLog

SPLITS = tuple(range(5, 96))
MAX_WINDOWS = 100_000
LEAST_OF_SLO = 1024
LEAST_COVERED = 0.9


def best_splits(
    log: RequestLog,
    config: FleetConfig,
    *,
    window_ms: float,
    seed: int,
    splits: Sequence[int] = SPLITS,
    routing: Sequence[int] | None = None,
    warm: WarmUsers | None = None,
    workers: int = 1,
    cache: OracleCache | None = None,
    progress: Progress | None = None,
) -> OracleResult:
    """Return latencies at every split in every window, and the splits that they favour.

    Parameters
    ----------
    log : RequestLog
    config : FleetConfig
        Its `emb_percent` is not used: every split is held from the start.
    window_ms : float
        Length of a window; 30 s and more than 1 000 requests an instance make a P99 that can be compared.
    seed : int
        Of the random numbers that all splits share.
    splits : sequence of int
        EMB shares in percent, rising.
    routing : sequence of int, optional
        Owner of each of 4096 slots; dealt out in turn when absent.
    warm : WarmUsers, optional
        Whose state the KV caches hold before the first request; they start empty when absent.
    workers : int
        Processes; the result does not depend on it.
    cache : OracleCache, optional
        Where a result with the same content is looked for first, and kept.
    progress : callable, optional
        Called with windows done and windows in all.

    Raises
    ------
    ValueError
        For a window, splits, routing or others that make no sense; the message begins with the name.
    WorkerLost
        When a process was ended from outside.
    """
    slots = np.asarray(even_slots(config.instances) if routing is None else routing, dtype=np.int64)
    _check(log, config, window_ms=window_ms, splits=splits, slots=slots, workers=workers)
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed: {seed} lies outside 0..2**63")
    if config.load_behind_percent is not None:
        raise ValueError("load_behind_percent: the oracle lets every request wait for its rows")
    if config.batching is not None:
        raise ValueError("batching: the oracle serves one request at a time")
    if config.refill_yields:
        raise ValueError("refill_yields: the oracle sets the rate of a refill aside")
    if config.offload_queue_bytes is not None:
        raise ValueError("offload_queue_bytes: the oracle copies whatever HBM evicts")
    if config.ttl_ms is not None:
        raise ValueError("ttl_ms: the oracle lets state live as long as there is room for it")
    if config.emb_version_ms is not None:
        raise ValueError("emb_version_ms: the oracle lets state serve whatever version it is of")
    if warm is not None and len(warm.user) and int(warm.user.max()) >= log.users:
        raise ValueError(f"warm: user {int(warm.user.max())} is not among the {log.users} of the log")
    key = key_of(log, config, window_ms=window_ms, seed=seed, splits=tuple(splits), slots=slots, warm=warm)
    known = cache.load(key) if cache is not None else None
    if known is not None:
        if progress is not None:
            progress(known.count.shape[1], known.count.shape[1])
        return known
    grid = grid_of(log, config, window_ms=window_ms, splits=splits)
    groups = groups_of(log, config, grid, slots=slots, seed=seed, warm=warm, workers=workers)
    result = _computed(log, config, grid, groups, splits=tuple(splits), seed=seed, progress=progress)
    if cache is not None:
        cache.store(key, result)
    return result


def split_bytes(config: FleetConfig, splits: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return EMB and KV bytes at each split, in whole granules as the fleet sets them."""
    granule = config.granule_bytes
    emb = np.array([config.pool_bytes * percent // 100 // granule * granule for percent in splits], dtype=np.int64)
    return emb, config.pool_bytes - emb


def grid_of(log: RequestLog, config: FleetConfig, *, window_ms: float, splits: Sequence[int]) -> Grid:
    """Return windows that begin at whole multiples of their length, as those of a simulation do."""
    emb, kv = split_bytes(config, splits)
    first = int(log.arrival_ms[0] // window_ms)
    windows = int(log.arrival_ms[-1] // window_ms) + 1 - first
    return Grid(start_ms=first * window_ms, window_ms=window_ms, windows=windows, emb_bytes=emb, kv_bytes=kv)


def groups_of(
    log: RequestLog,
    config: FleetConfig,
    grid: Grid,
    *,
    slots: NDArray[np.int64],
    seed: int,
    warm: WarmUsers | None,
    workers: int,
) -> list[Group]:
    """Deal the instances of a fleet out into groups, each with its own columns."""
    owner_of = slots[log.user_slots]
    owner = owner_of[log.user]
    order = np.argsort(owner.astype(np.uint16), kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(config.instances + 1))
    # One number a request, whatever the grouping: splits differ by what they hold alone.
    noise = np.random.default_rng(seed).standard_normal(len(log))
    rare = lindley.chance_above(noise)
    known = warm or WarmUsers(user=np.zeros(0, dtype=np.uint32), tokens=np.zeros(0, dtype=np.int32))
    everything = []
    for instance in range(config.instances):
        rows = order[bounds[instance] : bounds[instance + 1]]
        mine = owner_of[known.user] == instance
        everything.append(
            Requests(
                instance=instance,
                arrival_ms=log.arrival_ms[rows],
                user=log.user[rows],
                history=log.history_tokens[rows],
                candidates=log.candidates[rows],
                law=log.law[rows],
                noise=noise[rows],
                rare=rare[rows],
                warm_user=known.user[mine],
                warm_tokens=known.tokens[mine],
            )
        )
    whole = Group(
        config=config,
        grid=grid,
        rows_per_token=log.rows_per_token,
        lowest_bin=lindley.lowest_bin(_least_ms(log, config)),
        middle_miss_ratio=middle_miss_ratio(log, grid.emb_bytes[grid.splits // 2] / config.service.row_bytes),
        step_edges_ms=np.zeros(2),
        miss=np.zeros((1, len(log.laws), grid.splits)),
        requests=tuple(everything),
    )
    whole = with_miss_ratios(whole, log)
    share = max(1, min(workers, config.instances))
    return [replace(whole, requests=whole.requests[number::share]) for number in range(share)]


def _computed(
    log: RequestLog,
    config: FleetConfig,
    grid: Grid,
    groups: Sequence[Group],
    *,
    splits: tuple[int, ...],
    seed: int,
    progress: Progress | None,
) -> OracleResult:
    warm_up = _warm_up(log, grid)
    counted = _counted(log, grid, warm_up)
    gathered = gather(
        chunks(groups),
        grid,
        instances=config.instances,
        counted=counted,
        lowest_bin=groups[0].lowest_bin,
        progress=progress,
    )
    moves = Moves(config=config, emb_bytes=grid.emb_bytes, kv_bytes=grid.kv_bytes, window_ms=grid.window_ms)
    count, sums = gathered.count, gathered.sums
    total = count.sum(axis=0)
    fleet = choose(
        gathered.fleet_p99_ms[HALVES],
        total,
        counted,
        lambda window: moves.penalty_ms(gathered.fleet_p99_ms[HALVES, window], sums[:, window].mean(axis=0)),
    )
    instances = tuple(_instance_choice(gathered, moves, counted, instance) for instance in range(config.instances))
    floors = [noise_floor(gathered.p99_ms[:HALVES, instance], count[instance], counted) for instance in range(config.instances)]
    noise = noise_floor(gathered.fleet_p99_ms[:HALVES], total, counted)
    return OracleResult(
        log_digest=log.digest,
        seed=seed,
        start_ms=grid.start_ms,
        window_ms=grid.window_ms,
        slo_ms=config.slo_ms,
        splits=splits,
        counted=counted,
        count=count,
        p99_ms=gathered.p99_ms[HALVES],
        mean_ms=_ratio(sums[:, :, LATENCY], count[..., None]),
        slo_percent=100.0 * _ratio(sums[:, :, GOOD], count[..., None]),
        utilisation_percent=100.0 * sums[:, :, BUSY] / grid.window_ms,
        kv_users_found_percent=100.0 * (1.0 - _ratio(sums[:, :, KV_MISSED], sums[:, :, KV_ASKED])),
        emb_hit_percent=100.0 * (1.0 - _ratio(sums[:, :, MISSED], sums[:, :, ASKED])),
        fleet_p99_ms=gathered.fleet_p99_ms[HALVES],
        fleet_mean_ms=_ratio(sums[:, :, LATENCY].sum(axis=0), total[:, None]),
        fleet_slo_percent=100.0 * _ratio(sums[:, :, GOOD].sum(axis=0), total[:, None]),
        whole_p99_ms=gathered.whole_p99_ms,
        fleet=fleet,
        instances=instances,
        noise=noise,
        instance_noise=_mean_floor(floors),
        doubts=doubts_of(grid, gathered, warm_up=warm_up, counted=counted, fleet=fleet, noise=noise),
    )


def _instance_choice(gathered: Gathered, moves: Moves, counted: NDArray[np.bool_], instance: int) -> Choice:
    p99, sums = gathered.p99_ms[HALVES, instance], gathered.sums[instance]
    return choose(p99, gathered.count[instance], counted, lambda window: moves.penalty_ms(p99[window], sums[window]))


def _counted(log: RequestLog, grid: Grid, warm_up: int) -> NDArray[np.bool_]:
    """Return the windows that the log covers nearly whole, without warm-up where that leaves half of them; else all."""
    begins = grid.start_ms + grid.window_ms * np.arange(grid.windows)
    covered = np.minimum(begins + grid.window_ms, log.arrival_ms[-1]) - np.maximum(begins, log.arrival_ms[0])
    whole: NDArray[np.bool_] = covered >= LEAST_COVERED * grid.window_ms
    if not whole.any():
        return np.ones(grid.windows, dtype=np.bool_)
    settled: NDArray[np.bool_] = whole & (np.arange(grid.windows) >= warm_up)
    return settled if 2 * settled.sum() >= whole.sum() else whole


def _warm_up(log: RequestLog, grid: Grid) -> int:
    """Return the number of leading windows in which the fleet mostly meets its users for the first time."""
    window = np.minimum(((log.arrival_ms - grid.start_ms) // grid.window_ms).astype(np.int64), grid.windows - 1)
    first = previous_access(log.user.astype(np.int64), log.users) < 0
    return warm_up_windows(np.bincount(window, minlength=grid.windows), np.bincount(window[first], minlength=grid.windows))


def _least_ms(log: RequestLog, config: FleetConfig) -> float:
    """Return the smallest latency to tell apart: what a found history takes at least, or the SLO over 1024."""
    history, candidates = log.history_tokens.astype(np.int64), log.candidates.astype(np.int64)
    served = compute_columns(fleet_floats(config), history, candidates, history)
    return max(float(served.min()), config.slo_ms / LEAST_OF_SLO)


def _mean_floor(floors: Sequence[NoiseFloor]) -> NoiseFloor:
    values = np.array([list(vars(floor).values()) for floor in floors])
    usable = values[np.isfinite(values).all(axis=1)]
    mean = usable.mean(axis=0) if len(usable) else np.full(3, np.nan)
    return NoiseFloor(regret_percent=float(mean[0]), optimism_percent=float(mean[1]), confirmed_gain_percent=float(mean[2]))


def _ratio(part: NDArray[np.float64], whole: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return part / whole, NaN where there is no whole."""
    denominator = np.broadcast_to(whole, part.shape).astype(np.float64)
    out: NDArray[np.float64] = np.divide(part, denominator, out=np.full(part.shape, np.nan), where=denominator > 0)
    return out


def _check(
    log: RequestLog,
    config: FleetConfig,
    *,
    window_ms: float,
    splits: Sequence[int],
    slots: NDArray[np.int64],
    workers: int,
) -> None:
    if not 0.0 < window_ms < np.inf:  # refuses NaN as well
        raise ValueError(f"window_ms: {window_ms} must be positive and finite")
    if log.arrival_ms[-1] / window_ms >= MAX_WINDOWS:
        raise ValueError(f"window_ms: {window_ms} cuts {log.arrival_ms[-1]} ms into more than {MAX_WINDOWS} windows")
    if not splits or any(not 0 <= split <= 100 for split in splits) or any(np.diff(splits) <= 0):
        raise ValueError("splits: rising percents within 0..100 are needed")
    if slots.shape != (SLOTS,) or slots.min() < 0 or slots.max() >= config.instances:
        raise ValueError(f"routing: {SLOTS} numbers within 0..{config.instances - 1} are needed")
    if workers < 1:
        raise ValueError(f"workers: {workers} must be at least 1")
