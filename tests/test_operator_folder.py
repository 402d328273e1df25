"""The folder ``operator/`` shares its name with a module of the standard library and must never shadow it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "operator"


def test_the_folder_is_no_package_and_holds_one_short_python_file() -> None:
    assert not (FOLDER / "__init__.py").exists()
    assert [path.name for path in FOLDER.glob("*.py")] == ["main.py"]
    assert len((FOLDER / "main.py").read_text().splitlines()) <= 20


def test_the_entry_point_imports_the_process_and_nothing_else() -> None:
    tree = ast.parse((FOLDER / "main.py").read_text())
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports == ["from controllers.runtime import process"]


def test_from_the_root_of_the_checkout_operator_is_the_standard_library_s() -> None:
    code = "import operator, collections; print(operator.__file__); print(operator.add(1, 2))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    where, total = done.stdout.split()
    assert not where.startswith(str(FOLDER))
    assert total == "3"


def test_no_test_folder_is_called_operator() -> None:
    assert [path for path in (ROOT / "tests").rglob("operator") if path.is_dir()] == []
