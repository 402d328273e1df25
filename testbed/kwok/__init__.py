"""A control plane with fake nodes, for tests of scale: pods are scheduled and become Ready, and no container ever runs.

kwok plays the kubelets of any number of nodes in one process, by the stages of `testbed.kwok.stages`.
"""

from testbed.kwok.cluster import FakeCluster, why_not

__all__ = ["FakeCluster", "why_not"]
