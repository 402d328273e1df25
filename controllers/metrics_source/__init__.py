"""Live measurements for the loops, behind one port: straight from the agents, or from a Prometheus server.

Both return the same typed freshness; neither ever turns "no data" into a number. docs/metrics.md lists names and queries.
"""
