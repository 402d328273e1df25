"""The Kubernetes objects of the demonstration, as a person would write them, and the operator's account and rules.

The two pools have the same name in two namespaces: users are placed by the names of instances, so both pools give every user the
same place, and nothing but the split differs between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controllers.runtime.rbac import Scope, bound_role, policy_rules
from controllers.runtime.resources import Key
from grfleet.model.push import CONFIG_MAP_PREFIX, config_map_body, model_body
from policies.allocation.model_file import read_model
from simulator.workloads import demo as traffic

OPERATOR_NAMESPACE = "grfleet-system"
OPERATOR_ACCOUNT = "grfleet-operator"
USER_KEY_SECRET = "demo-user-key"
ADAPTIVE, STATIC = "adaptive", "static"
NAMESPACES = (ADAPTIVE, STATIC)
POOL = "ranker"
INSTANCES = 4
STATIC_PERCENT = 50
MODEL = "split-1"
MODEL_FILE = Path(__file__).parents[2] / "policies" / "models" / f"{MODEL}.safetensors"
"""The trained allocator that ships with grfleet."""
STEP = {"maxPercentPerSecond": 4, "deadbandPercent": 2, "intervalMs": 1000}
AGENT_MEMORY_SECONDS = 20


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One instance: the namespace of its pool, its entry's name, where its engine serves, and where engine and agent listen."""

    namespace: str
    name: str
    service_url: str
    engine_url: str
    agent_url: str


Object = dict[str, Any]


def operator_objects() -> list[Object]:
    """Return namespace, ServiceAccount and exactly the rules of `controllers.runtime.rbac`."""
    objects: list[Object] = [
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (OPERATOR_NAMESPACE, *NAMESPACES)),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(OPERATOR_ACCOUNT, OPERATOR_NAMESPACE)},
    ]
    for scope in Scope:
        objects += bound_role(
            f"{OPERATOR_ACCOUNT}-{scope.value}",
            policy_rules(scope),
            account=OPERATOR_ACCOUNT,
            namespace=OPERATOR_NAMESPACE,
            cluster=scope is Scope.SERVED,
        )
    return objects


def pool_objects(endpoints: Sequence[Endpoint], *, pool_key: bytes) -> list[Object]:
    """Return the trained model, and for both namespaces the user-key Secret, the policies and the pool."""
    strategies: dict[str, Object] = {
        # Applied before the model is verified, so the model is a change, and minutes are too short to soak one.
        ADAPTIVE: {
            "strategy": "Learned",
            "enforcement": "Active",
            "learned": {"model": MODEL},
            "step": STEP,
            "rollout": {"soakSeconds": 0},
        },
        STATIC: {"strategy": "Static", "bounds": {"fallbackEmbPercent": STATIC_PERCENT}},
    }
    routing = {
        "userKeySecret": {"name": USER_KEY_SECRET, "key": "key"},
        "warmup": {"maxSeconds": 1},
        # While the pools start there is no state yet that a move could lose, so all of them may move at once.
        "churn": {"maxMovedPercent": 100, "windowSeconds": 1},
    }
    objects = model_objects(MODEL_FILE.read_bytes())
    for namespace, strategy in strategies.items():
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": _metadata(USER_KEY_SECRET, namespace),
            "stringData": {"key": pool_key.decode()},
        }
        objects += [
            secret,
            _ours("HBMPolicy", "split", namespace, strategy),
            _ours("RoutingPolicy", "users", namespace, routing),
            _pool(namespace, [e for e in endpoints if e.namespace == namespace]),
        ]
    return objects


def model_objects(data: bytes) -> list[Object]:
    """Return the ConfigMap with a model's bytes and its AllocatorModel, as `grfleet model push` makes them.

    Raises
    ------
    policies.allocation.model_file.ModelRefused
        If the bytes are no model.
    """
    model = read_model(data)
    where, held = Key(ADAPTIVE, MODEL), Key(ADAPTIVE, f"{CONFIG_MAP_PREFIX}{MODEL}")
    return [config_map_body(held, MODEL, data), model_body(where, held.name, model.sha256, model.feature_spec)]


def _pool(namespace: str, endpoints: Sequence[Endpoint]) -> Object:
    instance = traffic.demo_instance(STATIC_PERCENT)
    entries = [{"name": e.name, "serviceURL": e.service_url, "agentURL": e.agent_url} for e in endpoints]
    spec = {
        "model": {
            "name": traffic.MODEL_NAME,
            "version": traffic.MODEL_VERSION,
            "kvBytesPerToken": instance.service.kv_bytes_per_token,
            "embRowBytes": instance.service.row_bytes,
            "maxHistoryTokens": traffic.MAX_HISTORY_TOKENS,
        },
        "instances": {"external": entries},
        "memory": {"hbmBytes": str(instance.pool_bytes)},
        "slo": {"p99Ms": traffic.SLO_MS},
        "policies": {"hbm": "split", "routing": "users"},
    }
    return _ours("GRServingPool", POOL, namespace, spec)


def _ours(kind: str, name: str, namespace: str, spec: Object) -> Object:
    return {"apiVersion": "grfleet.dev/v1alpha1", "kind": kind, "metadata": _metadata(name, namespace), "spec": spec}


def _metadata(name: str, namespace: str) -> Object:
    return {"name": name, "namespace": namespace}
