"""Tab after `kubectl grfleet` offers commands, flags and the names in the cluster, and never an error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from controllers.runtime.resources import ResourceType
from grfleet.access import KubeFlags
from grfleet.completion import candidates
from testbed.binaries import Binaries

ROOT = Path(__file__).resolve().parent.parent.parent
ASKED: list[tuple[str, KubeFlags]] = []


def offered(*words: str) -> list[str]:
    def names(kind: ResourceType, flags: KubeFlags) -> list[str]:
        ASKED.append((kind.kind, flags))
        return ["ranker", "retriever"]

    return [line.split("\t")[0] for line in candidates(words, names=names)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("to",), ["top"]),
        (("-n", "feed", "dec"), ["decisions"]),
        (("top", "ran"), ["ranker"]),
        (("top", "-n", "feed", ""), ["ranker", "retriever"]),
        (("decisions", "re"), ["retriever"]),
        (("top", "--all"), ["--all-namespaces"]),
        (("top", "-o", ""), ["table", "wide", "json"]),
        (("top", "--context", ""), []),
        (("testbed", "u"), ["up"]),
        (("demo", ""), []),
        (
            ("no-such-command", ""),
            ["demo", "simulate", "oracle", "top", "decisions", "replay", "train", "trace", "model", "testbed"],
        ),
    ],
)
def test_what_is_offered_fits_what_was_typed(words: tuple[str, ...], expected: list[str]) -> None:
    assert offered(*words) == expected


def test_every_option_of_the_command_is_offered_with_its_help() -> None:
    lines = candidates(["top", "-"], names=lambda kind, flags: [])
    assert {"--namespace", "-n", "--context", "--kubeconfig", "--watch", "--once", "--output"} <= {
        line.split("\t")[0] for line in lines
    }
    assert "--once\tRedraw until Ctrl-C, or look once. Default: watch on a terminal." in lines


def test_names_are_looked_up_where_the_flags_say() -> None:
    ASKED.clear()
    offered("-n", "feed", "top", "--context=far", "")
    ((kind, flags),) = ASKED
    assert (kind, flags.namespace, flags.context) == ("GRServingPool", "feed", "far")


def test_the_program_that_kubectl_looks_for_is_installed_with_the_package() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl_complete-grfleet"] == "grfleet.completion:main"


def test_kubectl_asks_the_plugin(testbed_binaries: Binaries, tmp_path: Path) -> None:
    script = tmp_path / "kubectl_complete-grfleet"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from grfleet.completion import main; main()' \"$@\"\n")
    script.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(tmp_path / "none"),
        "PYTHONPATH": str(ROOT),
    }
    shown = subprocess.run(
        [testbed_binaries["kubectl"], "__complete", "grfleet", "t"], env=environment, capture_output=True, text=True, check=False
    )
    assert re.search(r"^top\tShow pools", shown.stdout, re.MULTILINE), shown.stdout + shown.stderr
    assert shown.stdout.splitlines()[-1] == ":4"
    nothing = subprocess.run(
        [testbed_binaries["kubectl"], "__complete", "grfleet", "top", ""],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert nothing.stdout.splitlines() == [":4"]
