"""Asks the agents of a pool's instances for residency, and brings what comes of it into force, round after round.

One round asks every agent at most once, from its own cursor; then reports are decoded, merged and weighed on a thread of their
own, so that a hundred thousand users do not keep HAProxy's tables waiting. Nothing here is on the path of a request: with all
agents gone, or this loop, the overrides in force stay until their time is up.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from contract.agent import PREFIX
from contract.errors import ProtocolViolation, Unreachable
from contract.residency import MAX_OVERRIDES, decode_report, pack_overrides
from contract.table import RoutingTable, TableInstance, TableLimits, limits_of, unpack_slots
from dataplane.edge import trusting
from dataplane.hot_users.metrics import ResidencyMetrics
from dataplane.hot_users.residents import Chosen, Residents, ResidentsView
from dataplane.http.line import HttpLine
from policies.routing.types import Limits

log = logging.getLogger("grfleet.gateway")
AT_ONCE = 32
"""Agents that are asked at the same time; of twice as many the answers are in memory together."""
_HEARD_TOGETHER = AT_ONCE // 2
NOTED = 10_000
PERIOD_S = 2.0
BUSY_SHARE = 0.1
"""Rounds come further apart when they take longer, so that merging and weighing take no more of a core than this."""
_TIMEOUT_S = 1.0
_LOOK_S = 0.25
_NAME = re.compile(r"[\w.-]{1,253}")


class Addresses:
    """Where the agent of an instance is: by a pattern with {host} and {name}, or by a file of URLs by instance name.

    Raises
    ------
    ValueError
        When the text is neither.
    """

    def __init__(self, text: str) -> None:
        self._file = None if "{" in text else Path(text)
        self._pattern = text
        self._urls: Mapping[str, str] = {}
        self._read_at: int | None = None
        self._problem = ""
        if self._file is None:
            example = self._filled("host", "name")
            if "{" in example or "}" in example:
                raise ValueError(f"--agents {text}: only {{host}} and {{name}} may stand in braces")
            HttpLine(example, timeout_s=_TIMEOUT_S)

    def of(self, row: TableInstance) -> str | None:
        """Return the URL of an agent, None where nothing is known."""
        if self._file is not None:
            return self._from_file().get(row.name)
        try:
            host = urlsplit(row.address if "//" in row.address else f"//{row.address}").hostname or ""
        except ValueError:
            return None
        if not host or not _NAME.fullmatch(row.name):
            return None
        return self._filled(f"[{host}]" if ":" in host else host, row.name)

    def _filled(self, host: str, name: str) -> str:
        return self._pattern.replace("{host}", host).replace("{name}", name)

    def _from_file(self) -> Mapping[str, str]:
        assert self._file is not None
        try:
            changed = self._file.stat().st_mtime_ns
            if changed != self._read_at:
                self._urls = msgspec.json.decode(self._file.read_bytes(), type=dict[str, str])
                self._read_at, self._problem = changed, ""
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if str(error) != self._problem:  # once, and not for each instance of each round
                self._problem = str(error)
                log.warning("addresses of agents cannot be read", extra={"error": self._problem[:200]})
        return self._urls


class UsersFace(Protocol):
    """What is needed of the gateway's agent."""

    @property
    def table(self) -> RoutingTable | None: ...

    @property
    def users(self) -> Mapping[str, str] | None: ...

    def down(self) -> frozenset[str]: ...

    def set_users(self, users: Mapping[str, str]) -> None: ...


@dataclass(frozen=True)
class _Answer:
    uid: str
    body: bytes | None


