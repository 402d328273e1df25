"""How many instances a pool should have: the arithmetic of HorizontalPodAutoscaler v2 as pure functions.

The chain is measurements -> one proposal a metric (ratio, proposals) -> the largest, held where a measurement is in doubt
(decide) -> stabilisation windows, rate policies and bounds (behavior). What was recommended and changed before is passed in.
"""
