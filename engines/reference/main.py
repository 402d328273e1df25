"""Console script of the reference engine: read the options, bind the socket, say where on stdout, serve until a signal."""

import argparse
import asyncio
import contextlib
import ipaddress
import json
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec
import uvloop
from aiohttp import web

from contract.listening import CannotListen, listening
from engines.reference.clock import ModelClock
from engines.reference.options import ConfigError, read_config
from engines.reference.server import application, serving_application
from engines.reference.shared_samples import SharedSamples
from simulator.core.instance import GRInstanceCore

#: How long open connections may hold the exit back; answers take microseconds, so nothing needs longer.
SHUTDOWN_S = 1.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `grfleet-reference-engine`."""
    options = parser().parse_args(arguments)
    try:
        config = read_config(options)
        core = GRInstanceCore(config, options.seed, start_id=secrets.token_hex(8))
        if options.warm:
            core.warm()
        token = options.token_file.read_text().strip() if options.token_file else None
        check_listen(options.listen, token)
        if options.serve is not None and not options.serve.startswith("http://"):
            raise ConfigError(f"--serve: {options.serve!r}; use http://host:PORT")
    except (ConfigError, ValueError, OSError, msgspec.MsgspecError) as error:
        fail(str(error))
    try:
        uvloop.run(serve(core, options.listen, token, options.serve))
    except CannotListen as error:
        fail(f"--listen or --serve: {error}")


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(
        prog="grfleet-reference-engine",
        description="A GR engine without an accelerator: real caches and a split that really moves, model time for latency.",
    )
    line.add_argument("--listen", required=True, help="unix:/path/to/socket or http://127.0.0.1:PORT (0 picks a free port)")
    line.add_argument(
        "--serve",
        metavar="URL",
        help="http://host:PORT at which callers of the pool rank, besides --listen; it changes no setting, so it needs no token",
    )
    line.add_argument("--token-file", type=Path, help="bearer token that callers must present; needed beyond loopback")
    line.add_argument("--config", type=Path, help="JSON file with any of the fields below and the accelerator's constants")
    line.add_argument("--seed", type=int, default=1, help="seeds the warm start")
    line.add_argument("--hbm-bytes", type=int, help="pool that the two caches share")
    line.add_argument("--emb-percent", type=int, help="share of the pool that EMB starts with")
    line.add_argument("--p99-ms", type=float, help="SLO; an edge of the latency histogram")
    line.add_argument("--rows-one-in", type=int, help="one embedding row in this many is simulated")
    line.add_argument("--users-one-in", type=int, help="one user in this many is reported as access sample")
    line.add_argument("--model", metavar="NAME:VERSION", help="model that the engine says it serves")
    line.add_argument("--host-bytes", type=int, help="host memory for the state of users that HBM evicts; 0 is no such tier")
    line.add_argument("--ssd-bytes", type=int, help="SSD below the host memory")
    line.add_argument("--max-split-change-bytes", type=int, help="largest change of embBytes in one revision")
    line.add_argument("--defer-shrinks-ms", type=float, help="hold every shrink of the KV cache back, for tests of callers")
    line.add_argument(
        "--refill-blocks-serving",
        action="store_const",
        const=True,
        help="let no request begin before the refill of a grown cache is over, as some engines do; callers are told",
    )
    line.add_argument("--warm", action="store_true", help="start with the EMB cache in its steady state")
    return line


def check_listen(listen: str, token: str | None) -> None:
    """Refuse an address that would be open to others without a token.

    Raises
    ------
    ConfigError
        Says what to change.
    """
    if listen.startswith("unix:"):
        return
    parts = urlsplit(listen)
    if parts.scheme != "http" or parts.hostname is None or parts.port is None:
        raise ConfigError(f"--listen: {listen!r}; use unix:/path or http://127.0.0.1:PORT")
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(parts.hostname).is_loopback:
            return
    if not token:
        raise ConfigError(f"--listen: {parts.hostname} is not a loopback address; give --token-file")


async def serve(core: GRInstanceCore, listen: str, token: str | None, serving: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT; print the address, or both, as one JSON line once ready."""
    clock = ModelClock(time.monotonic)
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    async with contextlib.AsyncExitStack() as stack:
        said: dict[str, object] = {"startId": core.start_id, "emulation": True}
        shared = SharedSamples(core.samples, start_id=core.start_id)
        stack.callback(shared.close)
        app = application(core, clock, token=token, shared=shared)
        said["listen"] = await stack.enter_async_context(listening(runner_of(app), listen))
        if serving is not None:
            runner = runner_of(serving_application(core, clock, shared))
            said["serve"] = await stack.enter_async_context(listening(runner, serving))
        open_ring(shared, listen)
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        await stopped.wait()


def open_ring(shared: SharedSamples, listen: str) -> None:
    """Put the ring of samples beside the socket, once that is ours; without it, or on TCP, samples go over HTTP only."""
    if not listen.startswith("unix:"):
        return
    path = Path(listen.removeprefix("unix:"))
    try:
        shared.open(path.with_name(f"{path.name}.samples"))
    except OSError as error:
        sys.stderr.write(f"grfleet-reference-engine: no ring of samples beside {listen}: {error}\n")


def runner_of(app: web.Application) -> web.AppRunner:
    """Return what serves an application until its listener ends."""
    return web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S)


def fail(message: str) -> NoReturn:
    """Say on stderr what is wrong and leave with status 2."""
    sys.stderr.write(f"grfleet-reference-engine: {message}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main()
