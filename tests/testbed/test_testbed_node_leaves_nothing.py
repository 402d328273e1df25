"""However a node ends, no process, mount, interface, route, control group or file of it stays; and two are strangers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import processes, state
from testbed.binaries import find_binaries
from testbed.node.cluster import LocalCluster
from testbed.node.runtime import BASE_IMAGE
from testbed.patience import eventually
from testbed.state import Record

POD = ["run", "stays", f"--image={BASE_IMAGE}", "--image-pull-policy=Never", "--command", "--"]
POD += ["/opt/python/bin/python3", "-c", "import time; time.sleep(600)"]
pytestmark = pytest.mark.usefixtures("node_parts")
# A user's script: a node with a pod on it, then nothing until it is killed.
SCRIPT = f"""
import time
from testbed.node.cluster import LocalCluster
with LocalCluster() as cluster:
    cluster.kubectl(*{POD!r})
    cluster.kubectl("wait", "pod/stays", "--for=condition=Ready", "--timeout=60s")
    print(cluster.plane.name, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def own_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may see, sweep or stop what other tests or the user are running."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def run_pod(cluster: LocalCluster) -> None:
    cluster.kubectl(*POD)
    cluster.kubectl("wait", "pod/stays", "--for=condition=Ready", "--timeout=60s")


class Traces:
    """What one node has on this machine, remembered while it runs."""

    def __init__(self, record: Record) -> None:
        self._record = record
        (init,) = [p.pid for p in record.processes if p.name == "node-init"]
        self._namespaces = {os.readlink(f"/proc/{init}/ns/{kind}") for kind in ("pid", "mnt", "net")}
        self._inside = [processes.identify("inside", pid) for pid in self._members()]
        assert any("python" in text for text in self._commands()), "the pod is not there to be missed"

    def _members(self) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if {os.readlink(entry / "ns" / kind) for kind in ("mnt", "net")} & self._namespaces:
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def _commands(self) -> list[str]:
        cgroup = self._record.cgroup
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if f"/{cgroup}/" in (entry / "cgroup").read_text():
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
        return found

    def left(self) -> list[str]:
        """Everything of it that is still there."""
        known = [*self._record.processes, *self._inside]
        found = [f"process {p.name} {p.pid}" for p in known if processes.is_alive(p)]
        found += [f"member {pid}" for pid in self._members()] + [f"in the control group: {text}" for text in self._commands()]
        found += [
            f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if self._record.directory in line
        ]
        found += [f"control group {path}" for path in Path("/sys/fs/cgroup").glob("*") if (path / self._record.cgroup).exists()]
        found += [f"control group {cgroup}" for cgroup in [Path("/sys/fs/cgroup", self._record.cgroup)] if cgroup.exists()]
        found += [f"record {r.name}" for r in state.records() if r.name == self._record.name]
        return found + [path for path in (self._record.directory,) if Path(path).exists()]


def links() -> set[str]:
    """The links of every node on this machine; tests of another process may have theirs."""
    return {name for name in os.listdir("/sys/class/net") if name.startswith("grfleet-")}


def test_destroy_leaves_nothing() -> None:
    cluster = LocalCluster()
    with cluster:
        run_pod(cluster)
        traces = Traces(cluster.plane.record)
        link = cluster._namespaces.addresses.link
        assert link in links()
        assert len(traces.left()) > 20

    assert traces.left() == []
    assert link not in links()
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    assert link not in routes


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_stays_when_a_signal_ends_the_owner(number: signal.Signals) -> None:
    owner = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        record = state.load(name)
        assert record is not None
        traces = Traces(record)

        owner.send_signal(number)
        owner.wait(timeout=20)

        assert eventually(lambda: traces.left() == []), traces.left()
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        state.sweep()


def test_the_next_start_cleans_up_when_owner_and_watchdog_were_both_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert owner.stdout is not None
        record = state.load(owner.stdout.readline().strip())
        assert record is not None
        assert record.watchdog is not None
        traces = Traces(record)
        os.kill(record.watchdog.pid, signal.SIGKILL)
        owner.kill()
        owner.wait()
        assert len(traces.left()) > 20
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        swept = state.sweep()

    assert swept == [record.name]
    assert traces.left() == []


def test_killing_the_first_process_of_the_namespaces_ends_all_of_the_node_at_once() -> None:
    with LocalCluster() as cluster:
        run_pod(cluster)
        traces = Traces(cluster.plane.record)

        os.kill(cluster._namespaces.process_id, signal.SIGKILL)

        assert eventually(lambda: not traces._members(), timeout_seconds=10)
        assert cluster.kubectl("get", "nodes").stdout.startswith("NAME")


def test_a_detached_node_outlives_its_caller_until_down() -> None:
    run = [sys.executable, "-m", "testbed"]
    up = subprocess.run([*run, "up", "--node", "--detach"], capture_output=True, text=True, check=False, timeout=120)
    assert up.returncode == 0, up.stderr
    (record,) = state.records()
    try:
        assert up.stdout == f"export KUBECONFIG={record.kubeconfig}\n"
        kubectl = [find_binaries(["kubectl"])["kubectl"], "--kubeconfig", record.kubeconfig]
        subprocess.run([*kubectl, *POD], check=True, timeout=60)
        subprocess.run([*kubectl, "wait", "pod/stays", "--for=condition=Ready", "--timeout=60s"], check=True, timeout=90)
        traces = Traces(record)
        listed = subprocess.run([*run, "status"], capture_output=True, text=True, check=True, timeout=30).stdout
        assert all(name in listed for name in ("detached", "kubelet", "containerd", "node-init"))
    finally:
        down = subprocess.run([*run, "down"], capture_output=True, text=True, check=False, timeout=60)

    assert (down.returncode, down.stdout) == (0, f"stopped {record.url}\n")
    assert eventually(lambda: traces.left() == []), traces.left()


def test_a_kept_directory_continues_with_its_objects_on_a_new_node(tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    with LocalCluster(directory) as first:
        first.kubectl("create", "deployment", "stays", f"--image={BASE_IMAGE}", "--", *POD[POD.index("--") + 1 :])
        first.kubectl("rollout", "status", "deployment/stays", "--timeout=60s")

    with LocalCluster(directory) as second:
        pods = "jsonpath={.items[*].status.containerStatuses[0].state.running.startedAt}"
        second.kubectl("rollout", "restart", "deployment/stays")
        second.kubectl("rollout", "status", "deployment/stays", "--timeout=90s")
        assert second.kubectl("get", "pods", "-o", pods).stdout
        assert second.kubectl("exec", "deployment/stays", "--", "/opt/python/bin/python3", "-c", "print(1)").stdout == "1\n"


def test_two_clusters_run_at_once_and_do_not_meet() -> None:
    with LocalCluster() as first, LocalCluster() as second:
        run_pod(first)
        run_pod(second)
        addresses = {
            cluster.kubectl("get", "pod", "stays", "-o", "jsonpath={.status.podIP}").stdout for cluster in (first, second)
        }

        assert len(addresses) == 2
        first.destroy()
        assert second.kubectl("exec", "stays", "--", "/opt/python/bin/python3", "-c", "print('alive')").stdout == "alive\n"
