"""docs/first-pool.md is one session in one shell: it is run with less traffic, on a control plane of its own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from documented import ROOT, blocks, read

from crds.reasons import CONDITIONS
from dataplane.agent.reasons import MESSAGES
from testbed.binaries import Binaries

PAGE = read("docs/first-pool.md")
TRAFFIC = 'toy_traffic.py "unix:$DIR/engine.sock" 25 '
SESSION = "\n".join(blocks("docs/first-pool.md", "sh")).replace(f"{TRAFFIC}90", f"{TRAFFIC}4")


@pytest.fixture
def environment(testbed_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """That of a newcomer: an environment has been made in .venv or elsewhere, nothing else is on the PATH."""
    short = tmp_path_factory.mktemp("t")  # holds sockets, whose paths may have some hundred characters
    values = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(short),  # `grfleet testbed down` must not touch the control planes of other tests
        "TMPDIR": str(short),
    }
    values.pop("KUBECONFIG", None)
    yield values
    subprocess.run(["grfleet", "testbed", "down"], env=values, check=True, capture_output=True, timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_page_leads_from_nothing_to_a_ready_pool_and_back(environment: dict[str, str]) -> None:
    session = subprocess.Popen(
        ["bash", "-c", f"set -euo pipefail\n{SESSION}\nwait"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = session.communicate(timeout=200)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session.pid, signal.SIGKILL)  # what the session left behind when a step failed
    assert session.returncode == 0, output
    assert "grservingpool.grfleet.dev/ranker condition met" in output
    assert "Decisions of ranker-a" in output
    assert re.search(r"^\d+ answers; ", output, re.M), output
    assert re.search(r"^ *\d+ +[\d.]+ Learned +Fallback .* EstimateNotTrusted", output, re.M), output
    assert re.search(r"^\d+ same$", output, re.M), output
    assert "stopped https://127.0.0.1:" in output


def test_every_reason_that_the_page_explains_exists() -> None:
    known = {reason.name for condition in CONDITIONS for reason in condition.reasons} | set(MESSAGES)
    table = PAGE.split("| reason | do |", 1)[1]
    named = {
        name for row in table.splitlines() if row.startswith("| `") for name in re.findall(r"`([A-Z]\w+)`", row.split("|")[1])
    }
    assert named
    assert named <= known
