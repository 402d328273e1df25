"""`kubectl grfleet top` against a real API server, started by the real kubectl that finds the plugin on its PATH."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubeconfigs import kubeconfig_of
from top_objects import instance, instance_status, pool, pool_status, split, table, unreachable_status

from testbed.binaries import Binaries
from testbed.control_plane import ControlPlane

Json = dict[str, Any]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
GROUP = "/apis/grfleet.dev/v1alpha1"
PLURALS = {"GRServingPool": "grservingpools", "GRInstance": "grinstances", "GRRoutingTable": "grroutingtables"}


@pytest.fixture
def run(crds_installed: ControlPlane, testbed_binaries: Binaries) -> Run:
    """Runs a command line with kubectl and the plugin on the PATH, as the administrator unless told otherwise."""
    programs = [str(Path(sys.executable).parent), str(Path(testbed_binaries["kubectl"]).parent)]

    def run(*words: str, kubeconfig: Path | str = crds_installed.kubeconfig) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": ":".join([*programs, os.environ["PATH"]]), "KUBECONFIG": str(kubeconfig)}
        environment.pop("KUBERNETES_SERVICE_HOST", None)
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run


def store(api: httpx.Client, namespace: str, body: Json) -> Json:
    """Create an object in the namespace, status included."""
    body["metadata"] = {"name": body["metadata"]["name"], "namespace": namespace}
    path = f"{GROUP}/namespaces/{namespace}/{PLURALS[body['kind']]}"
    created = api.post(path, json=body, params={"fieldValidation": "Strict"})
    assert created.is_success, created.text
    stored: Json = created.json()
    if "status" in body:
        path = f"{path}/{stored['metadata']['name']}/status"
        answer = api.put(path, json={**stored, "status": body["status"]}, params={"fieldValidation": "Strict"})
        assert answer.is_success, answer.text
        stored = answer.json()
    return stored


@pytest.fixture
def fleet(crds_installed: ControlPlane, kube_api: httpx.Client, namespace: str) -> str:
    """Two pools: one in which an instance of two does not answer, and one where all is well."""
    store(kube_api, namespace, pool("well", status=pool_status()))
    store(kube_api, namespace, pool("ranker", status=pool_status(ready=1)))
    good = store(kube_api, namespace, instance("ranker-a", status=instance_status(split=split(66, 62, 60))))
    store(kube_api, namespace, instance("ranker-b", status=unreachable_status()))
    published = table(members=("ranker-a",))
    published["status"]["instances"][0]["uid"] = good["metadata"]["uid"]
    store(kube_api, namespace, published)
    return namespace


def rows(output: str) -> list[dict[str, str]]:
    """Lines of a table by their titles; no cell of these tests has a blank in it."""
    head, *lines = [line.split() for line in output.splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines if len(line) == len(head)]


def test_kubectl_shows_the_pools_worst_first(run: Run, fleet: str) -> None:
    shown = run("kubectl", "grfleet", "top", "-n", fleet)
    assert (shown.returncode, shown.stderr) == (0, "")
    first, second = rows(shown.stdout)
    assert first["POOL"] == "ranker"
    assert first["READY"] == "1/2"
    assert first["EMB%"] == "64/62/61*"
    assert (first["KV-HIT"], first["EMB-HIT"]) == ("74", "91")
    assert first["REASON"] == "SomeInstancesNotReady"
    assert (first["TABLE"], first["MOVED%"]) == ("17", "2.1")
    assert second["POOL"] == "well"
    assert (second["TABLE"], second["MOVED%"], second["KV-HIT"]) == ("-", "-", "-")


def test_a_pool_is_shown_with_its_instances(run: Run, fleet: str) -> None:
    shown = run("kubectl", "grfleet", "top", "ranker", "-n", fleet)
    assert shown.returncode == 0, shown.stderr
    assert "well" not in shown.stdout
    silent, good = rows(shown.stdout.split("\n\n", 1)[1])
    assert (silent["INSTANCE"], silent["READY"], silent["EMB%"]) == ("ranker-b", "no", "62/62/62*")
    assert (silent["P99"], silent["SLO%"], silent["KV-HIT"], silent["EMB-HIT"]) == ("-", "-", "-", "-")
    assert (silent["REASON"], silent["TABLE"]) == ("AgentUnreachable", "out")
    assert (good["INSTANCE"], good["READY"], good["EMB%"]) == ("ranker-a", "yes", "66/62/60")
    assert (good["P99"], good["SLO%"], good["REASON"], good["TABLE"]) == ("31", "99.7", "AnchorTarget", "100%")


def test_what_the_loops_write_about_pods_and_pre_inference_is_shown(run: Run, kube_api: httpx.Client, namespace: str) -> None:
    status = pool_status(preInference={"slots": 24, "demandSlots": 9, "desiredReplicas": 3, "hitBeforeRankPercent": 97})
    status["instances"] |= {"draining": 1, "updated": 1}
    store(kube_api, namespace, pool(status=status))
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    leaving = instance(
        "ranker-a",
        status=instance_status(preInfer={"slots": 6, "bytes": 1}),
        preInfer={"slots": 8, "bytes": 1},
        drain={"reason": "ScaleDown", "startedAt": started, "deadlineSeconds": 86_400},
    )
    leaving["spec"]["source"] |= {"kind": "Pod", "podName": "ranker-a", "podUID": "u", "modelVersion": "7"}
    store(kube_api, namespace, leaving)
    pools, instances = run("kubectl", "grfleet", "top", "ranker", "-n", namespace, "-o", "wide").stdout.split("\n\n")
    (shown,) = rows(pools)
    assert [shown[title] for title in ("DRAIN", "UPDATED", "SLOTS", "DEMAND", "SCALER", "PRE-HIT")] == [
        "1",
        "1/2",
        "24",
        "9",
        "3",
        "97",
    ]
    (member,) = rows(instances.replace("ScaleDown ", "ScaleDown_"))
    assert member["DRAIN"] in ("ScaleDown_23h", "ScaleDown_24h")
    assert (member["SLOTS"], member["VERSION"]) == ("8/6", "7")


def test_json_keeps_apart_what_is_missing_and_what_is_stale(run: Run, fleet: str) -> None:
    shown = run("kubectl", "grfleet", "top", "ranker", "-n", fleet, "-o", "json")
    (only,) = json.loads(shown.stdout)["pools"]
    silent, good = only["instances"]
    assert (silent["name"], silent["stale"], silent["p99Ms"], silent["embAcceptedPercent"]) == ("ranker-b", True, None, 62)
    assert (good["name"], good["stale"], good["p99Ms"], good["slotsWanted"]) == ("ranker-a", False, 31, None)


def test_all_namespaces_have_a_column_of_their_own(run: Run, fleet: str) -> None:
    shown = run("kubectl", "grfleet", "top", "-A")
    assert {"ranker", "well"} <= {row["POOL"] for row in rows(shown.stdout) if row["NAMESPACE"] == fleet}


@pytest.mark.parametrize("before", [True, False], ids=["before-the-command", "after-the-command"])
def test_the_flags_of_kubectl_hold_wherever_they_stand(
    run: Run, fleet: str, before: bool, crds_installed: ControlPlane, tmp_path: Path
) -> None:
    flags = ("--kubeconfig", str(crds_installed.kubeconfig), f"--namespace={fleet}", "--request-timeout", "10s")
    words = (*flags, "top") if before else ("top", *flags)
    shown = run("kubectl", "grfleet", *words, kubeconfig=tmp_path / "none")
    assert shown.returncode == 0, shown.stderr
    assert [row["POOL"] for row in rows(shown.stdout)] == ["ranker", "well"]


def test_kubectl_itself_refuses_flags_before_the_name_of_a_plugin(run: Run, fleet: str) -> None:
    shown = run("kubectl", "-n", fleet, "grfleet", "top")
    assert shown.returncode == 1
    assert "flags cannot be placed before plugin name" in shown.stderr


def test_the_namespace_of_the_context_is_the_default(run: Run, fleet: str, crds_installed: ControlPlane) -> None:
    account = crds_installed.service_account_kubeconfig(fleet, "default")
    shown = run("kubectl", "grfleet", "top", kubeconfig=account)
    assert shown.returncode == 1
    assert f'cannot list resource "grservingpools" in API group "grfleet.dev" in the namespace "{fleet}"' in shown.stderr


def test_who_may_list_sees_and_who_may_not_is_told_what_to_ask_for(
    run: Run, fleet: str, kube_api: httpx.Client, crds_installed: ControlPlane
) -> None:
    rules = [{"apiGroups": ["grfleet.dev"], "resources": ["grservingpools", "grinstances"], "verbs": ["list"]}]
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{fleet}"
    kube_api.post(f"{rbac}/roles", json={"metadata": {"name": "look"}, "rules": rules}).raise_for_status()
    binding = {
        "metadata": {"name": "look"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "look"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": fleet}],
    }
    kube_api.post(f"{rbac}/rolebindings", json=binding).raise_for_status()
    account = crds_installed.service_account_kubeconfig(fleet, "default")
    shown = run("kubectl", "grfleet", "top", kubeconfig=account)
    assert shown.returncode == 0, shown.stderr
    first, *_ = rows(shown.stdout)
    assert (first["POOL"], first["TABLE"], first["KV-HIT"]) == ("ranker", "-", "74")
    assert "without GRRoutingTable" in shown.stdout
    everywhere = run("kubectl", "grfleet", "top", "-A", kubeconfig=account)
    assert everywhere.returncode == 1
    assert "at the cluster scope" in everywhere.stderr
    assert everywhere.stderr.count("\n") == 1


def test_somebody_to_impersonate_is_impersonated(run: Run, fleet: str) -> None:
    shown = run("kubectl", "grfleet", "top", "-n", fleet, "--as", "nobody@example.com")
    assert shown.returncode == 1
    assert 'User "nobody@example.com" cannot list' in shown.stderr


def test_a_pool_that_is_not_there_is_named_beside_those_that_are(run: Run, fleet: str) -> None:
    shown = run("kubectl", "grfleet", "top", "rankr", "-n", fleet)
    assert (shown.returncode, shown.stderr) == (
        1,
        f"top: there is no GRServingPool rankr in namespace {fleet}; there is ranker, well\n",
    )


def test_a_namespace_that_is_not_there_is_told_from_an_empty_one(run: Run, crds_installed: ControlPlane, namespace: str) -> None:
    absent = run("kubectl", "grfleet", "top", "-n", "no-such-namespace")
    assert absent.returncode == 1
    assert "there is no namespace no-such-namespace" in absent.stderr
    empty = run("kubectl", "grfleet", "top", "-n", namespace)
    assert (empty.returncode, empty.stdout) == (0, "")
    assert f"no GRServingPool in namespace {namespace}; -A looks in all namespaces" in empty.stderr
    nothing = run("kubectl", "grfleet", "top", "-n", namespace, "-o", "json")
    assert json.loads(nothing.stdout)["pools"] == []


def test_the_usage_names_the_program_as_it_was_called(run: Run) -> None:
    assert "Usage: kubectl grfleet top [OPTIONS] [POOL]" in run("kubectl", "grfleet", "top", "--help").stdout
    assert "Usage: kubectl grfleet decisions" in run("kubectl", "grfleet", "decisions", "--help").stdout
    assert "Usage: grfleet top" in run("grfleet", "top", "--help").stdout
    wrong = run("kubectl", "grfleet", "top", "--no-such-flag")
    assert wrong.returncode == 2
    assert "kubectl grfleet top --help" in wrong.stderr


def test_decisions_find_the_instance_through_the_same_flags(run: Run, fleet: str) -> None:
    shown = run("kubectl", "grfleet", "-n", fleet, "decisions", "ranker-a", "--last", "3")
    assert shown.returncode == 1
    assert "no agent answers at http://127.0.0.1:9002" in shown.stderr
    absent = run("kubectl", "grfleet", "decisions", "ranker-z", "-n", fleet)
    assert absent.stderr.startswith(f"decisions: no GRInstance ranker-z in namespace {fleet}")


def test_watching_into_a_pipe_appends_look_after_look(run: Run, fleet: str) -> None:
    command = f"kubectl grfleet top -n {fleet} --watch --interval 0.5 -o json | head -n 2"
    shown = run("bash", "-c", command)
    looks = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [[each["name"] for each in look["pools"]] for look in looks] == [["ranker", "well"]] * 2
    assert "Traceback" not in shown.stderr


def test_a_cluster_without_the_kinds_is_told_from_an_empty_one(run: Run, own_control_plane: ControlPlane) -> None:
    shown = run("kubectl", "grfleet", "top", "-A", kubeconfig=own_control_plane.kubeconfig)
    assert shown.returncode == 1
    assert shown.stderr.startswith(f"top: the API server at {own_control_plane.url} does not know the kinds of grfleet")
    assert shown.stderr.count("\n") == 1


def test_an_api_server_that_does_not_answer_is_named_with_what_to_check(run: Run, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        kubeconfig = kubeconfig_of(tmp_path, server=f"http://127.0.0.1:{taken.getsockname()[1]}")
        shown = run("kubectl", "grfleet", "top", kubeconfig=kubeconfig)
        other = run("kubectl", "grfleet", "top", "--context", "other", kubeconfig=kubeconfig)
    assert shown.returncode == other.returncode == 1
    assert f"top: the API server at http://127.0.0.1:{taken_port(shown.stderr)} does not answer" in shown.stderr
    assert "check KUBECONFIG, --context and the network" in shown.stderr
    assert other.stderr == f"top: there is no context other in {kubeconfig}; `kubectl config get-contexts` lists them\n"


def taken_port(text: str) -> str:
    return text.split("127.0.0.1:", 1)[1].split()[0]


def test_without_a_kubeconfig_it_says_where_it_looked(run: Run, tmp_path: Path) -> None:
    shown = run("kubectl", "grfleet", "top", kubeconfig=tmp_path / "none")
    assert (shown.returncode, shown.stderr) == (
        1,
        f"top: there is no kubeconfig at {tmp_path}/none; set KUBECONFIG or name one with --kubeconfig FILE\n",
    )


def test_a_file_that_is_no_kubeconfig_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("Dear all")
    shown = run("kubectl", "grfleet", "top", kubeconfig=tmp_path / "letter")
    assert shown.returncode == 1
    assert f"{tmp_path}/letter is not a kubeconfig" in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_on_a_terminal_the_view_is_live_and_ends_quietly_on_ctrl_c(
    fleet: str, crds_installed: ControlPlane, kube_api: httpx.Client
) -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (30, 132))
    plugin = Path(sys.executable).parent / "kubectl-grfleet"
    environment = {**os.environ, "KUBECONFIG": str(crds_installed.kubeconfig), "TERM": "xterm"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [plugin, "top", "-n", fleet, "--interval", "0.5"], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        assert "2 pools, 1 of 2 instances ready" in read_until(ours, "target/accepted/settled")
        kube_api.delete(f"{GROUP}/namespaces/{fleet}/grservingpools/well").raise_for_status()
        assert "well" not in read_until(ours, "1 pool,", and_then="target/accepted/settled").split("1 pool,")[1]
        process.send_signal(signal.SIGINT)
        read_until(ours, None)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, words: str | None, *, and_then: str = "") -> str:
    """What a terminal was sent, up to the words and those after them; None for all there is."""
    text = ""
    while words is None or words not in text or and_then not in text.split(words, 1)[1]:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            data = b""
        if not data:
            assert words is None, text
            break
        text += data.decode(errors="replace")
    assert "Traceback" not in text, text
    return text
