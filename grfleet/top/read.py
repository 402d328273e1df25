"""One look at the API server: three lists, and nothing that `kubectl get` could not read with the same rights.

Pools must be readable. Instances and tables may be refused: then what would come from them is missing, and a note says why.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from controllers.runtime.errors import Forbidden, KindMissing, ReconcileError
from controllers.runtime.kube import list_all
from controllers.runtime.resources import INSTANCES, POOLS, ROUTING_TABLES, Key, ResourceType
from grfleet.access import Cluster, Failed, explained, why
from grfleet.top.render import Seen
from grfleet.top.view import at, pools_of

NAMESPACES = ResourceType("", "v1", "namespaces", "Namespace")


async def look(cluster: Cluster, *, pool: str, everywhere: bool, now: datetime) -> Seen:
    """What the API server has at present.

    Parameters
    ----------
    pool
        Name of the only pool to look at; empty for all.
    everywhere
        All namespaces instead of the cluster's.

    Raises
    ------
    Failed
        The pools cannot be read, or there is no such pool or namespace.
    """
    namespace = None if everywhere else cluster.namespace
    notes: list[str] = []
    with explained(cluster):
        pools = await list_all(cluster.kube, POOLS, namespace)
    if not pools and namespace is not None:
        await _refuse_unknown_namespace(cluster, namespace)
    if pool:
        names = sorted({str(at(each, "metadata", "name")) for each in pools})
        pools = [each for each in pools if at(each, "metadata", "name") == pool]
        if not pools:
            raise Failed(_no_such_pool(pool, namespace, names))
    instances = await _or_note(cluster, INSTANCES, namespace, notes, required=bool(pool)) if pools else []
    tables = await _or_note(cluster, ROUTING_TABLES, namespace, notes, required=False) if pools else []
    views = pools_of(pools, instances, tables, now=now)
    return Seen(pools=views, now=now, namespace=namespace or "", pool=pool, notes=tuple(notes))


async def _or_note(
    cluster: Cluster, resource: ResourceType, namespace: str | None, notes: list[str], *, required: bool
) -> Sequence[Any] | None:
    with explained(cluster):
        try:
            return await list_all(cluster.kube, resource, namespace)
        except (Forbidden, KindMissing) as error:
            if required:
                raise
            notes.append(f"without {resource.kind}: {why(error, cluster)}")
            return None


async def _refuse_unknown_namespace(cluster: Cluster, namespace: str) -> None:
    """Tell an empty namespace from one that is not there, as far as this user may know."""
    try:
        there = await cluster.kube.get(NAMESPACES, Key("", namespace))
    except ReconcileError:
        return
    if there is None:
        raise Failed(f"there is no namespace {namespace}; `kubectl get grp -A` lists the pools of all, -n chooses")


def _no_such_pool(pool: str, namespace: str | None, names: list[str]) -> str:
    where = f"in namespace {namespace}" if namespace else "in any namespace"
    if not names:
        return f"there is no GRServingPool {where}; -A looks in all namespaces, -n in another"
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"there is no GRServingPool {pool} {where}; there is {listed}"
