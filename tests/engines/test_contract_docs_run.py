"""What docs/contract.md shows is run as it stands, only with another socket."""

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

from engine_process import EngineProcess

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found.group(1)


async def run(*command: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=ROOT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_the_commands_start_check_and_stop_an_engine(tmp_path: Path) -> None:
    script = block("sh").replace("/tmp/grfleet-engine.sock", f"{tmp_path}/e.sock")
    programs = {"grfleet-reference-engine": f"{sys.executable} -m engines.reference.main", "python": sys.executable}
    script = re.sub(r"\.venv/bin/([a-z-]+)", lambda found: programs[found.group(1)], script)
    code, output = await run("bash", "-euc", script + "wait $! || true\n")
    assert code == 0, output
    assert " 0 failed" in output, output
    assert not (tmp_path / "e.sock").exists()


async def test_the_example_session_moves_one_granule(tmp_path: Path, new_engine: Callable[..., EngineProcess]) -> None:
    process = new_engine("--listen", f"unix:{tmp_path}/e.sock")
    ready = await process.start()
    code, output = await run(sys.executable, "-c", f"URL = {ready['listen']!r}\n" + block("python"))
    assert code == 0, output
    assert "0 of 1000 tokens cached" in output
    assert "1000 of 1010 tokens cached" in output
    assert "applied revision 2" in output
