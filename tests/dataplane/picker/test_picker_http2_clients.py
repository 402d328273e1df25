"""The picker's HTTP/2 as the client of gRPC finds it: long messages, health, TLS, and its end."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from picker_frames import asked, picker, piece, service_of

from dataplane.picker.http2_server import PROCESS, Health, serving
from dataplane.picker.picker import Picker


@asynccontextmanager
async def served(one: Picker, *, tls: ssl.SSLContext | None = None, grace_s: float = 5.0) -> AsyncIterator[int]:
    async with serving(service_of(one), "127.0.0.1:0", tls=tls, grace_s=grace_s) as port:
        yield port


Method = Callable[..., "grpc.aio.StreamStreamCall"]


def process_of(channel: "grpc.aio.Channel") -> Method:
    method: Method = channel.stream_stream(PROCESS)
    return method


async def test_the_client_of_grpc_gets_long_messages_back_in_many_streams_at_once() -> None:
    one = picker()
    async with served(one) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

        async def talk(size: int) -> None:
            call = process_of(channel)()
            for message in (asked(), piece(size), piece(size)):
                await call.write(message)
                answer = ext_proc.ProcessingResponse.FromString(await call.read())
            assert len(answer.request_body.response.body_mutation.streamed_response.body) == size
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK

        await asyncio.gather(*(talk(size) for size in (0, 1, 16_379, 16_384, 65_535, 1_000_000, 3_000_000) * 3))
        assert one.counts.streams == 0


async def test_a_stop_lets_streams_end_and_takes_no_more() -> None:
    one = picker()
    async with grpc.aio.insecure_channel("127.0.0.1:1") as _:
        async with served(one) as port:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            call = process_of(channel)()
            await call.write(asked())
            await call.read()
            ending = asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(call.done_writing()))
        assert await call.code() is grpc.StatusCode.OK
        ending.cancel()
        await channel.close()
    assert one.counts.streams == 0


async def test_whoever_watches_the_health_is_told_each_change_and_keeps_no_picker_from_ending() -> None:
    service = service_of(picker())
    service.health = Health(ready=False)
    kinds = health_pb2.HealthCheckResponse
    async with asyncio.timeout(60), serving(service, "127.0.0.1:0", grace_s=1000.0) as port:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        stub = health_pb2_grpc.HealthStub(channel)
        ready = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        other = stub.Watch(health_pb2.HealthCheckRequest(service="another"))
        assert (await ready.read()).status == kinds.NOT_SERVING
        assert (await other.read()).status == kinds.SERVICE_UNKNOWN
        service.health.set_ready(True)
        assert (await ready.read()).status == kinds.SERVING
    assert (await ready.read()).status == kinds.NOT_SERVING
    assert await ready.code() is grpc.StatusCode.UNAVAILABLE
    await channel.close()


async def test_a_stream_that_never_ends_is_cut_after_the_grace() -> None:
    one = picker()
    async with served(one, grace_s=0.05) as port:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        call = process_of(channel)()
        await call.write(asked())
        await call.read()
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    await channel.close()
    assert one.counts.streams == 0


async def test_over_tls_too(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "picker")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("picker")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (tmp_path / "cert.pem").write_bytes(pem)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with served(picker(), tls=context) as port:
        options = [("grpc.ssl_target_name_override", "picker")]
        credentials = grpc.ssl_channel_credentials(pem)
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="liveness"))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
