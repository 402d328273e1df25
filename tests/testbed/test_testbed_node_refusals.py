"""Where a node cannot run, the reason and the remedy are said, and nothing is started, downloaded or built."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import cgroups, state
from testbed.node import cluster, namespaces
from testbed.node.cluster import LocalCluster, why_not
from testbed.node.namespaces import Addresses, NodeError

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is in the cache, and nothing that is started here is seen by others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("GRFLEET_TESTBED_ASSETS", "KUBEBUILDER_ASSETS"):
        monkeypatch.delenv(name, raising=False)


def test_without_root_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)

    assert why_not() == "a real node needs root"
    with pytest.raises(NodeError, match="needs root"):
        LocalCluster().create()


def test_where_the_kernel_gives_no_namespaces_its_words_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unshare = tmp_path / "unshare"
    unshare.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    unshare.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 0)

    assert why_not() == "this machine gives no namespaces: unshare failed: Operation not permitted"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no control groups"),
        ({"cpuset/tasks": "", "memory/tasks": ""}, "no control groups with cpu, pids"),
        ({"cgroup.controllers": "cpu memory pids", "cgroup.subtree_control": ""}, "gives no control groups"),
    ],
    ids=["none", "version 1 without some", "version 2 that hands nothing down"],
)
def test_where_control_groups_are_withheld_the_reason_says_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], words: str
) -> None:
    mount = tmp_path / "cgroup"
    mount.mkdir()
    for name, text in files.items():
        (mount / name).parent.mkdir(exist_ok=True)
        (mount / name).write_text(text)
    monkeypatch.setattr(cgroups, "_MOUNT", mount)
    monkeypatch.setattr(cluster, "may_make_namespaces", lambda: None)

    reason = why_not()

    assert reason is not None
    assert words in reason
    assert not list(mount.rglob("grfleet-probe-*")), "the probe stayed"


def test_missing_programs_are_named_with_the_command_that_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "why_never", lambda: None)

    reason = why_not()

    assert reason is not None
    assert "kubelet" in reason
    assert "grfleet testbed build --node" in reason


def test_a_test_that_needs_a_node_is_skipped_loudly(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\nmarkers = ["node: x", "testbed: x"]\n')
    pytester.makeconftest("pytest_plugins = ['testbed.pytest_plugin']\n")
    pytester.makepyfile("def test_pods(node_cluster): pass\ndef test_more(node_parts): pass\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(cluster.__file__).parents[2]))

    ran = pytester.runpytest_subprocess("-p", "no:xdist", "-p", "no:cacheprovider")

    ran.assert_outcomes(skipped=2)
    ran.stdout.fnmatch_lines(["*2 tests did NOT run: no Kubernetes node; *grfleet testbed build --node*"])


def test_two_nodes_share_no_address() -> None:
    first, second = Addresses(0), Addresses(99)

    assert len({first.link, second.link, first.host, second.host, first.node, second.node, first.pods, second.pods}) == 8
    assert len(second.link) <= 15, "longer names are refused by the kernel"


@pytest.mark.parametrize("name", ["", "a/b", "grfleet-none-of-this-name"])
def test_removing_a_control_group_that_is_not_there_or_not_ours_does_nothing(name: str) -> None:
    assert cgroups.remove(name)


def test_a_record_written_before_there_were_nodes_is_still_read() -> None:
    old = '{"name": "a", "owner": null, "directory": "/d", "temporary": true, "url": "", "kubeconfig": "", "watchdog": null, '
    (state.runtime_directory() / "a.json").write_text(old + '"processes": []}')

    record = state.load("a")

    assert record is not None
    assert record.cgroup == ""
