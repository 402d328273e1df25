"""Opening the address that an engine or an agent serves on: a Unix socket of its owner's, or TCP.

A path on which somebody answers is never taken away from them: two agents beside one engine would fight over its split. Only
what a killed process left behind is removed.
"""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web


class CannotListen(Exception):
    """The address cannot be served on; the message says why and what would be accepted."""


@contextlib.asynccontextmanager
async def listening(runner: web.BaseRunner, url: str) -> AsyncIterator[str]:
    """Serve on `unix:/path` or `http://host:port` (port 0 takes a free one) inside the block; gives the address in force.

    At the end of the block the runner is cleaned up and a Unix socket is removed.

    Raises
    ------
    CannotListen
        When the address has another form, is taken, or the system refuses it.
    """
    try:
        await runner.setup()
        address = await _open(runner, url)
        try:
            yield address
        finally:
            if url.startswith("unix:"):
                await asyncio.to_thread(Path(url.removeprefix("unix:")).unlink, missing_ok=True)
    finally:
        await runner.cleanup()


async def _open(runner: web.BaseRunner, url: str) -> str:
    try:
        if url.startswith("unix:"):
            await _listen_on_path(runner, Path(url.removeprefix("unix:")))
            return url
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise CannotListen(f"{url}: use http://host:port or unix:/path")
        await web.TCPSite(runner, parts.hostname, parts.port or 0).start()
    except (OSError, ValueError) as error:
        raise CannotListen(f"{url}: {error}") from error
    host, port = runner.addresses[-1][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _listen_on_path(runner: web.BaseRunner, path: Path) -> None:
    if await asyncio.to_thread(_is_answered, path):
        raise CannotListen(f"unix:{path}: another process answers there; stop it or choose another path")
    with _owner_only():
        await web.UnixSite(runner, str(path)).start()  # replaces a socket that nobody answers


def _is_answered(path: Path) -> bool:
    """Say whether somebody accepts connections there."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False  # binding refuses to replace a file that is no socket
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except TimeoutError:
            return True  # a full backlog: alive and busy
    return True


@contextlib.contextmanager
def _owner_only() -> Iterator[None]:
    """Create files with mode 0600 inside the block, so that there is no moment at which others could connect."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
