"""What the driver writes down for each request, and where; the one file between the driver and the summary."""

from pathlib import Path

import msgspec

from contract.engine import Milliseconds, Name


class Served(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One request as answered (or not) by one pool.

    Attributes
    ----------
    index
        Position in the workload.
    arrival_ms
        Trace time.
    latency_ms, service_ms
        Model time that the engine reported; both 0 when `error` or `elsewhere` is set.
    history_tokens, kv_tokens_hit, emb_rows_asked, emb_rows_missed
        What the caches were asked for, and held or missed.
    lag_ms
        Wall time by which the request was sent too late.
    wall_ms
        Wall time from sending to the answer.
    elsewhere
        A gateway had another instance answer than the one that the table names.
    """

    index: int
    arrival_ms: Milliseconds
    instance: Name
    latency_ms: Milliseconds
    service_ms: Milliseconds
    history_tokens: int
    kv_tokens_hit: int
    emb_rows_asked: int
    emb_rows_missed: int
    lag_ms: float
    wall_ms: float
    retried: bool = False
    error: str = ""
    elsewhere: bool = False


class PoolRun(msgspec.Struct, frozen=True, kw_only=True):
    """All requests of one pool, with the table in use at the start: instance names, and the packed slots."""

    pool: Name
    instances: list[str]
    slots: str
    served: list[Served]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a driver: `started_unix_s` is the wall clock at trace time 0, `cpu_seconds` what the driver itself used."""

    started_unix_s: float
    cpu_seconds: float
    pools: list[PoolRun]


def write_run(path: Path, run: Run) -> None:
    """Write atomically."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.msgpack.encode(run))
    partial.replace(path)


def read_run(path: Path) -> Run:
    """Read what `write_run` wrote; msgspec.ValidationError when it is something else."""
    return msgspec.msgpack.decode(path.read_bytes(), type=Run)
