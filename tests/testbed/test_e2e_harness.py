"""How the end-to-end suite behaves: what a cluster cannot do is skipped and counted, a journey ends at its first failed step."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed import cli
from testbed.binaries import Binaries
from testbed.debian import DebianError
from testbed.versions import DEFAULT_PROGRAMS, NODE_PROGRAMS

pytest_plugins = ["pytester"]
ROOT = Path(cli.__file__).resolve().parents[1]
MARKERS = '[tool.pytest.ini_options]\nmarkers = ["node: x", "testbed: x"]\naddopts = "--strict-markers -ra"\n'


def test_after_a_failed_step_the_rest_of_that_journey_is_skipped_and_what_is_not_offered_ends_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'e2e'}")
    pytester.makepyprojecttoml(MARKERS)
    pytester.makeconftest((ROOT / "e2e" / "conftest.py").read_text())
    pytester.makepyfile(
        test_journey="""
            import pytest
            from testbed.node.provider import NotOfferedError
            pytestmark = pytest.mark.journey
            def test_a(): pass
            def test_b(): raise NotOfferedError("no disk to break")
            def test_c(): assert False
            def test_d(): pass
            def test_e(): pass
        """,
        test_other="def test_f(): pass",
    )

    ran = pytester.runpytest_subprocess("-p", "no:xdist", "-p", "no:cacheprovider")

    ran.assert_outcomes(passed=2, skipped=3, failed=1)
    ran.stdout.fnmatch_lines_random(
        [
            "*1 tests did NOT run: not possible on this cluster*",
            "*2 tests did NOT run: an earlier step failed*",
            "*not possible on this cluster: no disk to break*",
            "*an earlier step failed: test_c*",
        ]
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Names of the programs that a build asked for, and of the packages; nothing is built."""
    asked: list[tuple[str, ...]] = []

    def programs(names: tuple[str, ...], **_: object) -> Binaries:
        asked.append(names)
        return Binaries({}, {})

    def packages(names: tuple[str, ...], **_: object) -> None:
        asked.append(names)

    monkeypatch.setattr(cli, "ensure_binaries", programs)
    monkeypatch.setattr(cli, "ensure_debian_tree", packages)
    return asked


def test_where_no_node_can_run_its_programs_are_not_made_and_the_reason_is_said(
    made: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "why_never", lambda: "a real node needs root")

    done = CliRunner().invoke(cli.app, ["build", "--node-if-possible"])

    assert done.exit_code == 0
    assert made == [DEFAULT_PROGRAMS]
    assert "cannot run one: a real node needs root" in done.stderr


def test_where_a_node_can_run_its_programs_are_made_and_a_failure_is_one(
    made: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "why_never", lambda: None)

    assert CliRunner().invoke(cli.app, ["build", "--node-if-possible"]).exit_code == 0
    assert made == [cli.PACKAGES, (*DEFAULT_PROGRAMS, *NODE_PROGRAMS)]

    def fail(names: tuple[str, ...], **_: object) -> None:
        raise DebianError("no archive answers")

    monkeypatch.setattr(cli, "ensure_debian_tree", fail)
    assert CliRunner().invoke(cli.app, ["build", "--node-if-possible"]).exit_code == 1


def test_ci_runs_the_end_to_end_tests_before_the_tests_whose_closing_line_is_its_last() -> None:
    steps = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]

    assert [" ".join(step.split()[:2]) for step in steps] == [
        "make lint",
        "make e2e",
        "make scale",
        "make train-test",
        "make test",
    ]
