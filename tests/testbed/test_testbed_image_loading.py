"""Images reach a node that another process has started, and the user is asked when it is not clear which one is meant."""

from __future__ import annotations

import os
import re
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from documented import commands, read, run

from testbed import processes
from testbed.images import product
from testbed.node.loading import choose_node
from testbed.node.namespaces import INIT_NAME, NodeError
from testbed.processes import Identity
from testbed.state import Record

_CHART = Path(__file__).resolve().parent.parent.parent / "charts" / "grfleet"


def record(name: str, *started: Identity) -> Record:
    return Record(name=name, owner=None, directory="/d", temporary=True, kubeconfig=f"/d/{name}", processes=started)


def alive(name: str) -> Identity:
    return processes.identify(name, os.getpid())


def test_the_images_have_the_names_that_the_chart_looks_for(tmp_path: Path) -> None:
    values = yaml.safe_load((_CHART / "values.yaml").read_text())
    version = yaml.safe_load((_CHART / "Chart.yaml").read_text())["appVersion"]

    built = product.build_release(tmp_path / "images.tar")

    assert built["operator"] == f"{values['image']['repository']}:{version}"
    assert built["agent"] == f"{values['agent']['image']['repository']}:{version}"
    assert built["picker"] == f"{values['picker']['image']['repository']}:{version}"
    with tarfile.open(built.archive) as opened:
        names = opened.getnames()
    assert {"manifest.json", "index.json", "oci-layout"} <= set(names)


def test_the_command_on_the_page_writes_the_archive_and_names_what_is_in_it(tmp_path: Path) -> None:
    (command,) = commands("docs/images.md")
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    ran = run(command.replace("out/", f"{tmp_path}/"), within={**os.environ, "PATH": programs})

    assert ran.returncode == 0, ran.stderr
    named = re.findall(r"^\| `(grfleet/[a-z-]+)` \|", read("docs/images.md"), re.MULTILINE)
    assert [line.split(":")[0] for line in ran.stdout.splitlines()] == named
    assert (tmp_path / "grfleet-images.tar").exists()


def test_the_only_node_is_meant_beside_control_planes_that_have_none() -> None:
    plane, node = record("plane", alive("etcd")), record("node", alive("etcd"), alive(INIT_NAME))

    assert choose_node([plane, node], kubeconfig="/somewhere/else")[0] is node


def test_of_several_nodes_the_kubeconfig_says_which_and_without_it_the_user_is_asked() -> None:
    nodes = [record(name, alive(INIT_NAME)) for name in ("one", "two")]

    assert choose_node(nodes, kubeconfig="/d/two")[0] is nodes[1]
    with pytest.raises(NodeError, match=r"export KUBECONFIG=/d/one\n.*export KUBECONFIG=/d/two"):
        choose_node(nodes, kubeconfig="")


def test_where_no_node_runs_the_message_has_the_command_that_starts_one() -> None:
    ended = Identity(INIT_NAME, pid=os.getpid(), start=1)

    with pytest.raises(NodeError, match="grfleet testbed up --node --detach"):
        choose_node([record("plane", alive("etcd")), record("gone", ended)], kubeconfig="/d/plane")
