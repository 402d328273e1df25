"""The instances of the table as a file that Envoy watches, for an Envoy that nobody else tells of them.

Endpoint discovery over a file: each version is written beside and renamed over the one before, which Envoy notices by the folder.
Whoever drains stays in it, so that a caller that names it still gets there; it leaves with the table that no longer has it.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from dataplane.picker.fleet import Fleet

log = logging.getLogger("grfleet.picker")
_TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


def assignment_of(fleet: Fleet, *, cluster: str) -> str:
    """Return the discovery response for one cluster, JSON."""
    endpoints = [
        {
            "endpoint": {"address": {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}},
            "health_status": "HEALTHY" if each.serving else "DRAINING",
            "load_balancing_weight": max(1, round(100 * each.weight)),
        }
        for each in fleet.members
        for host, _, port in (each.address.rpartition(":"),)
    ]
    resource = {"@type": _TYPE, "cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}] if endpoints else []}
    return json.dumps({"version_info": str(fleet.generation), "resources": [resource]})


class EndpointsFile:
    """The file, if there is one. Picks do not need it, so a disk that does not take it ends nothing.

    Attributes
    ----------
    problem
        Why it is not of the table in force; empty where it is.
    """

    def __init__(self, path: Path | None, *, cluster: str) -> None:
        self._path, self._cluster = path, cluster
        self.problem = ""

    def try_to_write(self, fleet: Fleet) -> None:
        """Write it; what the disk does not take is said once, and stays a `problem`."""
        if self._path is None:
            return
        try:
            write(self._path, assignment_of(fleet, cluster=self._cluster))
            self.problem = ""
        except OSError as error:
            if str(error) != self.problem:
                log.error("the file of endpoints cannot be written", extra={"error": str(error)[:400]})
            self.problem = str(error)


def write(path: Path, text: str) -> None:
    """Put a text in place of a file, in one step."""
    part = path.with_name(f".{path.name}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "w") as file:
        file.write(text)
    part.replace(path)
