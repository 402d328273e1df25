"""The picker on grpc.aio, as the benchmark compares it: what gRPC for Python costs, with and without a pick behind it.

Program: `python -m bench.picker_grpc nothing|picker asyncio|uvloop PORT TABLE POOL_KEY`. The first answers every message with a
constant and reads none of them; the second is the whole picker, behind another transport than the product's. Messages stay bytes
for gRPC in both.
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import uvloop
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from dataplane.follow import table_from
from dataplane.picker.chooser import PickLimits
from dataplane.picker.exchange import Edge, Exchange
from dataplane.picker.picker import Picker

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
GO_ON = (
    ext_proc.ProcessingResponse(request_headers=ext_proc.HeadersResponse()).SerializeToString(),
    ext_proc.ProcessingResponse(response_headers=ext_proc.HeadersResponse()).SerializeToString(),
)


async def nothing(_: object, context: Any) -> None:
    """Answer what comes first as request headers and the next as response headers."""
    for answer in GO_ON:
        if await context.read() is grpc.aio.EOF:
            return
        await context.write(answer)


def picking(open_exchange: Callable[[], Exchange]) -> Any:
    """Return the handler that has an exchange answer."""

    async def process(_: object, context: Any) -> None:
        exchange = open_exchange()
        try:
            while (raw := await context.read()) is not grpc.aio.EOF:
                answer = exchange.answer(raw)
                if answer is not None:
                    await context.write(answer)
        finally:
            exchange.close()

    return process


async def serve(process: Any, port: int) -> None:
    """Serve until killed."""
    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", 10_000)])
    method = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": method}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    what, loop, port, table, pool_key = sys.argv[1:]
    process: Any = nothing
    if what == "picker":
        edge = Edge(pool_key=Path(pool_key).read_bytes())
        picker = Picker(edge, limits=PickLimits(), monotonic_s=time.monotonic, rng=random.Random(1))
        picker.offer(table_from(Path(table).read_bytes()).table)
        process = picking(picker.exchange)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(serve(process, int(port)))


if __name__ == "__main__":
    main()
