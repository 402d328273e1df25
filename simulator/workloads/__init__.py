"""Workloads: requests as columns in three regimes with a manifest, and the demonstration's stream of engine calls."""

from simulator.workloads.bursts import BURST_KINDS, BurstKind
from simulator.workloads.columns import Signals
from simulator.workloads.compose import Phase, PhasePlan, Workload, compose
from simulator.workloads.demo import TraceFiles, demo_core, demo_instance, demo_workload
from simulator.workloads.generated import generated
from simulator.workloads.manifest import Manifest, Origin
from simulator.workloads.own_log import ROW_DOUBTS, own_log
from simulator.workloads.parts import Part, cut
from simulator.workloads.regimes import burst, steady, trend
from simulator.workloads.traffic import Traffic

__all__ = [
    "BURST_KINDS",
    "ROW_DOUBTS",
    "BurstKind",
    "Manifest",
    "Origin",
    "Part",
    "Phase",
    "PhasePlan",
    "Signals",
    "TraceFiles",
    "Traffic",
    "Workload",
    "burst",
    "compose",
    "cut",
    "demo_core",
    "demo_instance",
    "demo_workload",
    "generated",
    "own_log",
    "steady",
    "trend",
]
