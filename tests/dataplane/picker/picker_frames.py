"""Frames of HTTP/2 made by hand, a transport that keeps what is written, and a picker behind them."""

import random
import struct

import hpack
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from contract.keys import SLOTS
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots
from dataplane.picker import http2
from dataplane.picker.chooser import PickLimits
from dataplane.picker.exchange import Edge
from dataplane.picker.http2 import frame
from dataplane.picker.http2_server import PROCESS, GrpcProtocol, Health, Service
from dataplane.picker.picker import Picker


def picker() -> Picker:
    edge = Edge(pool_key=b"0123456789abcdef")
    made = Picker(edge, limits=PickLimits(), monotonic_s=lambda: 0.0, rng=random.Random(1))
    rows = [TableInstance(name="a", uid="ua", address="10.0.0.1:80", weight_percent=100, state=InstanceState.READY)]
    made.offer(RoutingTable(generation=1, instances=rows, slots=pack_slots([0] * SLOTS)))
    return made


def service_of(one: Picker) -> Service:
    return Service(one.exchange, lambda: None, Health(ready=True))


def asked(user: bytes = b"ann") -> bytes:
    message = ext_proc.ProcessingRequest(request_headers=ext_proc.HttpHeaders())
    message.request_headers.headers.headers.add(key="x-user-id", raw_value=user)
    return bytes(message.SerializeToString())


def piece(size: int) -> bytes:
    body = ext_proc.HttpBody(body=b"p" * size)
    return bytes(ext_proc.ProcessingRequest(request_body=body).SerializeToString())


def enveloped(message: bytes) -> bytes:
    return b"\x00" + struct.pack(">L", len(message)) + message


def opening(encoder: hpack.Encoder, number: int, path: str = PROCESS, *, more: int = 0) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "picker"), ("te", "trailers")]
    return frame(http2.HEADERS, http2.END_HEADERS | more, number, encoder.encode(fields))


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = self.paused = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_extra_info(self, name: str) -> None:
        assert name == "socket"

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of each."""
        found, at = [], 0
        while at < len(self.written):
            size = int.from_bytes(self.written[at : at + 3], "big")
            kind, flags, stream = self.written[at + 3], self.written[at + 4], int.from_bytes(self.written[at + 5 : at + 9], "big")
            found.append((kind, flags, stream, bytes(self.written[at + 9 : at + 9 + size])))
            at += 9 + size
        return found

    def status_of(self, stream: int) -> str:
        """The grpc-status that ends a stream."""
        blocks = [p for kind, flags, s, p in self.frames() if (kind, s) == (http2.HEADERS, stream) and flags & http2.END_STREAM]
        return dict(hpack.Decoder().decode(blocks[-1]))["grpc-status"] if blocks else "open"

    def data_of(self, stream: int) -> bytes:
        return b"".join(p for kind, _, s, p in self.frames() if (kind, s) == (http2.DATA, stream))


def connected(one: Picker) -> tuple[GrpcProtocol, Wire]:
    protocol, wire = GrpcProtocol(service_of(one)), Wire()
    protocol.connection_made(wire)  # type: ignore[arg-type]  # what of a transport is needed
    return protocol, wire


HELLO = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
