"""One bounded JSON call over httpx, shared by the engine and the agent client."""

import asyncio
import functools
import importlib.util
import ssl
import sys
from typing import Any

import httpx
import msgspec

from contract import answers
from contract.answers import MAX_ANSWER_BYTES, Answer
from contract.errors import ProtocolViolation, Unreachable

KEEP_ALIVE_SECONDS = 60.0
"""Longer than the pause between two polls of the same agent, shorter than aiohttp's servers keep an idle connection."""

# httpcore imports sniffio several times a request and does well without it. A failed import is searched for anew each time, which
# costs more than the rest of a request on loopback; None in sys.modules makes the failure cheap.
if importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]  # the documented way to block an import


def transport_for(url: str) -> tuple[str, httpx.AsyncHTTPTransport]:
    """Return (base URL, transport) for `http://...`, `https://...` or `unix:/path`.

    Raises
    ------
    ValueError
        When the URL has another scheme.
    """
    limits = httpx.Limits(max_connections=8, max_keepalive_connections=2, keepalive_expiry=KEEP_ALIVE_SECONDS)
    if url.startswith("unix:"):
        path = url.removeprefix("unix:")
        return "http://engine", httpx.AsyncHTTPTransport(uds=path, verify=tls_context(), limits=limits)
    if url.startswith(("http://", "https://")):
        return url.rstrip("/"), httpx.AsyncHTTPTransport(verify=tls_context(), limits=limits)
    raise ValueError(f"{url!r}: use http://host:port, https://host:port or unix:/path/to/socket")


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return the one TLS context of this process: making one reads every trusted certificate, too dear for a client each."""
    return httpx.create_ssl_context()


async def fetch(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    *,
    body: msgspec.Struct | None = None,
    content: bytes | None = None,
    params: dict[str, str] | None = None,
    accept: tuple[int, ...] = (200,),
) -> httpx.Response:
    """Send one request, with a JSON body or with bytes as they are, and return the answer, read up to MAX_ANSWER_BYTES.

    Raises
    ------
    Unreachable
        When there is no answer, or it is not whole in time.
    ProtocolViolation
        When the status code is none of `accept` or the body is too large.
    """
    payload = msgspec.json.encode(body) if body is not None else content
    kind = "application/json" if body is not None else "application/octet-stream"
    headers = {"content-type": kind} if payload is not None else None
    try:
        async with (
            asyncio.timeout(_whole_s(client.timeout)),
            client.stream(method, path, content=payload, params=params, headers=headers) as response,
        ):
            read = await answers.read_bounded(response.aiter_bytes(), call=f"{method} {path}", limit_bytes=MAX_ANSWER_BYTES)
    except (httpx.HTTPError, TimeoutError) as error:
        raise Unreachable(f"{method} {path}: {type(error).__name__}") from error
    if response.status_code not in accept:
        raise ProtocolViolation(f"{method} {path}: status {response.status_code}, {read[:200]!r}")
    # A streamed response keeps no body; hand back one that does.
    return httpx.Response(response.status_code, headers=response.headers, content=read)


def _whole_s(timeout: httpx.Timeout) -> float | None:
    """Limit of a call in seconds, the sum of its steps: that of reading begins anew with each byte that comes."""
    steps = (timeout.pool, timeout.connect, timeout.write, timeout.read)
    return None if None in steps else sum(step for step in steps if step is not None)


def decode(response: httpx.Response, kind: type[Answer]) -> Answer:
    """Return the typed body of an answer; ProtocolViolation names the field that is wrong."""
    return answers.decode(response.content, kind)


def query(**values: Any) -> dict[str, str]:
    """Return query parameters without those that are None."""
    return {name: str(value) for name, value in values.items() if value is not None}
