"""`grfleet simulate` and `grfleet oracle`: manifests and a log of requests in, figures of a fleet in virtual time out.

Manifests are read here and nowhere below, so that the simulator knows neither Kubernetes nor files (docs/simulator.md).
"""
