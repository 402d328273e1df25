"""The grfleet API: group, version, and one pydantic model a kind. Everything the controllers need is importable from here."""

from crds.allocator_model import AllocatorModel, AllocatorModelSpec, AllocatorModelStatus
from crds.hbm_policy import HBMPolicy, HBMPolicySpec
from crds.instance import GRInstance, GRInstanceSpec, GRInstanceStatus
from crds.kind import Kind
from crds.preinference_policy import PreInferencePolicy, PreInferencePolicySpec
from crds.registry import BY_NAME, KINDS, PLURALS
from crds.routing_policy import RoutingPolicy, RoutingPolicySpec
from crds.routing_table import GRRoutingTable, GRRoutingTableSpec, GRRoutingTableStatus
from crds.serving_pool import GRServingPool, GRServingPoolSpec, GRServingPoolStatus
from crds.types import API_VERSION, GROUP, VERSION, Condition, explain_invalid, format_quantity, parse_quantity

__all__ = [
    "API_VERSION",
    "BY_NAME",
    "GROUP",
    "KINDS",
    "PLURALS",
    "VERSION",
    "AllocatorModel",
    "AllocatorModelSpec",
    "AllocatorModelStatus",
    "Condition",
    "GRInstance",
    "GRInstanceSpec",
    "GRInstanceStatus",
    "GRRoutingTable",
    "GRRoutingTableSpec",
    "GRRoutingTableStatus",
    "GRServingPool",
    "GRServingPoolSpec",
    "GRServingPoolStatus",
    "HBMPolicy",
    "HBMPolicySpec",
    "Kind",
    "PreInferencePolicy",
    "PreInferencePolicySpec",
    "RoutingPolicy",
    "RoutingPolicySpec",
    "explain_invalid",
    "format_quantity",
    "parse_quantity",
]
