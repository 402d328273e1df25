"""The page about the oracle: its example runs, and its table of doubts names those that there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "oracle.md").read_text()


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/oracle.md", "exec"), {})
    assert capsys.readouterr().out.startswith("[")
    assert list((tmp_path / "grfleet" / "oracle").glob("*.npz"))


def test_every_doubt_stands_in_the_table() -> None:
    source = (ROOT / "simulator" / "oracle" / "doubts.py").read_text()
    begins = set(re.findall(r'f?"([a-z][a-z -]+?)(?:: | \{)', source))
    listed = set(re.findall(r"^\| `([a-z -]+)` \|", PAGE, re.MULTILINE))
    assert begins == listed
