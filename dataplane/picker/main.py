"""Command line of `grfleet-picker`: an endpoint picker for gateways that speak Envoy's external processing protocol."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import signal
import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from contract.sockets import CannotListen
from dataplane import edge, logs
from dataplane.follow import TableSource, source_of
from dataplane.hot_users import flags as hot_users_flags
from dataplane.hot_users.agents import ResidencyLoop
from dataplane.picker.chooser import PickLimits
from dataplane.picker.endpoints_file import EndpointsFile
from dataplane.picker.exchange import Edge
from dataplane.picker.http2_server import Health, serving
from dataplane.picker.http2_server import Service as GrpcService
from dataplane.picker.metrics import route_of
from dataplane.picker.picker import Picker
from dataplane.probes import probes

log = logging.getLogger("grfleet.picker")
_WRITE_AGAIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """Where and how the picker serves."""

    bind: str
    health_bind: str | None = None
    tls: ssl.SSLContext | None = None
    endpoints_file: Path | None = None
    cluster: str = "pool"
    hot_users: ResidencyLoop | None = None
    pool_key: Path | None = None
    tls_files: tuple[Path, Path] | None = None
    ca_file: Path | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT and return the exit code."""
    options = _parser().parse_args(argv)
    logs.configure(options.log_level)
    try:
        # Randomness spreads pauses, and requests without a user.
        picker = Picker(_edge(options), limits=_limits(options), monotonic_s=time.monotonic, rng=random.Random())
        source = source_of(options.table, on_problem=log.warning, rng=random.Random(), on_heard=picker.tables.heard)
        service = Service(
            bind=options.bind,
            health_bind=options.health_bind,
            tls=_tls(options),
            endpoints_file=Path(options.endpoints_file) if options.endpoints_file else None,
            cluster=options.cluster,
            hot_users=hot_users_flags.loop_of(options, picker, picker),
            pool_key=Path(options.pool_key),
            tls_files=(Path(options.tls_cert), Path(options.tls_key)) if options.tls_key else None,
            ca_file=Path(options.ca_file) if options.ca_file else None,
        )
        if service.endpoints_file is not None:
            service.endpoints_file.parent.mkdir(parents=True, exist_ok=True)
        return uvloop.run(run(picker, source, service))
    except (CannotListen, OSError, ValueError) as error:
        sys.stderr.write(f"grfleet-picker: {error}\n")
        return 2


