"""A HAProxy that was unpacked can be started by whoever has its path alone."""

import subprocess
from pathlib import Path

from testbed.debian import Tree
from testbed.haproxy import launcher


def test_the_printed_program_finds_its_libraries_and_hands_on_its_arguments(tmp_path: Path) -> None:
    root = tmp_path / "with a space" / "2.8"
    (root / "usr" / "bin").mkdir(parents=True)
    libraries = root / "usr" / "lib" / "x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    program = root / "usr" / "bin" / "haproxy"
    program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\n')
    program.chmod(0o755)

    made = launcher(Tree(root))
    again = launcher(Tree(root))

    said = subprocess.run([made, "-f", "a b"], capture_output=True, text=True, check=True, env={}).stdout
    assert said == f"{libraries} -f a b\n"
    assert made == again
    assert not made.is_relative_to(root), "the tree stays as it was unpacked"
