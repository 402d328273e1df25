"""Every command that the README and the pages beside it show is run, against a demonstration that was left running.

Blocks marked `sh` are what a reader may type. `make` lines are checked to exist (they would run these very tests); everything
else must exit with 0. The pages in TESTED_ELSEWHERE have tests of their own.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from documented import EXAMPLES, ROOT, blocks, commands, labels, run

from testbed.binaries import Binaries

PAGES = ("README.md", "docs/develop.md", "docs/demo.md", "docs/cli.md")
TESTED_ELSEWHERE = {
    f"docs/{page}.md"
    for page in (
        *("install", "contract", "agent", "first-pool", "first-pods", "images", "operations", "pools", "scaling", "traces"),
        *("allocator", "decision-core", "fleet", "models", "picker", "rollout", "routing", "simulator", "tiers", "training"),
        *("client",),
    )
}


@dataclass(frozen=True)
class KeptDemo:
    """A demonstration that has ended and keeps running."""

    output: str
    summary: dict[str, Any]
    out: Path
    environment: dict[str, str]

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return run(command, within=self.environment)


@pytest.fixture(scope="module")
def kept_demo(testbed_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptDemo]:
    out, runtime = tmp_path_factory.mktemp("demo"), tmp_path_factory.mktemp("runtime")
    programs = [Path(sys.executable).parent, Path(testbed_binaries["kubectl"]).parent]
    environment = {
        **os.environ,
        "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
        "XDG_RUNTIME_DIR": str(runtime),  # `grfleet testbed down` must not touch the control planes of other tests
        "COLUMNS": "200",
    }
    environment.pop("KUBECONFIG", None)
    try:
        made = subprocess.run(
            ["grfleet", "demo", "--quick", "--keep", "--gateway", "--out", str(out)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-4000:]
        kubeconfig = re.findall(r"^export KUBECONFIG=(\S+)$", made.stdout, re.MULTILINE)[-1]
        environment["KUBECONFIG"] = kubeconfig
        yield KeptDemo(made.stdout, json.loads((out / "summary.json").read_text()), out, environment)
    finally:
        subprocess.run(["grfleet", "testbed", "down"], env=environment, check=True, capture_output=True, timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(420)
class TestTheKeptDemonstration:
    def test_the_api_shows_a_split_that_moved_with_its_reason_beside_one_that_did_not(self, kept_demo: KeptDemo) -> None:
        listed = json.loads(kept_demo.run("kubectl get gri -A -o json").stdout)["items"]
        instances = [instance for instance in listed if instance["metadata"]["namespace"] in ("adaptive", "static")]
        assert len(instances) == 8
        targets: dict[str, set[int]] = {}
        for instance in instances:
            status = instance["status"]
            assert status["reason"], instance["metadata"]["name"]
            strategy = instance["spec"]["intent"]["strategy"]
            targets.setdefault(strategy, set()).add(status["split"]["accepted"]["embPercent"])
        assert targets["Static"] <= {49, 50, 51}
        assert targets["Learned"] - {49, 50, 51}

    def test_the_shipped_model_decided_in_the_adaptive_pool_and_nowhere_else(self, kept_demo: KeptDemo) -> None:
        decisions = {name: pool["decisions"] for name, pool in kept_demo.summary["pools"].items()}
        assert decisions["adaptive"].get("LearnedTarget", 0) > 50, decisions
        assert "LearnedTarget" not in decisions["static"]

    def test_every_request_went_through_haproxy_to_the_owner_of_its_user(self, kept_demo: KeptDemo) -> None:
        assert kept_demo.summary["gateway"]
        assert {pool["affinity_percent"] for pool in kept_demo.summary["pools"].values()} == {100.0}

    @pytest.mark.parametrize(("page", "command"), [(page, line) for page in PAGES for line in commands(page)])
    def test_a_documented_command_works(self, kept_demo: KeptDemo, page: str, command: str) -> None:
        if command.startswith("make "):
            command = f"make --dry-run --no-print-directory {command.removeprefix('make ')}"
        result = kept_demo.run(command)
        assert result.returncode == 0, f"{page}: {command}\n{result.stdout[-2000:]}{result.stderr[-2000:]}"

    def test_what_the_demonstration_tells_to_try_works(self, kept_demo: KeptDemo) -> None:
        told = kept_demo.output.split("Try:\n", 1)[1].splitlines()
        tried = [line for line in told if line.startswith(("kubectl ", "grfleet ", *(["curl "] if shutil.which("curl") else [])))]
        assert len(tried) >= 4
        for command in tried:
            if not command.startswith("grfleet testbed down"):  # the fixture's end
                result = kept_demo.run(command)
                assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"

    def test_the_summary_has_the_promised_shape(self, kept_demo: KeptDemo) -> None:
        summary = kept_demo.summary
        assert set(summary["pools"]) == {"adaptive", "static"}
        for pool in summary["pools"].values():
            assert pool["p50_ms"] > 0
            assert pool["p99_ms"] >= pool["p50_ms"]
            assert 0 <= pool["slo_percent"] <= 100
        assert isinstance(summary["reliable"], bool)
        assert len(summary["replayed"]) >= 4
        assert (kept_demo.out / "summary.json").stat().st_size < 100_000

    def test_nothing_the_demonstration_wrote_holds_a_raw_user_id(self, kept_demo: KeptDemo) -> None:
        # users of the trace are called block-N or short-N (simulator.traces.mooncake); behind the edge only their keys may appear
        for path in kept_demo.out.rglob("*"):
            if path.is_file() and path.suffix in {".log", ".json"}:
                assert not re.search(r"\b(block|short)-\d+\b", path.read_text(errors="replace")), path


def test_the_pool_in_the_readme_is_the_one_in_the_examples() -> None:
    assert blocks("README.md", "yaml") == [(EXAMPLES / "pool.yaml").read_text()]


def test_no_page_shows_commands_that_no_test_runs() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        page = str(path.relative_to(ROOT))
        if page not in PAGES and page not in TESTED_ELSEWHERE:
            assert not labels(page) & {"sh", "bash", "shell", "console"}, page


def test_links_between_pages_lead_somewhere() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        prose = re.sub(r"`[^`\n]*`", "", path.read_text())  # a pattern in code may look like a link
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"


def test_links_to_a_heading_name_one_that_is_there() -> None:
    pages = {path.resolve(): path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}
    anchors = {path: {anchor_of(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)} for path, text in pages.items()}
    for path, text in pages.items():
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]*)\)", re.sub(r"`[^`\n]*`", "", text)):
            there = (path.parent / target).resolve() if target else path
            assert anchor in anchors.get(there, {anchor}), f"{path.relative_to(ROOT)} links to {target}#{anchor}"


def anchor_of(heading: str) -> str:
    """The name by which pages on the web link to a heading."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", shown))


def test_the_map_of_the_documentation_names_every_page() -> None:
    shown = (ROOT / "docs/README.md").read_text()
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    listed_elsewhere = {page for page in pages if page.startswith("decisions/") and page != "decisions/README.md"}
    assert [page for page in sorted(pages - listed_elsewhere) if f"]({page})" not in shown] == []
    decisions = (ROOT / "docs/decisions/README.md").read_text()
    assert [page for page in sorted(listed_elsewhere) if f"]({Path(page).name})" not in decisions] == []
