"""One GR instance as a pure model: two caches in one HBM pool, a host link, a server with a queue, all in model time.

The same core runs in virtual time (replays, oracles) and behind a socket in real time (engines/reference).
"""
