"""Async client of the agent contract, for the operator and the command line."""

from types import TracebackType
from typing import Self

import httpx

from contract import agent, http
from contract.residency import ResidencyReport, decode_report


class AgentClient:
    """Speaks the agent contract to one agent; errors as `EngineClient`'s.

    Parameters
    ----------
    url : str
        `http://host:port`, `https://host:port` or `unix:/path`.
    timeout_s : float
        Limit in seconds of each step of a call, such as connecting, or the next piece of the answer; of the whole of it four
        times as much.
    """

    def __init__(self, url: str, *, timeout_s: float = 2.0) -> None:
        base_url, transport = http.transport_for(url)
        self._http = httpx.AsyncClient(base_url=base_url + agent.PREFIX, transport=transport, timeout=timeout_s, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def put_intent(self, intent: agent.Intent) -> agent.IntentAnswer:
        """Hand over a signed intent; a refusal is an answer, not an error."""
        response = await http.fetch(self._http, "PUT", "/intent", body=intent, accept=(200, 400, 403, 409))
        return http.decode(response, agent.IntentAnswer)

    async def put_model(self, sha256: str, data: bytes) -> agent.ModelAnswer:
        """Hand over the bytes of the model that an accepted intent names; a refusal is an answer, not an error."""
        response = await http.fetch(self._http, "PUT", f"/model/{sha256}", content=data, accept=(200, 400, 409))
        return http.decode(response, agent.ModelAnswer)

    async def status(self) -> agent.AgentStatus:
        """Return what the agent and its engine are doing."""
        return http.decode(await http.fetch(self._http, "GET", "/status"), agent.AgentStatus)

    async def decisions(self, *, after: int = 0, limit: int | None = None) -> agent.DecisionsAnswer:
        """Return decisions with a sequence above `after`, oldest first, at most `limit` of them."""
        response = await http.fetch(self._http, "GET", "/decisions", params=http.query(after=after, limit=limit))
        return http.decode(response, agent.DecisionsAnswer)

    async def residency(self, *, cursor: int = 0) -> ResidencyReport | None:
        """Return whose state on the engine changed after `cursor`; None while the engine has not told, or does not tell."""
        response = await http.fetch(self._http, "GET", "/residency", params=http.query(cursor=cursor), accept=(200, 404))
        return decode_report(response.content) if response.status_code == 200 else None
