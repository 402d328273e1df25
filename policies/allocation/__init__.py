"""How the HBM pool of one instance is split between the embedding (EMB) and attention-state (KV) caches.

The chain is estimator -> anchor or hill climb -> strategy (freezes, bounds, deadband, slew) -> apply (shrink, confirm, grow).
"""
