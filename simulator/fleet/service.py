"""The service law of `simulator.core` and of `simulator.physics` as one compiled formula over a vector of constants.

compute = stretch * (base + max((tokens * a + output + max(pairs * b, history * floor)) / rate, weights + history * c)), where the
plain service model has no floors and a stretch of one. A test holds both against the Python laws they stand for.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import lean
from simulator.core.physics import ServiceModel
from simulator.fleet import state
from simulator.fleet.config import FleetConfig, RefillMode
from simulator.fleet.state import (
    BASE_MS,
    EMPTY_MS,
    FLOOR_FLOPS,
    FLOPS_PER_SECOND,
    GATHER_FIXED_MS,
    GATHER_PER_SECOND,
    OUTPUT_FLOPS,
    PAIR_FLOPS,
    STRETCH,
    TOKEN_FLOPS,
    TOKEN_MS,
    WEIGHTS_MS,
)
from simulator.physics.profiled import ProfiledService


def fleet_floats(config: FleetConfig) -> NDArray[np.float64]:
    """Return the constants of a fleet's physics.

    Raises
    ------
    ValueError
        For a service model whose law is not known here.
    """
    service, out = config.service, np.zeros(state.FLEET_FLOATS)
    out[state.LINK_PER_MS] = service.link_bytes_per_second / 1e3
    out[GATHER_PER_SECOND] = service.link_bytes_per_second * service.gather_efficiency
    out[GATHER_FIXED_MS] = service.gather_fixed_ms
    out[state.REFILL_PER_SECOND] = config.refill_bytes_per_second
    out[state.BLOCKING] = config.refill is RefillMode.BLOCKING
    out[state.SSD_PER_MS] = config.ssd_bytes_per_second / 1e3
    out[state.RELOAD_FIXED_MS] = config.reload_fixed_ms
    to_host = service.to_host_bytes_per_second
    out[state.TO_HOST_PER_MS] = (service.link_bytes_per_second if to_host is None else to_host) / 1e3
    out[state.DUPLEX_TO_DEVICE], out[state.DUPLEX_TO_HOST] = service.duplex_to_device_share, service.duplex_to_host_share
    out[state.REFILL_YIELDS] = config.refill_yields
    out[state.TTL_MS], out[state.EMB_VERSION_MS] = config.ttl_ms or 0.0, config.emb_version_ms or 0.0
    out[state.BATCH_WINDOW_MS] = 0.0 if config.batching is None else config.batching.window_ms
    if isinstance(service, ProfiledService):
        _profiled(service, out)
    elif type(service) is ServiceModel:
        out[BASE_MS] = out[EMPTY_MS] = service.base_ms
        out[TOKEN_FLOPS] = 10.0 * service.width * service.width * service.layers
        out[PAIR_FLOPS] = 4.0 * service.width * service.layers
        out[FLOPS_PER_SECOND] = service.flops_per_second
        out[STRETCH] = 1.0
    else:
        raise ValueError(f"service: the fleet does not know the law of {type(service).__name__}")
    return out


def _profiled(service: ProfiledService, out: NDArray[np.float64]) -> None:
    law = service.law
    shape, device = law.shape, law.accelerator
    per_pair = shape.layers * shape.layer_flops_per_pair
    out[BASE_MS] = law.launch_ms
    out[TOKEN_FLOPS] = shape.layers * shape.layer_flops_per_token
    out[PAIR_FLOPS] = per_pair
    out[OUTPUT_FLOPS] = shape.output_flops if shape.vocabulary else 0
    out[FLOOR_FLOPS] = per_pair / shape.heads * device.serial_query_tokens * device.compute_units
    out[FLOPS_PER_SECOND] = device.flops_per_second
    out[WEIGHTS_MS] = shape.weight_bytes / device.hbm_bytes_per_second * 1e3
    out[TOKEN_MS] = shape.kv_bytes_per_token / device.hbm_bytes_per_second * 1e3
    out[STRETCH] = service.slow_down


@lean
def compute_ms(physics: NDArray[np.float64], history: int, candidates: int, cached: int) -> float:
    """Return milliseconds of compute of one request."""
    new = float(history - cached)
    computed = new + candidates
    if computed == 0.0:
        return float(physics[EMPTY_MS])
    pairs = new * (cached + new / 2) + float(candidates) * history
    attention = max(physics[PAIR_FLOPS] * pairs, physics[FLOOR_FLOPS] * history)
    flops = physics[TOKEN_FLOPS] * computed + physics[OUTPUT_FLOPS] + attention
    memory = physics[WEIGHTS_MS] + physics[TOKEN_MS] * history
    return float(physics[STRETCH] * (physics[BASE_MS] + max(flops / physics[FLOPS_PER_SECOND] * 1e3, memory)))


@lean
def gather_ms(physics: NDArray[np.float64], row_bytes: int, missed: int, taken: float) -> float:
    """Return milliseconds to fetch missed rows while other transfers take a share of the link."""
    if missed == 0:
        return 0.0
    return float(physics[GATHER_FIXED_MS] + missed * row_bytes / (physics[GATHER_PER_SECOND] * (1.0 - taken)) * 1e3)


@lean
def batch_ms(physics: NDArray[np.float64], padded: float, pairs: float, outputs: int, attended: float, longest: int) -> float:
    """Return milliseconds of compute of requests that run together.

    Parameters
    ----------
    padded, pairs : new tokens after padding; pairs of query and key
    outputs, attended, longest : of the requests that compute anything: how many, their history tokens together, the longest
    """
    if outputs == 0:
        return float(physics[EMPTY_MS])
    attention = max(physics[PAIR_FLOPS] * pairs, physics[FLOOR_FLOPS] * longest)
    flops = physics[TOKEN_FLOPS] * padded + physics[OUTPUT_FLOPS] * outputs + attention
    memory = physics[WEIGHTS_MS] + physics[TOKEN_MS] * attended
    return float(physics[STRETCH] * (physics[BASE_MS] + max(flops / physics[FLOPS_PER_SECOND] * 1e3, memory)))
