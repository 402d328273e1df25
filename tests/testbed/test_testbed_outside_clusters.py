"""Clusters that the testbed does not run itself: which commands kind, docker and kubectl are given, and what stays afterwards.

There is no Docker here, so the programs are scripts that write down their arguments: this holds the commands to what is
documented, not kind to its documentation.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import state
from testbed.control_plane import ControlPlane
from testbed.kubectl import KubectlError
from testbed.node import current_cluster, kind_cluster
from testbed.node.current_cluster import CurrentCluster
from testbed.node.kind_cluster import KindCluster
from testbed.node.namespaces import NodeError
from testbed.node.provider import NotOfferedError
from testbed.patience import eventually

# A stand-in writes its name and arguments as one line of JSON, then plays its part with the arguments in `a`.
PREAMBLE = """#!{python} -S
import json, os, sys
a = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps([os.path.basename(sys.argv[0]), *a]) + "\\n")
"""
KIND = """
if a[:2] == ["create", "cluster"]:
    open(a[a.index("--kubeconfig") + 1], "w").write("a kubeconfig")
"""
DOCKER = """
if a[0] == "exec" and a[2] == "crictl":
    print("4711")
"""
KUBECTL = """
if a[:2] == ["get", "pod"]:
    print("engine=containerd://abc")
    print("agent=containerd://def")
"""
OWNER = """
import time
from testbed.node.kind_cluster import KindCluster
with KindCluster() as cluster:
    print(cluster.name, flush=True)
    time.sleep(600)
"""


class Programs:
    """Scripts first on PATH that write down how they are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "calls"
        folder.mkdir()
        for name, text in (("kind", KIND), ("docker", DOCKER), ("kubectl", KUBECTL)):
            self.put(name, text)

    def put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(PREAMBLE.format(python=sys.executable, log=str(self._log)) + text)
        path.chmod(0o755)

    def calls(self) -> list[list[str]]:
        """Every call so far, oldest first; the probes for a Docker daemon are left out."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [call for line in lines if (call := json.loads(line))[:2] != ["docker", "version"]]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A machine with kind, docker and kubectl, where nothing that is started here is seen by others."""
    found = Programs(tmp_path / "programs")
    monkeypatch.setenv("PATH", str(found.folder), prepend=":")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("GRFLEET_TESTBED_ASSETS", str(found.folder))
    return found


# kind ----------------------------------------------------------------------------------------------------------------


def test_a_kind_cluster_is_created_with_a_kubeconfig_of_its_own_and_deleted_by_name(programs: Programs) -> None:
    with KindCluster(node_image="kindest/node:v1.34.0") as cluster:
        name, config = cluster.name, cluster.kubeconfig
        assert config.stat().st_mode & 0o077 == 0
        (record,) = state.records()
        assert record.name == name

    where = ["--name", name, "--kubeconfig", str(config)]
    assert programs.calls() == [
        ["kind", "create", "cluster", *where, "--image", "kindest/node:v1.34.0", "--wait", "180s"],
        ["kubectl", "wait", "node", "--all", "--for=condition=Ready", "--timeout=60s"],
        ["kind", "delete", "cluster", *where],
    ]
    assert not cluster.directory.exists()
    assert state.records() == []


def test_without_a_node_image_kind_takes_its_own(programs: Programs) -> None:
    with KindCluster():
        pass

    assert "--image" not in programs.calls()[0]


def test_images_are_loaded_from_the_archive_into_that_cluster(programs: Programs) -> None:
    with KindCluster() as cluster:
        cluster.load_image(Path("/tmp/images.tar"))

    assert ["kind", "load", "image-archive", "/tmp/images.tar", "--name", cluster.name] in programs.calls()


@pytest.mark.parametrize("unit", ["kubelet", "containerd"])
def test_a_unit_of_the_node_is_killed_kept_down_and_started_again(programs: Programs, unit: str) -> None:
    with KindCluster() as cluster:
        node = ["docker", "exec", f"{cluster.name}-control-plane", "systemctl"]
        before = len(programs.calls())
        with cluster.fault(unit):
            assert programs.calls()[before:] == [[*node, "kill", "--signal=SIGKILL", unit], [*node, "stop", unit]]
        assert programs.calls()[before + 2 :] == [[*node, "start", unit]]


