"""The cluster that this user's kubectl speaks to now: nothing is started, nothing of its nodes can be reached or broken.

The present context is copied once, so that switching contexts while tests run never sends a test to another cluster.
"""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

from testbed.node.namespaces import NodeError
from testbed.node.outside import OutsideCluster, find_kubectl
from testbed.node.provider import NotOfferedError

_ANSWER_SECONDS = 30.0


def why_not() -> str | None:
    """Why there is no current cluster; None if kubectl has a context (whether that answers shows when it is used)."""
    kubectl = find_kubectl()
    if kubectl is None:
        return "kubectl missing; run `grfleet testbed build`"
    done = subprocess.run([kubectl, "config", "current-context"], capture_output=True, text=True, timeout=30, check=False)
    return None if done.returncode == 0 else f"kubectl has no current context: {done.stderr.strip()}"


class CurrentCluster(OutsideCluster):
    """The cluster of ``$KUBECONFIG`` (or ``~/.kube/config``): a `testbed.node.provider.ClusterProvider` that starts nothing."""

    def _refusal(self) -> str | None:
        return why_not()

    def _connect(self) -> None:
        """Copy the context.

        Raises
        ------
        NodeError
            There is none, or its API server does not answer.
        """
        command = [str(self._kubectl), "config", "view", "--minify", "--flatten", "--raw"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
        if done.returncode != 0:
            raise NodeError(f"kubectl has no current context: {done.stderr.strip()}")
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(done.stdout)
        try:
            answer = self.kubectl("get", "--raw", "/readyz", check=False, timeout_seconds=_ANSWER_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise NodeError(f"the current cluster does not answer within {_ANSWER_SECONDS:.0f} s") from error
        if answer.returncode != 0:
            raise NodeError(f"the current cluster does not answer: {answer.stderr.strip()[-500:]}")

    def load_image(self, archive: Path) -> None:
        """Refused: a cluster of somebody else's takes images from its registry only.

        Raises
        ------
        NotOfferedError
            Always.
        """
        raise NotOfferedError("the current cluster takes no images from here; name images that it can pull")

    def fault(self, component: str) -> AbstractContextManager[None]:
        """Refused: its nodes are out of reach.

        Raises
        ------
        NotOfferedError
            Always.
        """
        raise NotOfferedError(f"the current cluster has no fault for {component}")

    def kill_container(self, namespace: str, pod: str, container: str) -> None:
        """Refused: the first process of a container cannot be killed from inside it.

        Raises
        ------
        NotOfferedError
            Always.
        """
        raise NotOfferedError(f"the current cluster cannot kill a container ({namespace}/{pod}/{container})")
