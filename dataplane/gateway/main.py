"""Command line of `grfleet-gateway`: writes a HAProxy's configuration, and keeps its tables what the routing table says."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from contract.sockets import CannotListen
from dataplane import edge, logs
from dataplane.edge import ConfigError
from dataplane.follow import TableSource, source_of
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.config import HAPROXY_ENVIRONMENT, GatewayConfig, validate
from dataplane.gateway.folder import alone_in
from dataplane.gateway.health import route_of
from dataplane.gateway.kept import kept_in
from dataplane.gateway.resolve import HostBook, system_lookup
from dataplane.gateway.runtime_api import RuntimeApi, RuntimeUnavailable, process_of
from dataplane.hot_users import flags as hot_users_flags
from dataplane.hot_users.agents import ResidencyLoop
from dataplane.probes import probes

log = logging.getLogger("grfleet.gateway")
_FIRST_TABLE_S = 2.0
_GENTLE_STOP_S = 5.0
_HOSTS_PERIOD_S = 15.0
_LOOK_S = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT and return the exit code."""
    options = _parser().parse_args(argv)
    logs.configure(options.log_level)
    try:
        if options.run_haproxy is not None and shutil.which(options.run_haproxy) is None:
            raise ConfigError(f"--run-haproxy {options.run_haproxy!r}: there is no such program")
        config = _config(options)
        validate(config)
        agent = GatewayAgent(config, monotonic_s=time.monotonic, keep_users=options.agents is not None, source=options.table)
        hot_users = hot_users_flags.loop_of(options, agent, config)
        config.directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # who may call the socket of the peers may set tables
        # Randomness only spreads pauses.
        source = source_of(options.table, on_problem=log.warning, rng=random.Random(), on_heard=agent.tables.heard)
    except (ConfigError, OSError, ValueError) as error:
        sys.stderr.write(f"grfleet-gateway: {error}\n")
        return 2
    if options.render_only:
        return asyncio.run(_render(agent, source))
    try:
        with alone_in(config.directory):
            return asyncio.run(_run(agent, source, options, hot_users))
    except CannotListen as error:
        sys.stderr.write(f"grfleet-gateway: {error}\n")
        return 2


async def first_files(agent: GatewayAgent, source: TableSource) -> None:
    """Write the files for HAProxy's start, with the first table if one comes soon, else with the one that a start before kept.

    Without either, those that lie there stay as they are: they may have servers.
    """
    try:
        async with asyncio.timeout(_FIRST_TABLE_S):
            async for published in source.tables():
                edge.offer(agent, published.table, uid=published.uid, log=log)
                if agent.generation >= 0:
                    return
    except TimeoutError:
        log.warning("no table yet; the one that was kept serves")
        kept = await asyncio.to_thread(kept_in, agent.config.directory, source=agent.source) if agent.table is None else None
        if kept is not None:
            agent.set_addresses(kept.addresses)
            edge.offer(agent, kept.table, uid=kept.uid, log=log)
    if not agent.files.written and not await asyncio.to_thread((agent.config.directory / "haproxy.cfg").exists):
        agent.write_files()


async def follow_key(agent: GatewayAgent, path: Path, *, period_s: float = edge.SECRET_PERIOD_S) -> None:
    """Go over to another pool key when its file changes, for ever; a file that holds none is told once and changes nothing."""

    def take(pool_key: bytes) -> None:
        agent.reconfigure(replace(agent.config, pool_key=pool_key))

    read = partial(edge.read_pool_key, path)
    await edge.follow_secret(read, take, in_force=agent.config.pool_key, what="pool key", log=log, period_s=period_s)


async def follow_authorities(
    agent: GatewayAgent, hot_users: ResidencyLoop | None, path: Path, *, period_s: float = edge.SECRET_PERIOD_S
) -> None:
    """Go over to other authorities when their file changes, for ever; a file that holds none is told once and changes nothing."""

    def take(authorities: bytes) -> None:
        edge.trusting(authorities)
        if hot_users is not None:
            hot_users.trust(authorities)
        agent.reconfigure(replace(agent.config, authorities=authorities))

    await edge.follow_secret(
        path.read_bytes, take, in_force=agent.config.authorities, what="file of authorities", log=log, period_s=period_s
    )


