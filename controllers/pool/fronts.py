"""InferencePools of the Gateway API in front of a pool: read once a minute where that kind is installed, judged against the pods.

They are other people's objects, so nothing here may fail a pool: a cluster without the kind, a role that does not allow it, or an
object that looks odd only means that nothing is said. No watch is kept, for the kind may come and go while the operator runs;
where it is missing, one question in ten minutes is all it costs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from controllers.pool.pods import Pod, carries
from controllers.runtime.errors import ReconcileError, Terminal
from controllers.runtime.kube import list_all
from controllers.runtime.loop import Context
from controllers.runtime.resources import INFERENCE_POOLS, PODS, SERVING_PORT, Key, Object, key_of
from controllers.runtime.store import Store
from crds.pool_fronts import FrontState
from crds.types import DNS_SUBDOMAIN

_logger = logging.getLogger(__name__)
LOOK_SECONDS = 60.0
ABSENT_SECONDS = 600.0
MOST = 16
_PORTS = 8
_HIGHEST_PORT = 65_535
_LONGEST_NAME = 253


class InferencePools:
    """The InferencePools of each namespace as they were when last looked at."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Object, ...]] = {}
        self._due_s: dict[str, float] = {}
        self._absent_until_s = 0.0

    async def refresh(self, ctx: Context, pool: Object | None) -> None:
        """Look at the namespace of a pool again if it is time; a pool without pods asks for nothing."""
        if pool is None or "external" in pool["spec"]["instances"]:
            return
        namespace, now_s = key_of(pool).namespace, ctx.clock.monotonic()
        if now_s < max(self._absent_until_s, self._due_s.get(namespace, 0.0)):
            return
        self._due_s[namespace] = now_s + LOOK_SECONDS
        try:
            if INFERENCE_POOLS.plural not in await ctx.kube.served(INFERENCE_POOLS.group, INFERENCE_POOLS.version):
                self._give_up(now_s)
                return
            self._found[namespace] = tuple(await list_all(ctx.kube, INFERENCE_POOLS, namespace))
        except Terminal as error:
            _logger.warning("InferencePools are not looked at: %s", error, extra={"reason": error.reason})
            self._give_up(now_s)
        except ReconcileError as error:
            _logger.info("InferencePools could not be read: %s", error, extra={"reason": error.reason})

    def of(self, namespace: str) -> tuple[Object, ...]:
        """Those of a namespace."""
        return self._found.get(namespace, ())

    def seconds_to_look(self, namespace: str, *, now_s: float) -> float | None:
        """When to look again; None where the kind is not there."""
        if now_s < self._absent_until_s:
            return None
        return max(0.0, self._due_s.get(namespace, now_s) - now_s)

    def _give_up(self, now_s: float) -> None:
        self._found.clear()
        self._absent_until_s = now_s + ABSENT_SECONDS


def fronts_of(key: Key, pods: Iterable[Pod], inference_pools: Iterable[Object], store: Store) -> list[dict[str, Any]]:
    """What is to be said of those that select pods of the pool, as the API spells it, in the order of their names."""
    own = [pod for pod in pods if not pod.terminating]
    found = sorted(_fronts(key, own, inference_pools, store), key=lambda front: str(front["name"]))
    return found[:MOST]


def _fronts(key: Key, own: list[Pod], inference_pools: Iterable[Object], store: Store) -> Iterator[dict[str, Any]]:
    for each in inference_pools:
        spec = _mapping(each.get("spec"))
        labels = _mapping(_mapping(spec.get("selector")).get("matchLabels"))
        selected = [pod for pod in own if labels and carries(pod.stored, labels)]
        if not selected:
            continue
        ports = [number for port in _list(spec.get("targetPorts")) if _is_port(number := _mapping(port).get("number"))]
        state = _state(key, own, selected, labels, ports, store)
        picker = _mapping(spec.get("endpointPickerRef")).get("name")
        front: dict[str, Any] = {"name": each["metadata"]["name"], "state": state.value}
        if _is_name(picker):
            front["picker"] = picker
        if ports:
            front["ports"] = ports[:_PORTS]
        yield front


def _state(
    key: Key, own: list[Pod], selected: list[Pod], labels: Mapping[str, Any], ports: list[int], store: Store
) -> FrontState:
    names = {pod.name for pod in own}
    for other in store.in_namespace(PODS, key.namespace):
        stranger = other["metadata"]["name"] not in names and not other["metadata"].get("deletionTimestamp")
        if stranger and not Pod(other).over and carries(other, labels):
            return FrontState.SELECTS_OTHERS
    serving = {pod.port(SERVING_PORT) for pod in selected}
    if not serving <= set(ports):
        return FrontState.PORT_DIFFERS
    return FrontState.FITS if len(selected) == len(own) else FrontState.MISSES_PODS


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_port(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _HIGHEST_PORT


def _is_name(value: Any) -> bool:
    """Whether a Service can be called so: the kind admits any string there, and our status, which it would spoil, does not."""
    return isinstance(value, str) and len(value) <= _LONGEST_NAME and re.fullmatch(DNS_SUBDOMAIN, value, re.ASCII) is not None
