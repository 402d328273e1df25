"""A model on its way: pushed by the command, verified, named by intents, held by agents; and what can go wrong with its file."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from example_models import model_bytes
from integration_fleet import OPERATOR, Fleet, Pair, condition
from runtime_operator import OperatorProcess, running_operator

from policies.allocation.model_file import digest_of
from testbed.patience import eventually

pytestmark = pytest.mark.slow

FIRST = model_bytes(1, scores=({"name": "trend-gain", "value": 12.5, "unit": "percent"},))
SECOND = model_bytes(2)
AT_ONCE = {"canaryPercent": 100, "soakSeconds": 0}


def learned(model: str) -> dict[str, Any]:
    return {
        "strategy": "Learned",
        "enforcement": "Active",
        "learned": {"model": model},
        "rollout": AT_ONCE,
        "step": {"maxPercentPerSecond": 100, "intervalMs": 100},
    }


def told(pair: Pair) -> dict[str, Any]:
    """The status of the agent; empty while it has yet to listen."""
    try:
        answer: dict[str, Any] = httpx.get(f"{pair.agent_url}/agent/v1/status").json()
    except httpx.ConnectError:
        return {}
    return answer


def model_command(fleet: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    """`grfleet model ...` as a person runs it."""
    program = str(Path(sys.executable).parent / "grfleet")
    environment = {**os.environ, "KUBECONFIG": str(fleet.plane.kubeconfig)}
    environment.pop("KUBERNETES_SERVICE_HOST", None)
    return subprocess.run(
        [program, "model", *words, "-n", fleet.namespace],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def push(fleet: Fleet, data: bytes, name: str) -> str:
    """Push a model and wait until it is verified; returns its digest."""
    file = fleet.directory / f"{name}.safetensors"
    file.write_bytes(data)
    done = model_command(fleet, "push", str(file))
    assert done.returncode == 0, done.stderr
    fleet.wait_for_condition(f"allocatormodel/{name}", "Verified")
    return digest_of(data)


def named(fleet: Fleet, instance: str = "pool-i0") -> str | None:
    """Digest of the model that the intent names."""
    ref = (fleet.instance(instance).get("spec", {}).get("intent") or {}).get("modelRef") or {}
    return ref.get("sha256")


def word(fleet: Fleet, name: str, type_: str) -> tuple[str | None, str | None]:
    found = condition(fleet.get("allocatormodels", name), type_)
    return found.get("status"), found.get("reason")


def replace_config_map(fleet: Fleet, name: str, data: bytes) -> None:
    """What cannot be done to an immutable ConfigMap, but by whoever deletes it and makes another under its name."""
    path = f"/api/v1/namespaces/{fleet.namespace}/configmaps"
    fleet.api.delete(f"{path}/{name}").raise_for_status()
    body = {"metadata": {"name": name}, "binaryData": {"model.safetensors": base64.b64encode(data).decode()}}
    fleet.api.post(path, json=body).raise_for_status()


def test_a_model_comes_from_a_file_into_agents_and_survives_their_restart_and_that_of_the_operator(
    fleet: Fleet, account: Path, pair: Pair, tmp_path: Path
) -> None:
    with running_operator(tmp_path, account, fleet.namespace, command=OPERATOR, name="before"):
        digest = push(fleet, FIRST, "split-1")
        assert word(fleet, "split-1", "InUse") == ("False", "NotNamed")
        status = fleet.get("allocatormodels", "split-1")["status"]
        assert (status["sizeBytes"], status["scores"][0]["value"]) == (len(FIRST), "12.5")

        fleet.apply("HBMPolicy", "mine", learned("split-1"))
        fleet.apply_pool("pool", pair, policies={"hbm": "mine"})
        fleet.start(pair)
        eventually(lambda: named(fleet) == digest, why=lambda: fleet.instance("pool-i0"))
        eventually(lambda: told(pair).get("modelInForce") == digest, why=lambda: told(pair))
        eventually(lambda: word(fleet, "split-1", "InUse") == ("True", "NamedByIntents"))
        assert fleet.get("allocatormodels", "split-1")["status"]["instances"] == 1
        fleet.wait_for_condition("grinstance/pool-i0", "PolicyHealthy")
        assert told(pair)["strategyInForce"] == "Learned"

        pair.stop_agent()
        pair.start_agent(fleet.directory / "intent.key")
        eventually(lambda: told(pair).get("modelInForce") == digest, why=lambda: told(pair))

    # The operator is away: a restarted agent has nobody to tell it, everything else goes on.
    version = fleet.get("allocatormodels", "split-1")["metadata"]["resourceVersion"]
    assert told(pair)["modelInForce"] == digest
    pair.stop_agent()
    pair.start_agent(fleet.directory / "intent.key")
    with running_operator(tmp_path, account, fleet.namespace, command=OPERATOR, name="after"):
        eventually(lambda: told(pair).get("modelInForce") == digest, why=lambda: told(pair))
        assert fleet.get("allocatormodels", "split-1")["metadata"]["resourceVersion"] == version

        listed = model_command(fleet, "list")
        assert listed.returncode == 0, listed.stderr
        assert listed.stdout.splitlines()[-1].split()[:5] == ["split-1", "True", "Verified", "True", "1"]


def test_bytes_that_are_replaced_or_gone_take_the_model_out_of_force_and_the_right_ones_bring_it_back(
    fleet: Fleet, account: Path, pair: Pair, tmp_path: Path
) -> None:
    with running_operator(tmp_path, account, fleet.namespace, command=OPERATOR, name="first"):
        digest = push(fleet, FIRST, "split-1")
        fleet.apply("HBMPolicy", "mine", learned("split-1"))
        fleet.apply_pool("pool", pair, policies={"hbm": "mine"})
        fleet.start(pair)
        eventually(lambda: told(pair).get("modelInForce") == digest, why=lambda: told(pair))
    replace_config_map(fleet, "grfleet-model-split-1", SECOND)
    with running_operator(tmp_path, account, fleet.namespace, command=OPERATOR, name="second"):
        eventually(lambda: word(fleet, "split-1", "Verified") == ("False", "DigestMismatch"))
        eventually(lambda: fleet.instance("pool-i0")["spec"]["intent"]["strategy"] == "Learned" and named(fleet) is None)
        eventually(lambda: (told(pair).get("modelInForce", ""), told(pair)["strategyInForce"]) == (None, "MissRatioCurve"))
        assert told(pair)["models"] == [digest]  # never the others, and the right ones stay right
        eventually(lambda: condition(fleet.instance("pool-i0"), "PolicyHealthy").get("reason") == "ModelRefused")
        file = fleet.directory / "split-1.safetensors"
        done = model_command(fleet, "push", str(file))  # the ConfigMap in the way is not of this command
        assert (done.returncode, "rename it" in done.stderr) == (1, True)
        replace_config_map(fleet, "grfleet-model-split-1", FIRST)
        eventually(lambda: told(pair).get("modelInForce") == digest, timeout_seconds=120, why=lambda: told(pair))


def test_a_model_made_for_another_release_or_no_model_at_all_is_refused_and_the_anchor_decides(
    fleet: Fleet, operator: OperatorProcess, pair: Pair
) -> None:
    too_new, junk = model_bytes(3, featureSpec="split-features-9"), b"\x80\x04]\x94."
    for name, data in (("too-new", too_new), ("junk", junk)):
        path = f"/api/v1/namespaces/{fleet.namespace}/configmaps"
        body = {"metadata": {"name": name}, "binaryData": {"model.safetensors": base64.b64encode(data).decode()}}
        fleet.api.post(path, json=body).raise_for_status()
        spec = {"configMapKeyRef": {"name": name}, "sha256": digest_of(data), "featureSpec": "split-features-1"}
        fleet.apply("AllocatorModel", name, spec)
    eventually(lambda: word(fleet, "too-new", "Verified") == ("False", "UnknownFeatures"))
    eventually(lambda: word(fleet, "junk", "Verified") == ("False", "NotAModel"))
    fleet.apply("HBMPolicy", "mine", learned("too-new"))
    fleet.apply_pool("pool", pair, policies={"hbm": "mine"})
    fleet.start(pair)
    eventually(lambda: condition(fleet.instance("pool-i0"), "PolicyHealthy").get("reason") == "ModelRefused")
    assert "UnknownFeatures" in condition(fleet.instance("pool-i0"), "PolicyHealthy")["message"]
    assert (told(pair)["models"], told(pair)["strategyInForce"]) == ([], "MissRatioCurve")


def test_two_models_that_take_turns_end_with_the_one_that_the_policy_names(
    fleet: Fleet, operator: OperatorProcess, pair: Pair
) -> None:
    digests = {name: push(fleet, data, name) for name, data in (("split-1", FIRST), ("split-2", SECOND))}
    fleet.apply("HBMPolicy", "mine", learned("split-1"))
    fleet.apply_pool("pool", pair, policies={"hbm": "mine"})
    fleet.start(pair)
    eventually(lambda: told(pair).get("modelInForce") == digests["split-1"], why=lambda: told(pair))
    for turn in range(7):
        fleet.patch("hbmpolicies", "mine", {"learned": {"model": f"split-{1 + turn % 2}"}})
    fleet.patch("hbmpolicies", "mine", {"learned": {"model": "split-2"}})
    eventually(lambda: told(pair).get("modelInForce") == digests["split-2"], timeout_seconds=120, why=lambda: told(pair))
    assert set(told(pair)["models"]) <= set(digests.values())
    eventually(lambda: word(fleet, "split-2", "InUse") == ("True", "NamedByIntents"))
    eventually(lambda: word(fleet, "split-1", "InUse") == ("False", "NotNamed"))


def test_the_command_refuses_other_bytes_under_a_name_and_what_is_no_model(fleet: Fleet, operator: OperatorProcess) -> None:
    push(fleet, FIRST, "split-1")
    file = fleet.directory / "split-1.safetensors"
    again = model_command(fleet, "push", str(file))
    assert (again.returncode, "is there already" in again.stdout) == (0, True)
    file.write_bytes(SECOND)
    other = model_command(fleet, "push", str(file))
    assert (other.returncode, "push under a new name with --name" in other.stderr) == (1, True)
    assert fleet.get("allocatormodels", "split-1")["spec"]["sha256"] == digest_of(FIRST)
    file.write_bytes(FIRST[:-1])
    broken = model_command(fleet, "push", str(file), "--name", "split-3")
    assert (broken.returncode, "NotAModel" in broken.stderr) == (1, True)
    assert fleet.get("allocatormodels", "split-3") == {}
    owner = fleet.api.get(f"/api/v1/namespaces/{fleet.namespace}/configmaps/grfleet-model-split-1").json()["metadata"]
    assert [each["kind"] for each in owner["ownerReferences"]] == ["AllocatorModel"]
