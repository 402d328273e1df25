"""docs/first-pods.md is one session in one shell, from no cluster to pods that are resized and rolled: run as it stands."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "first-pods.md").read_text()
SESSION = "\n".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def environment(node_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """That of a newcomer: an environment has been made in .venv or elsewhere, helm and kubectl are not on the PATH."""
    short = tmp_path_factory.mktemp("p")
    values = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(short),  # `grfleet testbed down` must not touch the clusters of other tests
        "TMPDIR": str(short),
        **{f"HELM_{name}_HOME": str(short / name.lower()) for name in ("CACHE", "CONFIG", "DATA")},
    }
    values.pop("KUBECONFIG", None)
    yield values
    subprocess.run(["grfleet", "testbed", "down"], env=values, check=True, capture_output=True, timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_leads_from_nothing_to_pods_that_are_resized_rolled_and_replaced(
    environment: dict[str, str], request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("cluster") not in ("local", "testbed"):
        pytest.skip("the page brings a node of its own")
    session = subprocess.Popen(
        ["bash", "-c", f"set -euo pipefail\n{SESSION}"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = session.communicate(timeout=540)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session.pid, signal.SIGKILL)  # what the session left behind when a step failed
    assert session.returncode == 0, output[-6000:]
    assert output.count("grservingpool.grfleet.dev/ranker condition met") == 4
    assert "Decisions of ranker-" in output
    assert "stopped https://127.0.0.1:" in output