def test_a_unit_is_started_again_when_the_test_inside_fails(programs: Programs) -> None:
    with KindCluster() as cluster:
        with pytest.raises(ValueError, match="inside"), cluster.fault("kubelet"):
            raise ValueError("inside")
        assert programs.calls()[-1][-2:] == ["start", "kubelet"]


@pytest.mark.parametrize("component", ["coredns", "kube-proxy", "disk"])
def test_what_is_no_unit_of_the_node_cannot_be_faulted(programs: Programs, component: str) -> None:
    with KindCluster() as cluster, pytest.raises(NotOfferedError, match=component), cluster.fault(component):
        pass

    assert not [call for call in programs.calls() if call[0] == "docker"]


@pytest.mark.parametrize(("container", "identifier"), [("engine", "abc"), ("agent", "def")])
def test_a_container_is_killed_by_the_process_that_the_runtime_names(programs: Programs, container: str, identifier: str) -> None:
    with KindCluster() as cluster:
        cluster.kill_container("space", "pod-1", container)

    node = ["docker", "exec", f"{cluster.name}-control-plane"]
    inspect = ["crictl", "inspect", "--output", "go-template", "--template", "{{.info.pid}}", identifier]
    assert programs.calls()[-3:-1] == [[*node, *inspect], [*node, "kill", "-KILL", "4711"]]


@pytest.mark.parametrize("said", ["", "0", "1", "<no value>"])
def test_a_container_that_does_not_run_is_not_killed(programs: Programs, said: str) -> None:
    programs.put("docker", f"print({said!r})")
    with KindCluster() as cluster, pytest.raises(NodeError, match="does not run"):
        cluster.kill_container("space", "pod-1", "engine")

    assert not [call for call in programs.calls() if "-KILL" in call]


def test_a_container_that_the_pod_does_not_have_is_named(programs: Programs) -> None:
    with KindCluster() as cluster, pytest.raises(NodeError, match="space/pod-1 has no container other"):
        cluster.kill_container("space", "pod-1", "other")


def test_what_a_failed_creation_has_begun_is_deleted_and_its_words_are_passed_on(programs: Programs) -> None:
    programs.put("kind", "if a[0] == 'create':\n    sys.exit('no space left on device')")
    cluster = KindCluster()

    with pytest.raises(NodeError, match="no space left on device"):
        cluster.create()

    assert programs.calls()[-1][:3] == ["kind", "delete", "cluster"]
    assert state.records() == []
    assert not cluster.directory.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kind_cluster_is_deleted_when_a_signal_ends_its_owner(programs: Programs, number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(state.__file__).parents[1])}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        directory = Path(state.records()[0].directory)
        owner.send_signal(number)
        owner.wait(timeout=20)

        assert eventually(lambda: state.records() == [])
        assert programs.calls()[-1][:5] == ["kind", "delete", "cluster", "--name", name]
        assert not directory.exists()
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def test_a_cluster_that_could_not_be_deleted_is_deleted_before_the_next_one_is_made(programs: Programs) -> None:
    with KindCluster() as first:
        programs.put("kind", KIND + "\nif a[0] == 'delete':\n    sys.exit('Docker is away')")
        with pytest.raises(RuntimeError, match="Docker is away"):
            first.destroy()
    (left,) = state.records()
    state.save(state.Record(**{**vars(left), "owner": state.Identity("owner", 2**22 + 1, 1)}))  # its owner is gone
    programs.put("kind", KIND)
    before = len(programs.calls())

    with KindCluster():
        later = programs.calls()[before:]

    assert [call[:5] for call in later[:2]] == [
        ["kind", "delete", "cluster", "--name", first.name],
        ["kind", "create", "cluster", "--name", later[1][4]],
    ]
    assert state.records() == []


