"""Opening the address that an engine or an agent serves on: a Unix socket of its owner's, or TCP.

A path on which somebody answers is never taken away from them: two agents beside one engine would fight over its split. Only
what a killed process left behind is removed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from contract.sockets import CannotListen, is_answered, owner_only

__all__ = ["CannotListen", "listening"]


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
    if await asyncio.to_thread(is_answered, path):
        raise CannotListen(f"unix:{path}: another process answers there; stop it or choose another path")
    with owner_only():
        await web.UnixSite(runner, str(path)).start()  # replaces a socket that nobody answers
