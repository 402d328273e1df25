"""One writer of replicas: a real HorizontalPodAutoscaler, a person, or our scaler, as scaling.mode says, and their turns."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import httpx
import pytest
import yaml
from external_metrics import external_metrics
from preinference_site import OPERATOR, Engine, Site, exporter, targets
from runtime_operator import running_operator

from controllers.runtime.clock import SystemClock
from controllers.runtime.credentials import load_api_client
from controllers.runtime.errors import Conflict
from controllers.runtime.kube import HttpKubeApi, transport_of
from controllers.runtime.resources import POOLS, Key
from testbed.patience import eventually
from testbed.prometheus import prometheus_server

ROOT = Path(__file__).resolve().parents[3]
HPA = ROOT / "docs" / "examples" / "hpa.yaml"
OURS = ("grfleet-preinference", "scale")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


def apply_autoscaler(site: Site) -> None:
    """The example of the documentation, as it stands."""
    text = HPA.read_text()
    assert yaml.safe_load(text)["kind"] == "HorizontalPodAutoscaler"
    site.plane.kubectl("apply", "-n", site.namespace, "-f", "-", input=text)


def autoscaler(site: Site) -> dict[str, str]:
    """Reason of each condition of the autoscaler."""
    said = json.loads(site.plane.kubectl("get", "hpa", "ranker", "-n", site.namespace, "-o", "json").stdout)
    return {each["type"]: each["reason"] for each in (said.get("status") or {}).get("conditions", ())}


def test_autoscaler_person_and_our_scaler_take_turns_and_never_write_together(
    site: Site, account: Path, kube_api: httpx.Client, namespace: str, tmp_path: Path, prometheus_program: Path
) -> None:
    engines = {name: Engine(busy_slots=7.6, refused_per_s=300.0, slow=True) for name in ("ranker-0", "ranker-1")}
    site.create_pool("ranker", "ranker-0", "ranker-1", mode="HPA", replicas=2)
    values = {"gr_pool_busy_slots": "19"}
    with (
        exporter(engines) as address,
        prometheus_server(prometheus_program, tmp_path, targets=targets(address, namespace, {"ranker": list(engines)})) as url,
        running_operator(tmp_path, account, namespace, command=[*OPERATOR, "--prometheus-url", url]),
        external_metrics(kube_api, namespace, tmp_path, values),
    ):
        apply_autoscaler(site)

        # The autoscaler scales; we set slots beside it, and say why there cannot be more.
        eventually(lambda: site.replicas("ranker") == 5, timeout_seconds=90, why=lambda: autoscaler(site))
        site.report("ranker", 5)
        eventually(lambda: site.condition("ranker", "PreInferenceScaled") == ("False", "LimitReached"))
        assert site.capacity("ranker-0") is not None
        assert OURS not in site.writers_of_replicas("ranker")
        assert ("kube-controller-manager", "scale") in site.writers_of_replicas("ranker")
        eventually(lambda: autoscaler(site).get("ScalingActive") == "ValidMetricFound")

        # Ours from now on, from what the autoscaler has left.
        site.plane.kubectl("delete", "hpa", "ranker", "-n", namespace)
        site.edit("ranker", {"scaling": {"mode": "PreInference", "minReplicas": 1, "maxReplicas": 12}})
        eventually(lambda: site.replicas("ranker") > 5, why=lambda: site.pool("ranker").get("status"))
        assert OURS in site.writers_of_replicas("ranker")

        # A person scales although the number is ours: it is where we go on from, and nothing is taken away within the window.
        for each in engines.values():
            each.busy_slots, each.refused_per_s, each.slow = 0.5, 0.0, False
        site.plane.kubectl("scale", "grp/ranker", "--replicas=9", "-n", namespace)
        time.sleep(35)
        assert site.replicas("ranker") >= 9
        eventually(lambda: site.pool("ranker")["status"]["preInference"]["desiredReplicas"] == site.replicas("ranker"))

        # A person's number alone: it stays whatever is measured.
        for each in engines.values():
            each.busy_slots, each.refused_per_s, each.slow = 7.6, 300.0, True
        site.edit("ranker", {"scaling": {"mode": "Manual"}, "replicas": 2})
        time.sleep(35)
        assert site.replicas("ranker") == 2
        assert "desiredReplicas" not in site.pool("ranker")["status"]["preInference"]
        assert site.condition("ranker", "PreInferenceScaled") == ("False", "LimitReached")


async def test_a_scale_decided_from_an_older_pool_is_refused_by_the_server(site: Site, namespace: str) -> None:
    client = await load_api_client(str(site.plane.kubeconfig))
    kube = HttpKubeApi(transport_of(client), clock=SystemClock(), rng=random.Random(1))
    site.create_pool("pool", mode="PreInference", replicas=2)
    key, read = Key(namespace, "pool"), site.pool("pool")["metadata"]["resourceVersion"]
    site.edit("pool", {"replicas": 4})
    try:
        with pytest.raises(Conflict):
            await kube.apply_scale(POOLS, key, 3, field_manager="grfleet-preinference", resource_version=read)
        assert site.replicas("pool") == 4
        fresh = site.pool("pool")["metadata"]["resourceVersion"]
        answer = await kube.apply_scale(POOLS, key, 3, field_manager="grfleet-preinference", resource_version=fresh)
    finally:
        await client.close()
    assert answer["spec"]["replicas"] == site.replicas("pool") == 3
    assert OURS in site.writers_of_replicas("pool")