async def follow_hosts(agent: GatewayAgent, book: HostBook, *, period_s: float = _HOSTS_PERIOD_S) -> None:
    """Keep the addresses of the table's host names: look up new ones at once and all of them every `period_s`, for ever."""
    due_s, last = 0.0, frozenset[str]()
    while True:
        hosts, now_s = agent.hosts, time.monotonic()
        if hosts and (hosts != last or now_s >= due_s):
            agent.set_addresses(await book.refresh(hosts))
            due_s, last = now_s + period_s, hosts
        await asyncio.sleep(_LOOK_S)


async def _render(agent: GatewayAgent, source: TableSource) -> int:
    await first_files(agent, source)
    if agent.files.problem:
        sys.stderr.write(f"grfleet-gateway: {agent.files.problem}\n")
        return 2
    print(agent.config.directory / "haproxy.cfg")  # noqa: T201  # the answer of the command
    return 0


async def _run(agent: GatewayAgent, source: TableSource, options: argparse.Namespace, hot_users: ResidencyLoop | None) -> int:
    try:
        async with probes(route_of(agent, hot_users), options.health_bind) as health:
            await first_files(agent, source)
            return await _serve(agent, source, options, health, hot_users)
    except CannotListen as error:
        sys.stderr.write(f"grfleet-gateway: --health-bind {error}\n")
        return 2


async def _serve(
    agent: GatewayAgent,
    source: TableSource,
    options: argparse.Namespace,
    health: str | None,
    hot_users: ResidencyLoop | None,
) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    process = await _start_haproxy(options.run_haproxy, agent.config) if options.run_haproxy is not None else None
    tasks: list[asyncio.Task[object]] = [
        asyncio.create_task(edge.follow_tables(agent, source, log=log)),
        asyncio.create_task(follow_key(agent, Path(options.pool_key))),
        asyncio.create_task(
            follow_hosts(agent, HostBook(system_lookup, on_problem=lambda text: log.warning(text), known=agent.addresses))
        ),
        *([asyncio.create_task(follow_authorities(agent, hot_users, ca_file))] if (ca_file := agent.config.ca_file) else []),
        asyncio.create_task(agent.run()),
        asyncio.create_task(stop.wait()),
        *([asyncio.create_task(hot_users.run())] if hot_users is not None else []),
    ]
    announcing = asyncio.create_task(_announce(agent, health))
    if process is not None:
        tasks.append(asyncio.create_task(process.wait()))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, announcing):
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [r for r in results if isinstance(r, Exception)]
    for failure in failed:
        log.error("the gateway ends", extra={"error": repr(failure)[:400]})
    if process is not None:
        await _stop_haproxy(process)
    return 0 if stop.is_set() and not failed else 1


async def _announce(agent: GatewayAgent, health: str | None) -> None:
    """Say where requests arrive, once HAProxy holds the first table."""
    await agent.settled.wait()
    ready = {"ready": True, "bind": agent.config.bind, "haproxySocket": str(agent.config.admin_socket), "health": health}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()


async def _stop_haproxy(process: asyncio.subprocess.Process) -> None:
    """Let requests in flight be answered, but do not wait for callers that only keep their connections."""
    for number, patience_s in ((signal.SIGUSR1, _GENTLE_STOP_S), (signal.SIGTERM, _GENTLE_STOP_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), patience_s)
            return


async def _start_haproxy(program: str, config: GatewayConfig) -> asyncio.subprocess.Process:
    """Start it with a master, which can be asked for a reload; one that a killed agent left behind ends once this one serves."""
    arguments = ["-W", "-S", f"{config.master_socket},mode,600", "-f", str(config.directory / "haproxy.cfg")]
    api = RuntimeApi(config.admin_socket)
    with contextlib.suppress(RuntimeUnavailable):
        left = await process_of(api)
        log.warning("a haproxy serves here already; it is relieved", extra={"pid": left})
        arguments += ["-sf", left]
    await api.close()
    # Stdout is the agent's alone: whoever reads it would else wait for a HAProxy that outlives its agent.
    return await asyncio.create_subprocess_exec(
        program, *arguments, stdout=asyncio.subprocess.DEVNULL, env={**HAPROXY_ENVIRONMENT, **os.environ}
    )


