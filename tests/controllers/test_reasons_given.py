"""The reference lists reasons that some loop gives: one that nobody writes sends its reader to look for what cannot happen."""

import ast
from collections.abc import Iterator
from pathlib import Path

from crds.reasons import CONDITIONS

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("controllers", "policies")  # loops, and the enumerations whose values they hand on


def said() -> Iterator[str]:
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_every_reason_of_a_condition_is_given_somewhere() -> None:
    given = set(said())
    assert [
        (condition.type, reason.name) for condition in CONDITIONS for reason in condition.reasons if reason.name not in given
    ] == []
