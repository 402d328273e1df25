"""The files from which a HAProxy starts, its configuration and its maps, as of the table in force; and that table for its agent.

A HAProxy that runs is told of tables by its runtime API, so a disk that is full or read-only costs the next start its knowledge
of the table and nothing else: it is said, and tried again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from dataplane.gateway.config import GatewayConfig, render, render_maps
from dataplane.gateway.kept import TABLE_FILE, Kept
from dataplane.gateway.servers import Server

log = logging.getLogger("grfleet.gateway")
_AGAIN_S = 5.0


class Files:
    """The files of one HAProxy.

    Attributes
    ----------
    written
        Whether they were ever written.
    problem
        Why they are not of the table in force; empty where they are.
    """

    def __init__(self, *, monotonic_s: Callable[[], float]) -> None:
        self.written = False
        self.problem = ""
        self._monotonic_s = monotonic_s
        self._tried_s = -1e9

    def write(self, config: GatewayConfig, servers: tuple[Server, ...], kept: Kept | None) -> None:
        """Write haproxy.cfg, the maps and the table, if there is one, each in one step and for the owner's eyes only.

        Raises
        ------
        ConfigError
            When the configuration is none.
        OSError
            When the disk does not take them.
        """
        text = render(config, servers)
        for path, entries in zip(config.map_paths, render_maps(servers), strict=True):
            _write(path, entries.encode())
        _write(config.directory / "haproxy.cfg", text.encode())
        if kept is not None:
            _write(config.directory / TABLE_FILE, kept.encoded())
        self.written, self.problem = True, ""

    def try_to_write(self, config: GatewayConfig, servers: tuple[Server, ...], kept: Kept | None) -> None:
        """Write them; what the disk does not take is said once, and stays a `problem`."""
        self._tried_s = self._monotonic_s()
        try:
            self.write(config, servers, kept)
        except OSError as error:
            if str(error) != self.problem:
                log.error("haproxy's files cannot be written; its next start would miss them", extra={"error": str(error)[:400]})
            self.problem = str(error)

    @property
    def due(self) -> bool:
        """Whether it is time to try again."""
        return bool(self.problem) and self._monotonic_s() - self._tried_s >= _AGAIN_S


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    part.replace(path)
