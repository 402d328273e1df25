"""The operator's own line to the agents: three calls of the agent contract over one aiohttp session for all of them.

`contract.AgentClient` speaks the whole contract and is right everywhere else. Here a call goes out for every instance each ten
seconds, and one session takes an eighth of the time of a client for each address, and next to no memory. An agent behind a Unix
socket, which needs a connector of its own, still gets an `AgentClient`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import partial
from typing import Literal

import aiohttp
import msgspec

from contract import agent, answers
from contract.agent import AgentStatus, Intent, IntentAnswer, ModelAnswer
from contract.errors import ProtocolViolation, Unreachable
from controllers.agent_book import AgentBook
from controllers.allocation.agents import TIMEOUT_SECONDS, AgentPort, Agents
from controllers.runtime.loop import Context

MAX_ANSWER_BYTES = 1 << 20
_TIMEOUT = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
_JSON, _BYTES = ({"content-type": kind} for kind in ("application/json", "application/octet-stream"))


def new_agents(ctx: Context, book: AgentBook) -> Agents:
    """Agents over the session of the process, counted in its metrics."""
    return Agents(
        book=book,
        clock=ctx.clock,
        rng=ctx.rng,
        connect=partial(connect, ctx.http),
        count=lambda call, outcome: ctx.metrics.agent_calls.labels(call, outcome).inc(),
    )


def connect(session: aiohttp.ClientSession, url: str) -> AgentPort:
    """A line to the agent at `url`: `http://host:port`, `https://host:port`, either with a path, or `unix:/path`."""
    # The client of the contract is imported when an address asks for it: httpx and all that it imports would take a twentieth of
    # the operator's memory, and agents in pods are reached without TLS.
    if url.startswith("unix:"):
        from contract.agent_client import AgentClient

        return AgentClient(url, timeout_s=TIMEOUT_SECONDS)
    if url.startswith("https:"):
        from contract.http import tls_context

        return SessionAgent(session, url, tls=tls_context())
    return SessionAgent(session, url)


class SessionAgent:
    """Implements `AgentPort`; every call raises Unreachable or ProtocolViolation.

    Parameters
    ----------
    tls
        For an https address: whom to trust. True means what Python trusts.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, *, tls: ssl.SSLContext | Literal[True] = True) -> None:
        self._session, self._tls = session, tls
        self._base = url.rstrip("/") + agent.PREFIX

    async def status(self) -> AgentStatus:
        return answers.decode(await self._call("GET", "/status", None, (200,)), AgentStatus)

    async def put_intent(self, intent: Intent) -> IntentAnswer:
        body = msgspec.json.encode(intent)
        return answers.decode(await self._call("PUT", "/intent", body, (200, 400, 403, 409)), IntentAnswer)

    async def put_model(self, sha256: str, data: bytes) -> ModelAnswer:
        return answers.decode(await self._call("PUT", f"/model/{sha256}", data, (200, 400, 409), headers=_BYTES), ModelAnswer)

    async def aclose(self) -> None:
        """The session belongs to the runtime."""

    async def _call(
        self, method: str, path: str, body: bytes | None, accept: tuple[int, ...], *, headers: Mapping[str, str] = _JSON
    ) -> bytes:
        try:
            async with self._session.request(
                method,
                self._base + path,
                data=body,
                headers=headers if body is not None else None,
                timeout=_TIMEOUT,
                ssl=self._tls,
                allow_redirects=False,
            ) as response:
                chunks = response.content.iter_any()
                content = await answers.read_bounded(chunks, call=f"{method} {path}", limit_bytes=MAX_ANSWER_BYTES)
                if response.status not in accept:
                    # Not a word of the body: this ends in a condition, and the address may be of anything the operator can reach.
                    raise ProtocolViolation(f"{method} {path}: status {response.status} is none of an agent")
                return content
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__}") from error
        except ValueError as error:
            raise ProtocolViolation(f"{method} {path}: {type(error).__name__}") from error
