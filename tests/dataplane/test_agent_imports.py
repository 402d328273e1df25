"""What an agent has in memory: it runs beside every engine, so no compiler, training or client of Kubernetes belongs in it."""

import subprocess
import sys

import pytest

HEAVY = ("numba", "llvmlite", "torch", "stable_baselines3", "gymnasium", "kubernetes", "kopf", "pydantic", "matplotlib", "cffi")


@pytest.mark.parametrize("module", ["dataplane.agent.process", "dataplane.agent.main", "policies.allocation.strategy"])
def test_what_an_agent_imports_holds_no_compiler_no_training_and_no_client_of_kubernetes(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "from policies.allocation.path import kernel\n"
        "kernel()\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