@pytest.mark.parametrize(
    ("missing", "reason"),
    [("kind", "kind missing on PATH"), ("docker", "docker missing on PATH"), ("daemon", "no Docker daemon")],
)
def test_without_kind_or_docker_the_reason_is_said_and_nothing_is_begun(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, missing: str, reason: str
) -> None:
    if missing == "daemon":
        programs.put("docker", "sys.exit('Cannot connect to the Docker daemon')")
    else:
        found = kind_cluster.shutil.which
        monkeypatch.setattr(kind_cluster.shutil, "which", lambda name: None if name == missing else found(name))

    assert reason in (kind_cluster.why_not() or "")
    with pytest.raises(NodeError, match=reason):
        KindCluster().create()
    assert not [call for call in programs.calls() if call[0] == "kind"]
    assert state.records() == []


# The current cluster ---------------------------------------------------------------------------------------------------


@pytest.fixture
def other_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control_plane: ControlPlane) -> ControlPlane:
    """The control plane of this process is the current cluster, and records of this test are its own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    return control_plane


def test_the_current_cluster_is_the_one_that_kubectl_speaks_to_and_stays_it(
    other_runtime_directory: ControlPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with CurrentCluster() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "another"))
        assert cluster.kubectl("get", "namespace", "default", "-o", "name").stdout == "namespace/default\n"
        assert cluster.kubeconfig.stat().st_mode & 0o077 == 0
        with pytest.raises(KubectlError, match="not found"):
            cluster.kubectl("get", "namespace", "nowhere")

    assert not cluster.directory.exists(), "a copy of the credentials stayed"
    assert state.records() == []


def test_the_current_cluster_takes_no_images_and_no_faults(other_runtime_directory: ControlPlane) -> None:
    with CurrentCluster() as cluster:
        for refused in (
            lambda: cluster.load_image(Path("/tmp/images.tar")),
            lambda: cluster.fault("kubelet"),
            lambda: cluster.kill_container("space", "pod", "engine"),
        ):
            with pytest.raises(NotOfferedError, match="current cluster"):
                refused()


def test_a_current_cluster_that_does_not_answer_is_refused_and_no_credentials_stay(
    other_runtime_directory: ControlPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    away.write_text(other_runtime_directory.kubeconfig.read_text().replace(other_runtime_directory.url, "https://127.0.0.1:1"))
    monkeypatch.setenv("KUBECONFIG", str(away))
    cluster = CurrentCluster()

    with pytest.raises(NodeError, match="does not answer"):
        cluster.create()

    assert not cluster.directory.exists()
    assert state.records() == []


def test_without_a_context_there_is_no_current_cluster(
    other_runtime_directory: ControlPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    assert "no current context" in (current_cluster.why_not() or "")
    with pytest.raises(NodeError, match="no current context"):
        CurrentCluster().create()


# The suite -------------------------------------------------------------------------------------------------------------

ROOT = Path(state.__file__).resolve().parents[1]


def run_e2e(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", "e2e", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def test_where_kind_is_missing_the_suite_skips_loudly_with_the_reason(programs: Programs) -> None:
    programs.put("docker", "sys.exit('Cannot connect to the Docker daemon')")

    ran = run_e2e("--cluster", "kind")

    assert ran.returncode == 0, ran.stdout
    assert "tests did NOT run: no cluster for the end-to-end tests" in ran.stdout
    assert "kind: no Docker daemon" in ran.stdout
    assert " passed" not in ran.stdout


def test_the_current_cluster_without_images_is_refused_before_anything_runs() -> None:
    ran = run_e2e("--cluster", "current", "--image-agent", "somewhere/agent:1")

    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--cluster current needs --image-operator, --image-engine as well" in ran.stderr


def test_a_current_cluster_that_has_grfleet_already_is_left_alone(
    own_control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = own_control_plane
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    plane.kubectl("create", "namespace", "grfleet-system")
    uid = ("get", "namespace", "grfleet-system", "-o", "jsonpath={.metadata.uid} {.metadata.deletionTimestamp}")
    before = plane.kubectl(*uid).stdout

    ran = run_e2e(
        "--cluster", "current", "-x", *(f"--image-{name}=grfleet/{name}:none" for name in ("operator", "agent", "engine"))
    )

    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert "has grfleet already, which these tests would change and remove" in ran.stdout
    assert plane.kubectl(*uid).stdout == before
