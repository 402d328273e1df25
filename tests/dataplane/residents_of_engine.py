"""An engine that tells whose state it holds, and a reader of what its agent says of that."""

from contract import engine
from contract.errors import Unreachable
from contract.residency import InstanceLoad, ResidencyReport
from dataplane.agent.residency import ResidencyShelf
from simulator.core.config import InstanceConfig
from simulator.core.instance import GRInstanceCore

UP = InstanceLoad(reachable=True)


def user(number: int) -> str:
    return f"{number:032x}"


class Engine:
    """A real core behind the one call that matters here; it may restart, and be silent."""

    def __init__(self) -> None:
        self.starts = self.calls = 0
        self.silent = False
        self.restart()

    def restart(self) -> None:
        self.starts += 1
        entry = 32 * 8192
        config = InstanceConfig(pool_bytes=8 * entry, granule_bytes=1 << 16, emb_percent=50, host_bytes=2 * entry)
        self.core = GRInstanceCore(config, seed=1, start_id=f"start-{self.starts}")
        self.now = 0.0

    def rank(self, who: int) -> None:
        self.now += 1000.0
        request = engine.RankRequest(
            request_id=f"r{self.now}", user_key=user(who), model_version="1", history_tokens=20, candidates=1
        )
        self.core.rank(request, self.now)

    def held(self) -> dict[str, tuple[int, int, int]]:
        held = {
            key[0]: self.core.histories.tokens_of(key) for key in (*self.core.kv.keys_oldest_first(), *self.core.lower.users())
        }
        return {key: tokens for key, tokens in held.items() if any(tokens)}

    async def residency(self, cursor: int, *, most: int) -> ResidencyReport | None:
        self.calls += 1
        if self.silent:
            raise Unreachable("silent")
        return self.core.residency(cursor, now_ms=self.now, most=most)


class Reader:
    """Follows the rules of the contract."""

    def __init__(self) -> None:
        self.cursor, self.start_id = 0, ""
        self.tokens: dict[str, tuple[int, int, int]] = {}

    async def read(self, shelf: ResidencyShelf) -> None:
        report = await shelf.report(self.cursor, uid="uid-1", load=UP)
        if report is None:
            return
        if report.start_id != self.start_id and report.since != 0:
            self.cursor, self.start_id = 0, ""
            return await self.read(shelf)
        if report.since == 0:
            self.tokens.clear()
        else:
            assert report.since == self.cursor
        self.cursor, self.start_id = report.cursor, report.start_id
        for state in report.users:
            self.tokens[state.key] = (state.tokens_hbm, state.tokens_host, state.tokens_ssd)
            if state.gone:
                del self.tokens[state.key]
