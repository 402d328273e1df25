"""An adopted pool over many fake pods: the whole operator, with agents of the benchmark behind the pods' addresses."""

import time
from dataclasses import dataclass

from bench.kwok_site import LABELS, PodSite, cpu_of, until
from bench.operator_farm import POOL_BYTES, AgentFarm
from bench.operator_site import GROUP, MANIFESTS, ROUTING, AuditLog, OperatorProcess, run_baseline
from testbed.kinds import install_kinds

QUIET_SECONDS = 11.0
"""The operator may hold a changed number back for ten seconds; after this long without a write nothing is left to write."""
_MODEL = {"name": "ranker", "version": "1", "kvBytesPerToken": 4096, "embRowBytes": 512, "maxHistoryTokens": 8192}
_POOL = {
    "apiVersion": "grfleet.dev/v1alpha1",
    "kind": "GRServingPool",
    "metadata": {"name": "ranker"},
    "spec": {
        "model": _MODEL,
        "instances": {"adopted": {"matchLabels": LABELS}},
        "memory": {"hbmBytes": str(POOL_BYTES)},
        "slo": {"p99Ms": 50},
    },
}


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """From the start of the operator until every pod is a ready instance with its place in the table.

    Attributes
    ----------
    cpu_s, writes, polls
        Until nothing is written any more: CPU of the operator, its writes to our kinds, and its looks at agents.
    bare
        What a bare loop needs to list the instances and to write each once (`bench.operator_baseline`).
    """

    pods: int
    ready_s: float
    cpu_s: float
    rss_mib: float
    writes: int
    polls: int
    bare: dict[str, float]


def adopt(site: PodSite, farm: AgentFarm, audit: AuditLog, pods: int) -> Adoption:
    """Install the kinds, create a pool over the pods that are there, and start the operator."""
    install_kinds(site.plane, MANIFESTS, collect_at_once=False)
    for plural, body in (("routingpolicies", ROUTING), ("grservingpools", _POOL)):
        site.api.post(f"{GROUP}/namespaces/{site.namespace}/{plural}", json=body).raise_for_status()
    farm.reset()
    with OperatorProcess(site, "adopting") as operator:
        ready_s = until(lambda: _adopted(site, operator, pods), "every pod is a ready instance", pause_seconds=0.5)
        counted, since = -1, time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS:
            time.sleep(0.5)
            if (now := audit.count(site.namespace, since=operator.started)["write"]) != counted:
                counted, since, cpu_s, polls = now, time.monotonic(), cpu_of(operator.pid), farm.counts.polls
        rss_mib = operator.rss_mib("VmHWM")
        operator.terminate()
    job = {
        "url": site.plane.url,
        "token": site.plane.admin_token,
        "ca_file": str(site.plane.ca_file),
        "namespace": site.namespace,
    }
    return Adoption(
        pods=pods,
        ready_s=ready_s,
        cpu_s=cpu_s,
        rss_mib=rss_mib,
        writes=counted,
        polls=polls,
        bare=run_baseline("write", job),
    )


def _adopted(site: PodSite, operator: OperatorProcess, pods: int) -> bool:
    if not operator.running:
        raise RuntimeError(f"the operator ended before it had adopted every pod:\n{operator.tail()}")
    status = (
        site.api.get(f"{GROUP}/namespaces/{site.namespace}/grservingpools/ranker").raise_for_status().json().get("status") or {}
    )
    true = {each["type"] for each in status.get("conditions") or () if each["status"] == "True"}
    return {"Ready", "TablePublished"} <= true and (status.get("instances") or {}).get("ready") == pods