def _config(options: argparse.Namespace) -> GatewayConfig:
    directory = Path(options.directory).absolute()
    ca_file = Path(options.ca_file).absolute() if options.ca_file else None
    bind = options.bind
    if bind.endswith(":0"):
        bind = f"{bind[:-2]}:{_free_port(bind[:-2])}"
    return GatewayConfig(
        pool_key=edge.read_pool_key(Path(options.pool_key)),
        bind=bind,
        admin_socket=Path(options.haproxy_socket).absolute() if options.haproxy_socket else directory / "haproxy.sock",
        master_socket=_master_socket(options, directory),
        directory=directory,
        id_header=options.id_header,
        key_header=options.key_header,
        key_id=options.key_id,
        ca_file=ca_file,
        authorities=_authorities(ca_file),
        bounded_load_percent=options.bounded_load_percent,
        peers=dict(_peer(text) for text in options.peer),
        local_peer=options.local_peer,
        check_path=options.check_path,
        honour_echo=not options.ignore_choices,
        metrics_bind=options.metrics_bind,
        max_connections=options.max_connections,
        retriable_bytes=options.retriable_bytes,
        threads=options.threads,
        drain_seconds=options.drain_seconds,
    )


def _authorities(ca_file: Path | None) -> bytes:
    if ca_file is None:
        return b""
    found = ca_file.read_bytes()
    edge.trusting(found)  # refused here with a word, rather than by HAProxy
    return found


def _master_socket(options: argparse.Namespace, directory: Path) -> Path | None:
    if options.haproxy_master is not None:
        return Path(options.haproxy_master).absolute()
    return directory / "master.sock" if options.run_haproxy is not None else None


def _peer(text: str) -> tuple[str, str]:
    name, separator, address = text.partition("=")
    if not separator:
        raise ConfigError(f"--peer {text}: use NAME=HOST:PORT")
    return name, address


def _free_port(host: str) -> int:
    host = host.strip("[]").removeprefix("*")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grfleet-gateway",
        description="Writes a HAProxy's configuration and keeps its servers and tables what a pool's routing table says.",
    )
    add = parser.add_argument
    edge.add_flags(parser)
    add("--directory", required=True, metavar="DIR", help="where haproxy.cfg and its maps are written, for HAProxy to read")
    add("--haproxy-socket", metavar="PATH", help="runtime API of HAProxy; default DIR/haproxy.sock")
    add(
        "--bind",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where requests arrive (port 0: a free one); default %(default)s",
    )
    add(
        "--haproxy-master",
        metavar="PATH",
        help="master CLI of HAProxy (-W -S PATH), by which it is reloaded when a value changes",
    )
    add("--run-haproxy", metavar="PROGRAM", help="start this HAProxy too, and end with it; otherwise it is started by others")
    add("--render-only", action="store_true", help="write the files, print the path of haproxy.cfg, and end")
    add(
        "--bounded-load-percent",
        type=int,
        metavar="N",
        help="bound of the fallback hash, 200 or more; default: what the table says, 200 at least",
    )
    add("--peer", action="append", default=[], metavar="NAME=HOST:PORT", help="a replica, this one included; may be repeated")
    add("--local-peer", default="local", metavar="NAME", help="which of the peers this is; default %(default)s")
    add("--check-path", metavar="PATH", help="health check by HTTP, such as /gr/v1/ready; default: the port opens")
    add(
        "--ca-file",
        metavar="FILE",
        help="authorities that verify instances and agents which speak https; default: such instances are left out, and such "
        "agents are verified by whom this machine trusts",
    )
    add("--metrics-bind", metavar="HOST:PORT", help="HAProxy's Prometheus metrics, at /metrics")
    add("--health-bind", metavar="HOST:PORT", help="the agent's own /healthz, /readyz and /metrics (port 0: a free one)")
    add("--max-connections", type=int, default=4000, metavar="N", help="default %(default)s")
    add(
        "--retriable-bytes",
        type=int,
        default=32_768,
        metavar="N",
        help="largest request, body included, that is tried again elsewhere once it was sent, 16384 or more; default %(default)s",
    )
    add("--threads", type=int, default=1, metavar="N", help="threads of HAProxy; default %(default)s")
    add("--drain-seconds", type=int, default=60, metavar="S", help="how long a server that left may finish; default %(default)s")
    hot_users_flags.add_flags(parser)
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default %(default)s")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
