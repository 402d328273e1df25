"""Request streams in the words of the engine contract, composed of real traces by written rules."""

from simulator.workloads.compose import Phase, PhasePlan, Workload, compose
from simulator.workloads.demo import TraceFiles, demo_core, demo_instance, demo_workload

__all__ = ["Phase", "PhasePlan", "TraceFiles", "Workload", "compose", "demo_core", "demo_instance", "demo_workload"]
