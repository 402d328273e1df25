"""`grfleet demo` as a person runs it, when it does not end well: interrupted, and unable to start; nothing stays behind.

A whole run that is left running is tested with the documented commands (tests/docs).
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.testbed, pytest.mark.slow, pytest.mark.timeout(420)]

ROOT = Path(__file__).resolve().parents[2]
GRFLEET = [sys.executable, "-m", "grfleet.cli"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose control planes are recorded apart, so that `testbed down` here stops no other test's."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    return {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def started(environment: dict[str, str], tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Commands that a test started; ended with all they started, even when the test fails."""
    children: list[subprocess.Popen[str]] = []
    yield children
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            child.wait(60)
    subprocess.run([*GRFLEET, "testbed", "down"], env=environment, cwd=tmp_path, check=False, capture_output=True, timeout=60)


def start(started: list[subprocess.Popen[str]], environment: dict[str, str], folder: Path, *flags: str) -> subprocess.Popen[str]:
    command = [*GRFLEET, "demo", "--seconds", "6", "--out", str(folder / "out"), *flags]
    child = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    started.append(child)
    return child


def processes_that_mention(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line:
                found.append(line)
    return found


def directory_in(output: str) -> str:
    match = re.search(r"KUBECONFIG=(\S+)/kubeconfig", output)
    assert match, output
    return match.group(1)


def eventually_nothing(directory: str) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end and (Path(directory).exists() or processes_that_mention(directory)):
        time.sleep(0.1)
    assert not Path(directory).exists()
    assert not processes_that_mention(directory)


def test_an_interrupted_run_leaves_nothing_behind(
    started: list[subprocess.Popen[str]], environment: dict[str, str], tmp_path: Path
) -> None:
    demo = start(started, environment, tmp_path)
    assert demo.stdout is not None
    seen = ""
    while "answered" not in seen and "connecting" not in seen:
        line = demo.stdout.readline()
        assert line, seen
        seen += line
    directory = directory_in(seen)
    assert processes_that_mention(directory)

    demo.send_signal(signal.SIGTERM)
    rest, _ = demo.communicate(timeout=60)

    assert demo.returncode == 130, seen + rest
    eventually_nothing(directory)


def test_a_run_that_cannot_start_says_what_failed_in_one_line(
    started: list[subprocess.Popen[str]], environment: dict[str, str], tmp_path: Path
) -> None:
    demo = start(started, environment, tmp_path, "--traces", str(tmp_path / "nowhere"))
    output, _ = demo.communicate(timeout=60)

    assert demo.returncode == 1
    assert "mooncake_conversation.jsonl: cannot be read" in output
    assert "Traceback" not in output
