"""What an end-to-end test may ask of a cluster, whoever provides it.

Tests written against this run on the testbed's own node (`testbed.node.cluster`), on kind (`testbed.node.kind_cluster`) and on
a cluster that is there already (`testbed.node.current_cluster`). What only some can do is refused with `NotOfferedError`, which
the end-to-end tests turn into a skip that the closing summary counts.
"""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol


class NotOfferedError(NotImplementedError):
    """This cluster cannot do that; the message says which one, and what."""


class ClusterProvider(Protocol):
    """A cluster with at least one node that runs pods."""

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of a cluster administrator."""
        ...

    def create(self) -> None:
        """Start it and wait until a node is Ready."""
        ...

    def destroy(self) -> None:
        """Stop it and leave nothing behind; does nothing when it is not running."""
        ...

    def load_image(self, archive: Path) -> None:
        """Make every image of a docker archive available to pods (with ``imagePullPolicy`` other than ``Always``).

        Raises
        ------
        NotOfferedError
            This cluster takes no images from here.
        """
        ...

    def kubectl(
        self, *args: str, input: str | None = None, check: bool = True, timeout_seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator."""
        ...

    def reach(self, target: str, port: int, *, namespace: str = "default") -> AbstractContextManager[str]:
        """``http://`` address at which this process reaches a port of ``pod/NAME`` or ``service/NAME``, while entered."""
        ...

    def fault(self, component: str) -> AbstractContextManager[None]:
        """Kill a component of the node (``kubelet``, ``containerd``, ``kube-proxy``, ``coredns``); it starts again on leaving.

        Raises
        ------
        NotOfferedError
            This cluster cannot.
        """
        ...

    def kill_container(self, namespace: str, pod: str, container: str) -> None:
        """Kill the first process of a container with SIGKILL, as a crash would.

        Raises
        ------
        NotOfferedError
            This cluster cannot.
        """
        ...
