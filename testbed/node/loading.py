"""Images into a node that another process has started: `grfleet testbed up --node --detach` has returned, its node runs on.

What the starting process knows is in the record of the testbed: the first process of the node's namespaces and the kubeconfig.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed import processes
from testbed.debian import Tree
from testbed.node import configuration
from testbed.node.namespaces import INIT_NAME, NodeError
from testbed.processes import Identity
from testbed.state import Record

_LOAD_SECONDS = 600


def choose_node(records: Sequence[Record], *, kubeconfig: str) -> tuple[Record, Identity]:
    """The record of the node that a user means, and the first process of its namespaces.

    Parameters
    ----------
    records
        Everything the testbed runs for this user.
    kubeconfig
        What ``KUBECONFIG`` says, may be empty: one of the records' own decides among several nodes.

    Raises
    ------
    NodeError
        No node runs, or several do and the kubeconfig is of none of them.
    """
    nodes = [(r, p) for r in records for p in r.processes if p.name == INIT_NAME and processes.is_alive(p)]
    meant = [each for each in nodes if each[0].kubeconfig == kubeconfig]
    if len(meant) == 1:
        return meant[0]
    if not nodes:
        raise NodeError("no node of the testbed runs here; start one with `grfleet testbed up --node --detach`")
    if len(nodes) > 1:
        shown = "\n".join(f"  export KUBECONFIG={record.kubeconfig}" for record, _ in nodes)
        raise NodeError(f"{len(nodes)} nodes run here; say which one you mean:\n{shown}")
    return nodes[0]


def load(archive: Path, *, init: Identity, tree: Tree) -> list[str]:
    """Import every image of a docker or OCI archive; returns their names.

    Raises
    ------
    NodeError
        The archive cannot be read, or containerd refused it.
    """
    enter = ["nsenter", f"--target={init.pid}", "--mount", "--net", "--pid", "--"]
    ctr = [str(tree.program("ctr")), "--address", configuration.SOCKET, "--namespace", "k8s.io"]
    try:
        with archive.open("rb") as stream:  # through a pipe, for the node may not see the archive's folder
            done = subprocess.run(
                [*enter, *ctr, "images", "import", "-"],
                stdin=stream,
                capture_output=True,
                text=True,
                env=tree.environment(),
                timeout=_LOAD_SECONDS,
                check=False,
            )
    except OSError as error:
        raise NodeError(f"{archive}: {error.strerror}") from error
    if done.returncode != 0:
        raise NodeError(f"containerd does not take {archive}: {done.stderr.strip()[-500:]}")
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("unpacking ")]
