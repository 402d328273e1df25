"""External processing over grpc.aio: each stream is an exchange, bytes in and bytes out, beside the health service of gRPC."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from dataplane.picker.exchange import Exchange

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
READINESS = ("", "readiness", SERVICE)
LIVENESS = "liveness"
log = logging.getLogger("grfleet.picker")


class Health:
    """What the health service says: alive from the start, ready when told so."""

    def __init__(self) -> None:
        self.servicer = health_aio.HealthServicer()

    async def set(self, *, ready: bool) -> None:
        """Say whether requests may come."""
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        await self.servicer.set(LIVENESS, serving)
        for name in READINESS:
            await self.servicer.set(name, serving if ready else not_serving)


def handler(open_exchange: Callable[[], Exchange], *, on_broken: Callable[[], None]) -> Any:
    """Return the handler of the service; messages stay bytes until an exchange reads them."""

    async def process(_: object, context: Any) -> None:
        exchange = open_exchange()
        read, write, eof = context.read, context.write, grpc.aio.EOF
        try:
            while (raw := await read()) is not eof:
                answer = exchange.answer(raw)
                if answer is not None:
                    await write(answer)
        except DecodeError:
            on_broken()
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a ProcessingRequest")
        finally:
            exchange.close()

    method = grpc.stream_stream_rpc_method_handler(process)
    return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})


@contextlib.asynccontextmanager
async def serving(
    processor: Any, health: Health, bind: str, *, tls: tuple[bytes, bytes] | None = None, grace_s: float = 5.0
) -> AsyncIterator[int]:
    """Serve inside the block; gives the port.

    Parameters
    ----------
    tls
        Private key and certificate chain, PEM; None serves plain text.
    grace_s
        How long requests under way may take at the end.

    Raises
    ------
    OSError
        When the address is taken or the system refuses it.
    """
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", 10_000)])
    server.add_generic_rpc_handlers((processor,))
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer, server)
    try:
        port = server.add_insecure_port(bind) if tls is None else server.add_secure_port(bind, grpc.ssl_server_credentials([tls]))
    except RuntimeError as error:
        raise OSError(f"{bind}: {error}") from error
    await server.start()
    try:
        yield int(port)
    finally:
        await health.set(ready=False)
        await server.stop(grace_s)
