"""Machine code kept between runs goes stale with what it contains, which may come from other files."""

import os
import subprocess
import sys
from pathlib import Path

import simulator.compiled as compiled

CALLER = """
from simulator.compiled import lean
from simulator.loops.callee import CONSTANT, one_more

@lean
def both(x):
    return one_more(x) + CONSTANT
"""
CALLEE = """
from simulator.compiled import lean

CONSTANT = {constant}

@lean
def one_more(x):
    return x + {step}
"""


def test_a_change_in_a_called_file_or_a_constant_is_noticed(tmp_path: Path) -> None:
    room = tmp_path / "simulator"
    loops = room / "loops"
    loops.mkdir(parents=True)
    (room / "__init__.py").touch()
    (loops / "__init__.py").touch()
    (room / "compiled.py").write_text(Path(compiled.__file__).read_text())
    (loops / "caller.py").write_text(CALLER)
    answers = []
    for constant, step in ((10, 1), (20, 1), (20, 5), (20, 5)):
        (loops / "callee.py").write_text(CALLEE.format(constant=constant, step=step))
        program = "from simulator.loops.caller import both; print(both(1))"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        answers.append(int(done.stdout))
    assert answers == [12, 22, 26, 26]
