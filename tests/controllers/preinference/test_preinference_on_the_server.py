"""The pre-inference loop under its own rules on a real API server, measuring through a real Prometheus that comes and goes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from preinference_site import OPERATOR, Engine, Site, exporter, targets
from runtime_operator import running_operator

from testbed.patience import eventually
from testbed.ports import free_port
from testbed.prometheus import prometheus_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


def test_a_pool_is_sized_held_through_an_outage_and_taken_up_again_where_it_was(
    site: Site, account: Path, namespace: str, tmp_path: Path, prometheus_program: Path
) -> None:
    engines = {name: Engine(busy_slots=1.9, refused_per_s=40.0) for name in ("ours-0", "ours-1")} | {
        "manual-0": Engine(busy_slots=1.0),
        "idle-0": Engine(),
    }
    site.create("preinferencepolicies", "PreInferencePolicy", "small", {"slotsPerInstance": {"min": 1, "max": 2}})
    site.create_pool("ours", "ours-0", "ours-1", mode="PreInference", replicas=2, policy="small")
    site.create_pool("manual", "manual-0", mode="Manual", replicas=1)
    site.create_pool("idle", "idle-0", mode="Manual", replicas=1)
    site.create_pool("unseen", "unseen-0", mode="PreInference", replicas=1)  # nobody scrapes it
    port = free_port()
    with exporter(engines) as address:
        pools = {"ours": ["ours-0", "ours-1"], "manual": ["manual-0"], "idle": ["idle-0"]}
        scraped = targets(address, namespace, pools)
        command = [*OPERATOR, "--prometheus-url", f"http://127.0.0.1:{port}"]
        with running_operator(tmp_path, account, namespace, command=command):
            with prometheus_server(prometheus_program, tmp_path, targets=scraped, port=port):
                eventually(lambda: site.replicas("ours") > 2, why=lambda: site.pool("ours").get("status"))
                eventually(lambda: site.condition("manual", "PreInferenceScaled") == ("True", "NotManaged"))
                capacity = site.capacity("ours-0")
                assert capacity is not None
                assert capacity["slots"] == 2
                assert 0 < capacity["bytes"] <= (40 << 30) // 5
                assert site.capacity("ours-1") == capacity
                assert site.managers_of_capacity("ours-0") == {"grfleet-preinference"}
                assert ("grfleet-preinference", "scale") in site.writers_of_replicas("ours")
                assert ("grfleet-preinference", "scale") not in site.writers_of_replicas("manual")
                manual = site.pool("manual")["status"]["preInference"]
                assert manual["slots"] == manual["demandSlots"] == (site.capacity("manual-0") or {})["slots"]
                assert manual["hitBeforeRankPercent"] == 100
                assert "desiredReplicas" not in manual
                eventually(lambda: site.condition("idle", "MetricsFresh") == ("True", "Fresh"))
                assert site.capacity("idle-0") is None, "nobody has asked it for a prefix, so it loses no memory"
                # The two that came serve; the demand is met.
                for each in engines.values():
                    each.refused_per_s, each.busy_slots = 0.0, min(each.busy_slots, 1.0)
                eventually(lambda: site.condition("ours", "MetricsFresh") == ("True", "Fresh"))

            eventually(lambda: site.condition("ours", "MetricsFresh") == ("False", "SourceUnreachable"))
            eventually(lambda: site.condition("ours", "PreInferenceScaled")[0] != "True")
            held = site.replicas("ours"), site.capacity("ours-0"), site.capacity("manual-0")
            for each in engines.values():
                each.busy_slots = 0.0
            said = site.pool("ours")["metadata"]["resourceVersion"]
            time.sleep(40)
            assert (site.replicas("ours"), site.capacity("ours-0"), site.capacity("manual-0")) == held
            assert site.pool("ours")["metadata"]["resourceVersion"] == said, "an outage is said once"
            eventually(lambda: site.condition("unseen", "MetricsFresh")[0] == "False")
            assert site.replicas("unseen") == 1

            with prometheus_server(prometheus_program, tmp_path, targets=scraped, port=port):
                eventually(lambda: site.condition("ours", "MetricsFresh") == ("True", "Fresh"))
                eventually(lambda: site.condition("unseen", "MetricsFresh") == ("False", "Missing"), timeout_seconds=120)
                assert (site.replicas("ours"), site.capacity("ours-0"), site.capacity("manual-0")) == held
                engines["ours-0"].nan_queue = True
                eventually(lambda: site.condition("ours", "MetricsFresh") == ("False", "NotANumber"))
                assert (site.replicas("ours"), site.capacity("ours-0"), site.capacity("manual-0")) == held
