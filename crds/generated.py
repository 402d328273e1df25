"""Files that follow from code, and how they are kept so: written by one command, compared by the same command with ``--check``.

A set of generated files is a mapping from path to text, and folders that hold nothing else, so that what is left over from a
kind that is gone can be told from what people wrote.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def drift(root: Path, files: Mapping[Path, str], *folders: Path) -> list[str]:
    """Paths of files that are missing, differ, or are left over in `folders`; all relative to `root`."""
    wrong = [path for path, text in files.items() if not (root / path).is_file() or (root / path).read_text("utf-8") != text]
    return sorted(str(path) for path in [*wrong, *left_over(root, files, *folders)])


def left_over(root: Path, files: Mapping[Path, str], *folders: Path) -> list[Path]:
    """YAML files in `folders` that nothing generates any more."""
    there = [folder / path.name for folder in folders for path in (root / folder).glob("*.yaml")]
    return [path for path in there if path not in files]


def command(
    arguments: Sequence[str] | None,
    *,
    program: str,
    description: str | None,
    root: Path,
    files: Mapping[Path, str],
    folders: Sequence[Path],
) -> int:
    """Entry point of a generator: writes, or with ``--check`` only compares and returns 1 on drift."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 on drift")
    if parser.parse_args(arguments).check:
        wrong = drift(root, files, *folders)
        for name in wrong:
            sys.stderr.write(f"{name}: differs from what the code says; run `make generate`\n")
        return 1 if wrong else 0
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
        sys.stdout.write(f"{path}\n")
    for path in left_over(root, files, *folders):
        (root / path).unlink()
    return 0
