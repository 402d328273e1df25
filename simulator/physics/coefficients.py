"""The service law of single requests as eight numbers, for loops over millions of them.

Arrays in, arrays out; a compiled loop takes the numbers and writes the same expression. Equal to `ServiceLaw.compute_ms` of a
batch of one, which a test holds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.physics.service import ServiceLaw


@dataclass(frozen=True, kw_only=True)
class ServiceCoefficients:
    """What a token, a pair, a request and a cached token cost, in milliseconds.

    Parameters
    ----------
    launch_ms : float
        Every request that computes anything.
    token_ms, pair_ms : float
        A new token (or candidate); a (query, key) pair.
    output_ms : float
        The output layer of a decoder, once a request.
    floor_ms_per_token : float
        The occupancy floor, a token of history.
    weights_ms, state_ms, state_ms_per_token : float
        Reading from HBM: weights once, a user's state of constant size once, keys and values a token of history.
    """

    launch_ms: float
    token_ms: float
    pair_ms: float
    output_ms: float
    floor_ms_per_token: float
    weights_ms: float
    state_ms: float
    state_ms_per_token: float

    def request_ms(self, *, history: ArrayLike, cached: ArrayLike, candidates: ArrayLike) -> NDArray[np.float64]:
        """Milliseconds of compute of each request alone; 0 where nothing has to be computed.

        Parameters
        ----------
        history, cached, candidates : array_like
            Tokens; broadcast together. `cached` may not exceed `history` (not checked here).
        """
        n, h, c = (np.asarray(values, dtype=np.float64) for values in (history, cached, candidates))
        new = n - h
        attention = np.maximum(self.pair_ms * (new * (h + new / 2) + c * n), self.floor_ms_per_token * n)
        arithmetic = self.token_ms * (new + c) + self.output_ms + attention
        memory = self.weights_ms + self.state_ms * (n > 0) + self.state_ms_per_token * n
        return np.where(new + c > 0, self.launch_ms + np.maximum(arithmetic, memory), 0.0)


def service_coefficients(law: ServiceLaw) -> ServiceCoefficients:
    """Reduce a service law to its coefficients for batches of one."""
    device, shape = law.accelerator, law.shape
    per_flop, per_byte = 1e3 / device.flops_per_second, 1e3 / device.hbm_bytes_per_second
    floor_flops = shape.layer_flops_per_pair / shape.heads * device.serial_query_tokens * device.compute_units
    return ServiceCoefficients(
        launch_ms=law.launch_ms,
        token_ms=shape.layers * shape.layer_flops_per_token * per_flop,
        pair_ms=shape.layers * shape.layer_flops_per_pair * per_flop,
        output_ms=shape.output_flops * per_flop,
        floor_ms_per_token=shape.layers * floor_flops * per_flop,
        weights_ms=shape.weight_bytes * per_byte,
        state_ms=shape.state_bytes_per_user * per_byte,
        state_ms_per_token=shape.kv_bytes_per_token * per_byte,
    )
