"""Request streams in the words of the engine contract, composed of real traces by written rules."""

from simulator.workloads.compose import Phase, PhasePlan, Workload, compose
from simulator.workloads.demo import DEMO_POOL_KEY, TraceFiles, demo_workload

__all__ = ["DEMO_POOL_KEY", "Phase", "PhasePlan", "TraceFiles", "Workload", "compose", "demo_workload"]
