"""Figures about tiers that were known before: measured by others or by an independent prototype, to stand beside ours.

Eviction and promotion: the conversation trace in `traces/`, hit ratios among returning turns, capacities as shares of the bytes
of all final states. Loading: a CPU with a throttled copy, 4 096 tokens of history, 8 layers, 64 new tokens.
"""

WINDOWS = (10, 50, 100, 200, 1000)

#: Share of final bytes -> hit ratio by policy name, or by the look-ahead window (None: the whole future, farthest use).
EVICTION: dict[float, dict[str | int | None, float]] = {
    0.005: {"fifo": 0.007, "lru": 0.007, 10: 0.012, 50: 0.039, 100: 0.092, 200: 0.244, 1000: 0.409, None: 0.409},
    0.01: {"fifo": 0.025, "lru": 0.027, 10: 0.035, 50: 0.073, 100: 0.142, 200: 0.302, 1000: 0.577, None: 0.577},
    0.02: {"fifo": 0.096, "lru": 0.103, 10: 0.120, 50: 0.184, 100: 0.273, 200: 0.407, 1000: 0.763, None: 0.778},
    0.05: {"fifo": 0.426, "lru": 0.469, 10: 0.478, 50: 0.512, 100: 0.553, 200: 0.615, 1000: 0.845, None: 0.989},
    0.068: {"fifo": 0.542, "lru": 0.599, 10: 0.606, 50: 0.625, 100: 0.652, 200: 0.694, 1000: 0.876, None: 1.0},
    0.1: {"fifo": 0.678, "lru": 0.734, 10: 0.738, 50: 0.750, 100: 0.768, 200: 0.793, 1000: 0.918, None: 1.0},
    0.2: {"fifo": 0.885, "lru": 0.936, 10: 0.937, 50: 0.941, 100: 0.946, 200: 0.956, 1000: 0.973, None: 1.0},
}

#: Upper bounds known for the smaller capacities.
BOUND = {0.005: 0.599, 0.01: 0.758, 0.02: 0.905, 0.05: 1.0, 0.1: 1.0, 0.2: 1.0}

#: Load time over compute time -> share of the load that is hidden; `bulk` is time over that of resident state.
LOADING: dict[float, dict[str, float]] = {
    0.25: {"bulk": 1.24, "layer-wise": 0.902, "buffer": 0.902, "early": 0.998, "chunks": 0.997},
    1.0: {"bulk": 2.02, "layer-wise": 0.882, "buffer": 0.882, "early": 1.0, "chunks": 0.929},
    2.0: {"bulk": 2.99, "layer-wise": 0.465, "buffer": 0.938, "early": 1.0, "chunks": 0.525},
    4.0: {"bulk": 5.00, "layer-wise": 0.224, "buffer": 0.975, "early": 1.0},
}

#: (Share of host memory, window) -> hits in host memory with 20 % of SSD; window 0 announces nothing.
PROMOTION = {(0.01, 0): 0.027, (0.01, 1): 0.947, (0.005, 10): 0.943, (0.005, 200): 0.527}
