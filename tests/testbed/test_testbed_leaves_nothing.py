"""Whatever ends the process that started a control plane, no process and no file of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed import processes, state
from testbed.binaries import Binaries
from testbed.cli import app
from testbed.control_plane import ControlPlane, ControlPlaneError
from testbed.patience import eventually
from testbed.processes import Identity

# What a user's script may look like; it tells its control plane's name once everything runs.
SCRIPT = """
import signal, time
from testbed.control_plane import ControlPlane
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits "ignored"
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with ControlPlane() as plane:
    print(plane.name, flush=True)
    while True:
        time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may see, sweep or stop what other tests or the user are running."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


class Caller:
    """A process of its own that runs a control plane."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline().strip()
        (self.record,) = state.records()
        assert len(self.record.processes) == 3
        assert self.record.watchdog is not None
        self.everything = [*self.record.processes, self.record.watchdog]

    def left(self) -> list[str]:
        """Processes, files and records that are still there."""
        found = [process.name for process in self.everything if processes.is_alive(process)]
        found += [path for path in (self.record.directory,) if Path(path).exists()]
        return found + [record.name for record in state.records()]

    def finish(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        state.sweep()


@pytest.fixture
def caller(testbed_binaries: Binaries) -> Iterator[Caller]:
    running = Caller(sys.executable, "-c", SCRIPT)
    yield running
    running.finish()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_stays_when_a_signal_ends_the_caller(caller: Caller, number: signal.Signals) -> None:
    assert len(caller.left()) == 6

    caller.process.send_signal(number)

    assert caller.process.wait(timeout=20) != 0
    assert eventually(lambda: caller.left() == []), caller.left()


def test_the_next_start_cleans_up_when_caller_and_watchdog_were_both_killed(caller: Caller, testbed_binaries: Binaries) -> None:
    watchdog = caller.record.watchdog
    assert watchdog is not None
    os.kill(watchdog.pid, signal.SIGKILL)
    caller.process.kill()
    caller.process.wait()
    assert len([name for name in caller.left() if name.startswith(("kube", "etcd"))]) == 3

    with ControlPlane(binaries=testbed_binaries) as plane:
        assert [record.name for record in state.records()] == [plane.name]

    assert caller.left() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_up_command_prints_a_kubeconfig_and_stops_all_on_a_signal(testbed_binaries: Binaries, number: signal.Signals) -> None:
    up = Caller(sys.executable, "-m", "testbed", "up")
    try:
        assert up.first_line == f"export KUBECONFIG={up.record.kubeconfig}"
        up.process.send_signal(number)
        assert up.process.wait(timeout=20) == 0
        assert up.left() == []
    finally:
        up.finish()


def test_a_detached_control_plane_outlives_its_caller_until_down(testbed_binaries: Binaries) -> None:
    run = [sys.executable, "-m", "testbed"]
    up = subprocess.run([*run, "up", "--detach"], capture_output=True, text=True, check=True, timeout=120)
    (record,) = state.records()
    try:
        assert up.stdout == f"export KUBECONFIG={record.kubeconfig}\n"
        assert state.sweep() == []
        listed = subprocess.run([*run, "status"], capture_output=True, text=True, check=True, timeout=30).stdout
        assert record.url in listed
        assert all(str(process.pid) in listed for process in record.processes)
        with pytest.raises(ControlPlaneError, match="in use"):
            ControlPlane(Path(record.directory), binaries=testbed_binaries).start()
    finally:
        down = subprocess.run([*run, "down"], capture_output=True, text=True, check=False, timeout=60)

    assert (down.returncode, down.stdout) == (0, f"stopped {record.url}\n")
    assert not any(processes.is_alive(process) for process in record.processes)
    assert not Path(record.directory).exists()


def test_down_by_kubeconfig_stops_that_one_alone(tmp_path: Path) -> None:
    """Who takes his own down must not end the test run or the demonstration beside it."""
    for name in ("mine", "other"):
        directory = tmp_path / name
        directory.mkdir()
        record = state.Record(name, None, str(directory), temporary=True, url=name, kubeconfig=str(directory / "kubeconfig"))
        state.save(record)
    run = CliRunner()

    missed = run.invoke(app, ["down", "--kubeconfig", str(tmp_path / "none")])
    assert (missed.exit_code, missed.stdout) == (1, "")
    assert len(state.records()) == 2

    stopped = run.invoke(app, ["down", "--kubeconfig", str(tmp_path / "mine" / "kubeconfig")])
    assert (stopped.exit_code, stopped.stdout) == (0, "stopped mine\n")
    assert [record.name for record in state.records()] == ["other"]


def test_a_kept_directory_continues_with_its_data(testbed_binaries: Binaries, tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    with ControlPlane(directory, binaries=testbed_binaries) as first:
        first.kubectl("create", "configmap", "kept")
        token = first.admin_token
    with ControlPlane(directory, binaries=testbed_binaries) as second:
        assert second.admin_token == token
        assert "kept" in second.kubectl("get", "configmaps").stdout
    assert directory.exists()


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def test_a_process_with_a_reused_id_is_never_signalled() -> None:
    stranger = sleeper()
    try:
        real = processes.identify("sleep", stranger.pid)
        recycled = Identity("kube-apiserver", real.pid, real.start - 1)

        assert processes.stop(recycled, grace_seconds=0)

        assert processes.is_alive(real)
        assert not processes.is_alive(recycled)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_control_plane_with_a_living_owner_is_not_swept(tmp_path: Path) -> None:
    owner, child = sleeper(), sleeper()
    recorded = processes.identify("etcd", child.pid)
    record = state.Record("alive", processes.identify("owner", owner.pid), str(tmp_path / "x"), True, processes=(recorded,))
    state.save(record)
    try:
        assert state.sweep() == []
        assert processes.is_alive(recorded)

        owner.kill()
        owner.wait()

        assert state.sweep() == ["alive"]
        assert not processes.is_alive(recorded)
    finally:
        child.kill()
        child.wait()


def test_a_program_does_not_begin_before_it_is_recorded(tmp_path: Path) -> None:
    mark = tmp_path / "began"
    seen: list[Identity] = []

    def record(identity: Identity) -> None:
        time.sleep(0.2)  # real time on purpose: the program would have begun by now
        assert not mark.exists()
        seen.append(identity)

    child = processes.start("touch", ["/usr/bin/touch", mark], log=tmp_path / "log", record=record)

    assert child.wait(timeout=10) == 0
    assert mark.exists()
    assert [identity.pid for identity in seen] == [child.pid]


def test_a_program_that_cannot_be_recorded_never_runs(tmp_path: Path) -> None:
    mark = tmp_path / "began"

    def record(identity: Identity) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        processes.start("touch", ["/usr/bin/touch", mark], log=tmp_path / "log", record=record)

    assert not mark.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", json.dumps({"name": "x"}), json.dumps({"processes": [1]})])
def test_a_damaged_record_does_not_stand_in_the_way(text: str) -> None:
    (state.runtime_directory() / "damaged.json").write_text(text)

    assert state.records() == []
    assert state.sweep() == []


def test_a_runtime_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    state.runtime_directory().chmod(0o777)

    with pytest.raises(PermissionError, match="private"):
        state.runtime_directory()


def test_a_runtime_directory_that_is_not_there_is_replaced_by_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))

    assert state.runtime_directory().parent == tmp_path


def test_a_build_ends_with_a_caller_that_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = (
        "import pathlib, sys; from testbed import go_build;"
        "go_build._run('build', ['/bin/sh', '-c', 'echo $$ > ' + sys.argv[1] + '; exec sleep 60'],"
        " directory=pathlib.Path('/'), progress=print)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code, str(mark)], cwd=Path(__file__).parents[2])
    assert eventually(lambda: mark.exists() and mark.read_text().strip() != "")
    build = processes.identify("build", int(mark.read_text()))

    caller.kill()
    caller.wait()

    assert processes.wait_gone(build, timeout_seconds=10)
