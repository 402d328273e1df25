"""What a page of the documentation shows: its blocks of code, the commands that a reader types, the names in its tables.

A block marked `sh` holds commands, each on a line of its own unless the page is one session (docs/first-pool.md).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "docs" / "examples"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def read(page: str) -> str:
    """The text of a page, named by its path in the checkout."""
    return (ROOT / page).read_text()


def labels(page: str) -> set[str]:
    """Languages of the blocks."""
    return {label for label, _ in _BLOCK.findall(read(page))}


def blocks(page: str, language: str) -> list[str]:
    """The blocks of one language."""
    return [body for label, body in _BLOCK.findall(read(page)) if label == language]


def commands(page: str) -> list[str]:
    """The lines of the `sh` blocks, without comments."""
    lines = [line.strip() for body in blocks(page, "sh") for line in body.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def named_in_first_cells(page: str, *, head: str) -> set[str]:
    """The CamelCase words in the first column of the table that begins with this line."""
    table = read(page).split(head, 1)[1].split("\n\n", 1)[0]
    return set(re.findall(r"`([A-Z]\w+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:])))


def environment(*, kubeconfig: Path, programs: Path) -> dict[str, str]:
    """That of a shell in which kubectl is on the PATH and speaks to this control plane."""
    return {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{programs}:{os.environ['PATH']}"}


def run(command: str, *, within: Mapping[str, str], timeout_seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell at the root of the checkout; the caller judges its code."""
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=within, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )
