"""kubectl as a subprocess: whose cluster it speaks to, and an error that carries what it said."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class KubectlError(RuntimeError):
    """kubectl ended with an error; the message carries the command and what it wrote to standard error."""


def environment_of(kubeconfig: Path, *, directory: Path) -> dict[str, str]:
    """Environment in which kubectl speaks to the cluster of a kubeconfig and keeps its cache in a directory of that cluster."""
    return {**os.environ, "KUBECONFIG": str(kubeconfig), "KUBECACHEDIR": str(directory / "kubectl-cache")}


def run_kubectl(
    program: Path,
    args: Sequence[str],
    *,
    environment: Mapping[str, str],
    input: str | None = None,
    check: bool = True,
    timeout_seconds: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run kubectl to its end.

    Raises
    ------
    KubectlError
        It failed and `check` is true.
    subprocess.TimeoutExpired
        It took too long.
    """
    done = subprocess.run(
        [str(program), *args],
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        text=True,
        capture_output=True,
        env=environment,
        timeout=timeout_seconds,
        check=False,
    )
    if check and done.returncode != 0:
        raise KubectlError(f"kubectl {' '.join(args)} ended with code {done.returncode}: {done.stderr.strip()}")
    return done
