"""Installs CustomResourceDefinitions on a control plane and waits until they can be used."""

from __future__ import annotations

from pathlib import Path

from testbed.control_plane import ControlPlane


def install_kinds(
    plane: ControlPlane, manifests: Path, *, field_manager: str = "grfleet-testbed", collect_at_once: bool = True
) -> None:
    """Apply every manifest of a folder and wait until its kinds are established.

    Parameters
    ----------
    collect_at_once
        Have the garbage collector know the new kinds now. It looks for them every 30 s only, and a new one knows them from the
        start, so the controllers start anew.

    Raises
    ------
    ValueError
        The folder holds no manifest.
    KubectlError
        The API server refused one, or a kind was not established within a minute.
    """
    if not any(manifests.glob("*.yaml")):
        raise ValueError(f"no manifests in {manifests}; run `make generate`")
    plane.kubectl("apply", "--server-side", f"--field-manager={field_manager}", "-f", str(manifests))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(manifests), timeout_seconds=90)
    if collect_at_once:
        plane.restart_controller_manager()