class ResidencyLoop:
    """Keeps the hot users of one gateway what its agents report.

    Parameters
    ----------
    gateway
        Whose table is followed and whose users are set.
    residents
        What is known.
    addresses
        Of the agents.
    monotonic_s
        Clock of reports and overrides.
    rng
        Spreads the pauses.
    period_s
        Time between two rounds.
    limits_under
        Limits of the hot users under a table that says this of them; None: those that `residents` has.
    """

    def __init__(
        self,
        gateway: UsersFace,
        residents: Residents,
        addresses: Addresses,
        *,
        monotonic_s: Callable[[], float],
        rng: random.Random,
        period_s: float = PERIOD_S,
        limits_under: Callable[[TableLimits], Limits] | None = None,
    ) -> None:
        self._gateway = gateway
        self._residents = residents
        self._addresses = addresses
        self._monotonic_s = monotonic_s
        self._rng = rng
        self._name = f"{rng.getrandbits(48):x}"  # revisions of another process are never taken for these
        self._period_s = period_s
        self._limits_under = limits_under
        self._routed: deque[tuple[str, str, float]] = deque(maxlen=NOTED)
        self._lines: dict[str, tuple[str, HttpLine | None]] = {}  # None for an address that is none, which is said once
        self._tls: ssl.SSLContext | None = None
        self._table: RoutingTable | None = None
        self._adopted = False
        self._chosen = Chosen(users={})
        self._packed: bytes | None = None
        self._revision = 0
        self._metrics = ResidencyMetrics()
        self.rounds = 0
        self.round_s = 0.0

    def trust(self, authorities: bytes) -> None:
        """Verify agents that speak https by these authorities, PEM, from the next connection on.

        Raises
        ------
        ConfigError
            When there is none among them; those before stay.
        """
        self._tls = trusting(authorities)
        self._lines = {uid: ("", line) for uid, (_, line) in self._lines.items()}  # replaced as if agents had moved

    async def run(self) -> None:
        """Go round for ever; a new table is weighed at once, with what is known."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.aclose)
            due_s = self._monotonic_s()
            while True:
                asking = self._monotonic_s() >= due_s
                if asking or self._gateway.table is not self._table:
                    try:
                        await self.round(ask=asking)
                    except Exception:
                        log.exception("a round of residency failed")
                    if asking:
                        pause_s = max(self._period_s, self.round_s / BUSY_SHARE)
                        due_s = self._monotonic_s() + pause_s * self._rng.uniform(0.9, 1.1)
                await asyncio.sleep(_LOOK_S)

    async def round(self, *, ask: bool = True) -> None:
        """Ask every agent, merge, weigh, and set the users if they differ; nothing before there is a table."""
        table, held = self._gateway.table, self._gateway.users
        if table is None or held is None:
            return
        self.round_s = 0.0
        if await asyncio.to_thread(self._follow, table, held):
            self._packed = None  # clients keep their overrides for another time now
            self._revision += 1
        if ask:
            await self._drop_lines({row.uid for row in table.instances})
            await self._ask_all(table.instances)
        chosen, changed = await asyncio.to_thread(self._choose, held, self._gateway.down())
        self.rounds += 1
        if changed:
            log.info("hot users", extra={"overrides": len(chosen.users), "known": chosen.known, "moved": chosen.moved})
            self._gateway.set_users(chosen.users)
            self._packed = None
            self._revision += 1
        self._chosen = chosen

    async def _ask_all(self, rows: Sequence[TableInstance]) -> None:
        """Ask agents and take in what they say as it comes: those that hang wait side by side, and keep waiting at most the last
        few answers, too few to be worth a thread."""
        rest, said, hearing = iter(rows), list[_Answer](), asyncio.Lock()

        async def hear(*, least: int) -> None:
            async with hearing:
                if len(said) >= least:
                    taken = said.copy()
                    said.clear()
                    await asyncio.to_thread(self._hear, taken)

        async def go_through() -> None:
            for row in rest:
                said.append(await self._ask(row))
                if len(said) >= _HEARD_TOGETHER:
                    await hear(least=_HEARD_TOGETHER)

        async with asyncio.TaskGroup() as asking:
            for _ in range(min(AT_ONCE, len(rows))):
                asking.create_task(go_through())
        await hear(least=1)

    async def _ask(self, row: TableInstance) -> _Answer:
        line = await self._line_to(row)
        if line is None:
            return _Answer(row.uid, None)
        try:
            response = await line.call("GET", f"{PREFIX}/residency?cursor={self._residents.cursor_of(row.uid)}")
        except (Unreachable, ProtocolViolation) as error:
            log.debug("an agent does not tell", extra={"instance": row.name, "error": str(error)[:200]})
            return _Answer(row.uid, None)
        return _Answer(row.uid, response.body if response.status == 200 else None)

    def _follow(self, table: RoutingTable, held: Mapping[str, str]) -> bool:
        """Take over what is new; say whether the limits are."""
        changed = False
        if not self._adopted:
            self._adopted = True
            self._residents.adopt(held, now_ms=self._monotonic_s() * 1000.0)
        if table is not self._table:
            if self._limits_under is not None:
                changed = self._residents.set_limits(self._limits_under(limits_of(table)))
            self._residents.follow(table.instances, unpack_slots(table.slots, instances=len(table.instances)))
            self._table = table
        return changed

    def _hear(self, answers: Sequence[_Answer]) -> None:
        began_s = self._monotonic_s()
        for answer in answers:
            if answer.body is None:
                self._residents.missed()
                continue
            try:
                self._residents.heard(answer.uid, decode_report(answer.body), now_ms=began_s * 1000.0)
            except ProtocolViolation as error:
                self._residents.missed()
                log.warning("a report cannot be used", extra={"uid": answer.uid, "error": str(error)[:200]})
        self.round_s += self._monotonic_s() - began_s

    def _choose(self, held: Mapping[str, str], down: frozenset[str]) -> tuple[Chosen, bool]:
        """Weigh; say also whether it comes to something else than what is held."""
        began_s = self._monotonic_s()
        for _ in range(len(self._routed)):
            user_key, uid, sent_ms = self._routed.popleft()
            self._residents.routed(user_key, uid, now_ms=sent_ms)
        chosen = self._residents.choose(now_ms=began_s * 1000.0, down=down)
        changed = chosen.users is not self._chosen.users and chosen.users != held
        self.round_s += self._monotonic_s() - began_s
        return chosen, changed

    async def _line_to(self, row: TableInstance) -> HttpLine | None:
        url = self._addresses.of(row)
        if url is None:
            return None
        known = self._lines.get(row.uid)
        if known is not None and known[0] == url:
            return known[1]
        await self._drop_line(row.uid)
        line = None
        try:
            line = HttpLine(url, timeout_s=_TIMEOUT_S, tls=self._tls)
        except ValueError as error:
            log.warning("no address of an agent", extra={"instance": row.name, "error": str(error)[:200]})
        self._lines[row.uid] = (url, line)
        return line

    async def _drop_lines(self, staying: set[str]) -> None:
        for uid in [uid for uid in self._lines if uid not in staying]:
            await self._drop_line(uid)

    async def _drop_line(self, uid: str) -> None:
        _, line = self._lines.pop(uid, ("", None))
        if line is not None:
            await line.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """Close the connections to agents."""
        await self._drop_lines(set())

    def routed(self, user_key: str, uid: str) -> None:
        """Note that a request was just sent to an instance, for faces that see requests; at most `NOTED` between two rounds."""
        self._routed.append((user_key, uid, self._monotonic_s() * 1000.0))

    # -- what others ask -----------------------------------------------------------------------------------------------------

    def metrics_text(self) -> bytes:
        """Return what is shown to Prometheus."""
        return self._metrics.text(self.view())

    def view(self) -> ResidentsView:
        """Return the figures behind it."""
        view = self._residents.view(now_ms=self._monotonic_s() * 1000.0)
        return replace(view, round_s=self.round_s)

    def overrides(self, *, known: str) -> bytes | None:
        """Return the overrides in force, packed, for clients; None where `known` is theirs, and before the first round."""
        revision = f"{self._name}-{self._revision}"
        if known == revision or not self.rounds:
            return None
        if self._packed is None:
            users = self._chosen.users
            if len(users) > MAX_OVERRIDES:
                users = dict(list(users.items())[:MAX_OVERRIDES])
            self._packed = msgspec.json.encode(pack_overrides(users, for_ms=self._residents.limits.ttl_ms, revision=revision))
        return self._packed
