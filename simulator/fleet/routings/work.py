"""What a router believes a request costs: constants of the service law, made linear as the routing kernel has it.

A router knows milliseconds a token and a row as agents measure them, not the law itself; the quadratic part of attention is taken
at the mean history of the log.
"""

from dataclasses import dataclass

from simulator.fleet.config import FleetConfig
from simulator.request_log import RequestLog

_MS = 1e3


@dataclass(frozen=True, kw_only=True)
class Work:
    """Milliseconds by kind of work, and mean candidates; `typical_ms` is a request of mean length that finds half its history."""

    token_ms: float
    host_ms: float
    ssd_ms: float
    row_ms: float
    fixed_ms: float
    rows_per_token: int
    candidates: int
    typical_ms: float


def work_of(config: FleetConfig, log: RequestLog) -> Work:
    """Return what requests of a log cost on an instance of a fleet."""
    law = config.service
    history, candidates = max(int(log.history_tokens.mean()), 1), max(int(log.candidates.mean()), 1)
    found = law.compute_ms(history=history, candidates=candidates, cached=history)
    lost = law.compute_ms(history=history, candidates=candidates, cached=0)
    token_ms = (lost - found) / history
    bytes_ms = law.kv_bytes_per_token * _MS
    return Work(
        token_ms=token_ms,
        host_ms=bytes_ms / law.link_bytes_per_second,
        ssd_ms=bytes_ms / min(config.ssd_bytes_per_second, law.link_bytes_per_second),
        row_ms=law.row_bytes * _MS / (law.link_bytes_per_second * law.gather_efficiency),
        fixed_ms=found + law.gather_fixed_ms,
        rows_per_token=log.rows_per_token,
        candidates=candidates,
        typical_ms=(lost + found) / 2.0 + law.gather_fixed_ms,
    )
