"""What an agent has in memory: it runs beside every engine, so no compiler, training or client of Kubernetes belongs in it."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from dataplane_processes import start

HEAVY = (
    *("numba", "llvmlite", "torch", "stable_baselines3", "gymnasium", "kubernetes", "kopf", "pydantic", "matplotlib", "cffi"),
    *("aiohttp", "httpx", "prometheus_client"),
)


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


async def test_a_running_agent_has_one_heap_and_no_openssl_beside_the_one_that_checks_signatures(tmp_path: Path) -> None:
    arguments = ["--engine", f"unix:{tmp_path}/engine.sock", "--insecure-unsigned-intents"]
    agent = await start("dataplane.agent.main", arguments, log=tmp_path / "agent.log")
    try:
        mapped = await asyncio.to_thread(Path(f"/proc/{agent.pid}/maps").read_text)
        told = await asyncio.to_thread(Path(f"/proc/{agent.pid}/environ").read_bytes)
    finally:
        await agent.terminate()
    assert "libssl" not in mapped
    assert "libcrypto" not in mapped
    assert "libpython" in mapped or "python" in mapped
    assert b"PYTHONMALLOC=" in told, "all that Python holds lies in one heap"


async def test_an_agent_of_an_engine_behind_tls_has_openssl(tmp_path: Path) -> None:
    arguments = ["--engine", "https://127.0.0.1:1", "--insecure-unsigned-intents"]
    agent = await start("dataplane.agent.main", arguments, log=tmp_path / "agent.log")
    try:
        assert agent.ready["listen"].startswith("http://127.0.0.1:")
    finally:
        assert await agent.terminate() == 0