async def run(picker: Picker, source: TableSource, service: Service) -> int:
    """Serve until a signal to end; requests under way are answered first."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    health, changed = Health(), asyncio.Event()
    file = EndpointsFile(service.endpoints_file, cluster=service.cluster)

    def tell() -> None:
        file.try_to_write(picker.chooser.fleet)
        changed.set()

    picker.on_change = tell

    def broken() -> None:
        picker.counts.broken += 1

    async with (
        serving(GrpcService(picker.exchange, broken, health), service.bind, tls=service.tls) as port,
        probes(route_of(picker, service.hot_users), service.health_bind) as health_url,
    ):
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(edge.follow_tables(picker, source, log=log)),
            asyncio.create_task(stop.wait()),
            asyncio.create_task(_become_ready(picker, health, changed, {"port": port, "health": health_url})),
        ]
        tasks.append(asyncio.create_task(follow_secrets(picker, service)))
        tasks.append(asyncio.create_task(keep_written(picker, file)))
        if service.hot_users is not None:
            tasks.append(asyncio.create_task(service.hot_users.run()))
        await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        failed = [r for r in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(r, Exception)]
        for failure in failed:
            log.error("the picker ends", extra={"error": repr(failure)[:400]})
    return 0 if stop.is_set() and not failed else 1


async def follow_secrets(picker: Picker, service: Service, *, period_s: float = edge.SECRET_PERIOD_S) -> None:
    """Take over another pool key, certificate or authority in the same files, for ever; one that is none changes nothing."""
    following = []
    if service.pool_key is not None:
        read_key = partial(edge.read_pool_key, service.pool_key)
        following.append(
            edge.follow_secret(read_key, picker.set_key, in_force=picker.pool_key, what="pool key", log=log, period_s=period_s)
        )
    if service.tls is not None and service.tls_files is not None:
        read_files, load = partial(_contents, service.tls_files), partial(_load_certificate, service.tls, service.tls_files)
        following.append(edge.follow_secret(read_files, load, in_force=None, what="certificate", log=log, period_s=period_s))
    if service.ca_file is not None and service.hot_users is not None:
        read_authorities, trust = service.ca_file.read_bytes, service.hot_users.trust
        following.append(
            edge.follow_secret(read_authorities, trust, in_force=None, what="file of authorities", log=log, period_s=period_s)
        )
    await asyncio.gather(*following)


async def keep_written(picker: Picker, file: EndpointsFile, *, period_s: float = _WRITE_AGAIN_S) -> None:
    """Try again, for ever, to write a file that the disk did not take."""
    while True:
        await asyncio.sleep(period_s)
        if file.problem:
            file.try_to_write(picker.chooser.fleet)


def _load_certificate(context: ssl.SSLContext, files: tuple[Path, Path], _: Sequence[bytes]) -> None:
    context.load_cert_chain(*files)


def _contents(paths: Sequence[Path]) -> list[bytes]:
    return [path.read_bytes() for path in paths]


async def _become_ready(picker: Picker, health: Health, changed: asyncio.Event, where: dict[str, object]) -> None:
    """Say so once the first table is there."""
    while picker.unready():
        changed.clear()
        await changed.wait()
    health.set_ready(True)
    sys.stdout.write(json.dumps({"ready": True, **where}) + "\n")
    sys.stdout.flush()


def _edge(options: argparse.Namespace) -> Edge:
    edge.check_names(id_header=options.id_header, key_header=options.key_header, key_id=options.key_id)
    return Edge(
        pool_key=edge.read_pool_key(Path(options.pool_key)),
        id_header=options.id_header.lower(),
        key_id=options.key_id,
        honour_echo=not options.ignore_choices,
        key_header=options.key_header.lower() if options.key_header is not None else None,
    )


def _limits(options: argparse.Namespace) -> PickLimits:
    percent, floor = options.bounded_load_percent, options.bounded_load_floor
    if percent is not None and 0 != percent < 100:
        raise ValueError("bounded load percent: 0 for no bound, or 100 and more")
    if min(floor or 0, options.max_in_flight) < 0 or options.endpoints < 1:
        raise ValueError("bounded load floor and max in flight are 0 or more, endpoints 1 or more")
    return PickLimits(percent=percent, floor=floor, most_in_flight=options.max_in_flight, endpoints=options.endpoints)


def _tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    if bool(options.tls_key) != bool(options.tls_cert):
        raise ValueError("tls: key and certificate belong together")
    if not options.tls_key:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(options.tls_cert, options.tls_key)
    return context


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grfleet-picker",
        description="Tells gateways of Envoy's family, over external processing, which instance holds a user's state.",
    )
    add = parser.add_argument
    edge.add_flags(parser)
    add(
        "--bind",
        default="127.0.0.1:9002",
        metavar="HOST:PORT",
        help="where gateways connect (port 0: a free one); default %(default)s",
    )
    add("--tls-cert", metavar="FILE", help="certificate chain, PEM; without it plain text is served")
    add("--tls-key", metavar="FILE", help="private key, PEM")
    add("--health-bind", metavar="HOST:PORT", help="/healthz, /readyz and /metrics over HTTP; default: none")
    add(
        "--endpoints-file",
        metavar="FILE",
        help="write the instances there for an Envoy that watches its folder; default: nowhere",
    )
    add("--cluster", default="pool", metavar="NAME", help="Envoy's name of the cluster in that file; default %(default)s")
    add(
        "--endpoints",
        type=int,
        default=3,
        metavar="N",
        help="endpoints named for a request, for the gateway's retries; default %(default)s",
    )
    add(
        "--bounded-load-percent",
        type=int,
        metavar="N",
        help="bound on an instance's load in percent of the mean, 0 for none; default: what the table says",
    )
    add(
        "--bounded-load-floor",
        type=int,
        metavar="N",
        help="requests in flight below which nobody is over the bound; default: what the table says",
    )
    add(
        "--max-in-flight",
        type=int,
        default=0,
        metavar="N",
        help="shed requests when every instance has so many in flight; default 0, never",
    )
    hot_users_flags.add_flags(parser)
    add(
        "--ca-file",
        metavar="FILE",
        help="authorities that verify agents which speak https; default: whom this machine trusts",
    )
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default %(default)s")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
