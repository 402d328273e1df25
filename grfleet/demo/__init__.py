"""`grfleet demo`: a real control plane moves the split of real engine processes under a real trace, beside a pool that stays put.

One process starts and watches everything (`orchestrate`), one sends the requests (`driver`), so that drawing a table never delays
a request. Latency is the engines' model time; wall time only tells whether this machine kept up.
"""
