"""The page about scores: its example prints what the page says, and names only fields that there are."""

import re
from pathlib import Path

import pytest

from policies.routing.types import Limits, LoadBound

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "routing-scores.md").read_text()


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/routing-scores.md", "exec"), {})
    printed = capsys.readouterr().out.strip()
    assert f"It prints `{printed}`" in PAGE


def test_limits_on_the_page_are_limits() -> None:
    named = set(re.findall(r"`((?:\w+_ms)|bound\.\w+)`", PAGE)) - {"queue_ms"}
    known = set(Limits.__struct_fields__) | {f"bound.{name}" for name in LoadBound.__struct_fields__}
    assert named
    assert named <= known
