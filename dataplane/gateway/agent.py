"""The loop beside one HAProxy: takes tables, compares them with what HAProxy holds, and closes the difference.

It is level-triggered: each round reads HAProxy first, so a push that broke half-way, a HAProxy that started again or an update
that was missed are all the same case. It is never on the path of a request; while it is gone HAProxy serves on from what it
holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from contract.errors import ProtocolViolation
from contract.table import RoutingTable, limits_of
from dataplane.fence import lineage_of
from dataplane.gateway.config import GatewayConfig, mark_of
from dataplane.gateway.draining import Draining
from dataplane.gateway.files import Files
from dataplane.gateway.held import read_held
from dataplane.gateway.kept import Kept
from dataplane.gateway.metrics import GatewayCounts, GatewayView
from dataplane.gateway.runtime_api import CommandRefused, RuntimeApi, RuntimeUnavailable, reload_haproxy
from dataplane.gateway.servers import Server, hosts_of
from dataplane.gateway.tables import (
    Held,
    HotUsers,
    Step,
    Want,
    is_older,
    plan,
    users_of,
    want_of,
)
from dataplane.gateway.writing import write
from dataplane.tables_seen import TablesSeen

log = logging.getLogger("grfleet.gateway")
_AWAY_PERIOD_S = 0.05  # a HAProxy that starts again is wanted back at once
_RELOAD_AGAIN_S = 30.0  # a new process that refused its file would refuse it again
_REFUSED_AGAIN = 3
_STUCK_S = 30.0  # longer than a push of all tables into a busy HAProxy, and than all answers it may keep back


@dataclass(frozen=True)
class _Compared:
    """HAProxy was found to hold what was wanted, or to refuse it, and when (seconds); for a while it is not read again."""

    want: Want
    at_s: float
    result: str


class GatewayAgent:
    """Keeps one HAProxy what the table says.

    Parameters
    ----------
    config
        The configuration of that HAProxy.
    monotonic_s
        Clock for drains and for reading everything again.
    compare_s, reread_s
        How often servers and slots, and the hot-user table, are read from HAProxy although nothing hints at a difference.
    keep_users
        Leave the hot users that HAProxy holds until `set_users` says better: an agent that starts again moves nobody.
    source
        Where tables come from; one of another source is not taken from disk.

    Attributes
    ----------
    files
        What HAProxy starts from.
    source
        As it was given.
    """

    def __init__(
        self,
        config: GatewayConfig,
        *,
        monotonic_s: Callable[[], float],
        api: RuntimeApi | None = None,
        compare_s: float = 2.0,
        reread_s: float = 60.0,
        keep_users: bool = False,
        source: str = "",
    ) -> None:
        self.config = config
        self.counts, self.tables = GatewayCounts(), TablesSeen(monotonic_s)
        self.files = Files(monotonic_s=monotonic_s)
        self.settled = asyncio.Event()
        self._api = api or RuntimeApi(config.admin_socket)
        self._monotonic_s = monotonic_s
        self._compare_s = compare_s
        self._reread_s = reread_s
        self._table: RoutingTable | None = None
        self._lineage = 0
        self._hosts: frozenset[str] = frozenset()
        self._uid, self.source = "", source
        self._users: HotUsers | None = None if keep_users else HotUsers({})
        self._addresses: Mapping[str, str] = {}
        self._want: Want | None = None
        self._held_users: Mapping[str, int] | None = None
        self._compared: _Compared | None = None
        self._agreed: Want | None = None  # what HAProxy was once seen to hold
        self._contested: Want | None = None
        self._tried: Want | None = None
        self._refusals = 0
        self._read_s = -1e9
        self._process: str | None = None
        self._draining = Draining()
        self._work = asyncio.Event()
        self._held: Held | None = None
        self._answers = False
        self._mark = mark_of(config)
        self._outdated = False
        self._reloaded_s = -1e9
        self._holds_a_table = False
        self._round_s = monotonic_s()

    @property
    def generation(self) -> int:
        """Generation of the table in force, -1 before the first and after a tombstone."""
        return self.tables.generation

    @property
    def table(self) -> RoutingTable | None:
        """The table in force, None before the first."""
        return self._table

    @property
    def users(self) -> Mapping[str, str] | None:
        """Hot users in force (user key -> instance uid); None until HAProxy was asked for those that it holds."""
        return self._users.by_key if self._users is not None else None

    def down(self) -> frozenset[str]:
        """Return the uids of instances that HAProxy took to be down when it was last looked at."""
        if self._held is None or self._want is None:
            return frozenset()
        servers = self._held.servers
        return frozenset(s.uid for s in self._want.servers if s.id in servers and not servers[s.id].up)

    def offer(self, table: RoutingTable, *, uid: str = "") -> bool:
        """Take a table if its generation is new; say whether it was taken.

        Parameters
        ----------
        uid
            Of the published object, if it has one: generations of another object are not compared.

        Raises
        ------
        ProtocolViolation
            When its slots are no table, or two rows are one instance; the one in force stays.
        """
        lineage = lineage_of(uid)
        try:
            want = self._want_of(table, lineage, before=self._want if self._users is not None else None)
        except ProtocolViolation:
            self.tables.broken += 1
            raise
        if not self.tables.take(table, uid=uid):
            return False
        for row in want.refused:
            log.warning("an instance is left out", extra={"instance": row.name, "why": row.reason})
        self._table, self._lineage, self._uid = table, lineage, uid
        self._hosts = hosts_of(table.instances)  # asked for five times a second; of a thousand addresses it takes 8 ms
        if table.instances:  # a tombstone says nothing of them
            self._go_over_to(replace(self.config, said=limits_of(table)))
        self._set(want)
        self.write_files()
        return True

    def reconfigure(self, config: GatewayConfig) -> None:
        """Go over to another configuration: write it, and have HAProxy reloaded when the loop comes round.

        Raises
        ------
        ConfigError, OSError
            When it is none, or cannot be written; the one in force stays.
        """
        config = replace(config, said=self.config.said)
        self.files.write(config, self._servers(), self._kept())
        self._go_over_to(config)
        self._work.set()

    def _go_over_to(self, config: GatewayConfig) -> None:
        """Take a configuration for the one that HAProxy should run on; it is reloaded at once if it runs on another."""
        self.config, before, self._mark = config, self._mark, mark_of(config)
        if self._mark != before:
            self._reloaded_s = -1e9

    def set_users(self, users: Mapping[str, str]) -> None:
        """Replace the hot users (user key -> instance uid), at most `config.max_users` of them; the rest is left out."""
        limit = self.config.max_users
        self._users = HotUsers(dict(list(users.items())[:limit]) if len(users) > limit else dict(users))
        if self._table is not None:
            self._set(self._want_of(self._table, self._lineage))

    def set_addresses(self, addresses: Mapping[str, str]) -> None:
        """Replace the addresses of host names; an instance whose name has none is left out."""
        if addresses == self._addresses:
            return
        self._addresses = dict(addresses)
        if self._table is not None:
            self._set(self._want_of(self._table, self._lineage))
            self.write_files()

    @property
    def addresses(self) -> Mapping[str, str]:
        """Addresses of host names in force."""
        return self._addresses

    @property
    def hosts(self) -> frozenset[str]:
        """Host names in the table in force, for `set_addresses`."""
        return self._hosts

    def _want_of(self, table: RoutingTable, lineage: int, *, before: Want | None = None) -> Want:
        tls = self.config.ca_file is not None
        return want_of(table, self._users, lineage=lineage, before=before, addresses=self._addresses, tls=tls)

    def view(self) -> GatewayView:
        """What `/metrics` shows of this agent now."""
        return GatewayView(
            tables=self.tables,
            held=self._held,
            hot_users=len(self._held_users or ()),
            haproxy_answers=self._answers,
            refused_rows=len(self._want.refused) if self._want is not None else 0,
            haproxy_starts=self.counts.restarts_seen,
            haproxy_outdated=self._outdated,
            reloads=self.counts.reloads,
            results=self.counts.results,
            writes=self.counts.writes,
        )

    def unhealthy(self) -> list[str]:
        """Why this process should be started again; empty while its loop goes round."""
        stuck_s = self._monotonic_s() - self._round_s
        return [f"no round of the loop ended well for {stuck_s:.0f} s"] if stuck_s > _STUCK_S else []

    def unready(self) -> list[str]:
        """Why requests should not come here; empty while HAProxy answers and holds a table."""
        if not self._answers:
            return ["haproxy does not answer"]
        return [] if self._holds_a_table else ["haproxy does not hold a table yet"]

    def _set(self, want: Want) -> None:
        self._want = want
        self.settled.clear()
        self._work.set()

    def write_files(self) -> None:
        """Write haproxy.cfg and the maps as of the table in force; what cannot be written is `files.problem`, and tried again."""
        self.files.try_to_write(self.config, self._servers(), self._kept())

    def _kept(self) -> Kept | None:
        if self._table is None:
            return None
        return Kept(table=self._table, uid=self._uid, source=self.source, addresses=self._addresses)

    def _servers(self) -> tuple[Server, ...]:
        return self._want.servers if self._want is not None else ()

    async def run(self, *, period_s: float = 0.25) -> None:
        """Reconcile at every change and at least every `period_s` seconds, until cancelled."""
        try:
            while True:
                self._work.clear()
                await self.reconcile()
                try:
                    async with asyncio.timeout(period_s if self._answers else min(period_s, _AWAY_PERIOD_S)):
                        await self._work.wait()
                except TimeoutError:
                    pass
        finally:
            await self._api.close()

    async def reconcile(self) -> bool:
        """Make one round; say whether HAProxy now holds what the table wants (but for servers that still drain)."""
        self.counts.rounds += 1
        result = "failed"
        if self.files.due:
            self.write_files()
        try:
            result = await self._round()
        except RuntimeUnavailable as error:
            result = "unavailable"
            log.debug("haproxy does not answer", extra={"error": str(error)})
        except (CommandRefused, ProtocolViolation) as error:
            result = "refused"
            log.warning("haproxy refused a command", extra={"error": str(error)[:400]})
            self._note_refusal()
        except Exception:  # a round that fails must not end the gateway: the next one reads everything again
            log.exception("a round failed")
        self.counts.results[result] += 1
        self._answers = result not in ("unavailable", "failed")
        self._holds_a_table = self._answers and (self._holds_a_table or result in ("settled", "older"))
        if result != "failed":
            self._round_s = self._monotonic_s()
        if result in ("unavailable", "failed"):
            self._held_users = self._compared = None
        if result != "refused":
            self._refusals = 0
        return result == "settled"

    def _note_refusal(self) -> None:
        """Read all anew, where it refuses again and again only now and then: a hundred thousand users are megabytes."""
        self._refusals += 1
        self._held_users = self._compared = None
        if self._refusals >= _REFUSED_AGAIN and self._tried is not None:
            self._compared = _Compared(self._tried, self._monotonic_s(), "refused")

    async def _round(self) -> str:
        await self._notice_restart()
        self._tried = want = self._want
        if want is None:
            return "waiting"
        now_s = self._monotonic_s()
        if self._compared is not None and self._compared.want is want and now_s - self._compared.at_s < self._compare_s:
            return self._compared.result
        held, want = await self._read(want, now_s=now_s)
        older = is_older(held, want)
        if not older:
            self._notice_another_writer(held, want)
        overdue = self._draining.overdue(held, want, now_s=now_s, limit_s=self.config.drain_seconds)
        steps = plan(held, want, config=self.config, overdue=overdue)
        await self._write([step for step in steps if not step.later])
        if want is self._want and not older and not self.settled.is_set():
            log.info("haproxy holds the table", extra={"generation": want.generation, "servers": len(want.servers)})
            self.settled.set()
        await self._write([step for step in steps if step.later])
        if not older:
            self._held_users = want.users
        result = "older" if older else "settled"
        self._compared = _Compared(want, now_s, result) if not steps and not self._draining.since_s else None
        if self._compared is not None and not older:
            self._agreed = want
        return result

    async def _read(self, want: Want, *, now_s: float) -> tuple[Held, Want]:
        """Read what HAProxy holds, now and then with all of its hot users; an agent that starts again takes those over first."""
        if now_s - self._read_s >= self._reread_s:
            self._held_users = None
        if self._held_users is None:
            self._read_s = now_s
        self._held = held = await read_held(self._api, self.config, users=self._held_users)
        if self._held_users is None:
            self._held_users = held.users
        if self._users is None and self._table is not None:
            self._users = HotUsers(users_of(held, want))
            self._want = self._tried = want = self._want_of(self._table, self._lineage)
        return held, want

    def _notice_another_writer(self, held: Held, want: Want) -> None:
        """Say once of a table that HAProxy no longer holds it although it did: another agent writes another one."""
        if self._agreed is want and (held.lineage, held.generation) != (want.lineage, want.generation):
            if self._contested is not want:
                log.warning("somebody else writes this haproxy's tables; is there another agent, with another table?")
            self._contested = want

    async def _write(self, steps: Sequence[Step]) -> None:
        await write(steps, api=self._api, config=self.config, counts=self.counts)

    async def _notice_restart(self) -> None:
        """Follow a reload: the old process keeps this connection open, and says that it is stopping."""
        info = _fields(await self._api.ask("show info"))
        if info.get("Stopping", "0") != "0":
            await self._api.close()  # the next connection reaches its successor
            self._held_users = self._compared = None
            info = _fields(await self._api.ask("show info"))
            if info.get("Stopping", "0") != "0":
                raise RuntimeUnavailable("this HAProxy is stopping")
        process = f"{info.get('Pid')} {info.get('Start_time_sec')}"
        if process != self._process:
            if self._process is not None:
                self.counts.restarts_seen += 1
            self._process = process
            self._held = self._held_users = self._compared = self._agreed = None
        self._outdated = info.get("description") != self._mark
        if self._outdated:
            await self._reload()

    async def _reload(self) -> None:
        now_s = self._monotonic_s()
        if not self.files.written or self.files.problem or now_s - self._reloaded_s < _RELOAD_AGAIN_S:
            return
        self._reloaded_s = now_s
        if self.config.master_socket is None:
            log.warning("haproxy runs on another configuration than the one in its folder; reload it, or name its master socket")
            return
        log.info("haproxy is reloaded: its configuration has changed")
        self.counts.reloads += 1
        await reload_haproxy(self.config.master_socket)


def _fields(answer: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
