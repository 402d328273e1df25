"""From what a caller writes to a source of tables: `kubernetes:NAMESPACE/NAME`, a URL, or a file."""

import os
from collections.abc import Mapping

import httpx

from contract.table_sources.kubernetes_api import KubernetesSource, in_cluster
from contract.table_sources.sources import FileSource, HttpSource, Source

KUBERNETES = "kubernetes:"


def source_at(place: str, *, environment: Mapping[str, str] = os.environ) -> Source:
    """Return the source at a place.

    Parameters
    ----------
    place : str
        `kubernetes:NAMESPACE/NAME` by the ServiceAccount of this pod; `http://...` or `https://...` of a table as JSON; else a
        file.

    Raises
    ------
    ValueError
        When the name of a table is not whole, or this is no pod.
    OSError
        When the pod has no ServiceAccount mounted.
    """
    table = named_table(place)
    if table is not None:
        namespace, name = table
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ValueError(
                "KUBERNETES_SERVICE_HOST is not set: not in a pod; give a KubernetesSource with a client of your own"
            )
        return KubernetesSource(in_cluster(host=host, port=port), namespace=namespace, name=name, owned=True)
    if place.startswith(("http://", "https://")):
        return HttpSource(httpx.AsyncClient(timeout=httpx.Timeout(10.0)), place, owned=True)
    return FileSource(place)


def named_table(place: str) -> tuple[str, str] | None:
    """Return namespace and name of a GRRoutingTable, None where `place` is a URL or a file.

    Raises
    ------
    ValueError
        When the name of a table is not whole.
    """
    if not place.startswith(KUBERNETES):
        return None
    namespace, _, name = place.removeprefix(KUBERNETES).partition("/")
    if not namespace or not name or "/" in name:
        raise ValueError(f"{place!r}: use {KUBERNETES}NAMESPACE/NAME")
    return namespace, name
