"""What HAProxy refuses again and again: all else is written, and all hot users are not read anew four times a second."""

from collections.abc import Callable
from dataclasses import replace

from gateway_world import Gateway, table

from contract.table import InstanceState, TableInstance

TLS = TableInstance(name="t", uid="uid-t", address="https://127.0.0.1:1", weight_percent=100, state=InstanceState.READY)


class Reads:
    """How often all hot users were read, and a clock that is moved by hand."""

    def __init__(self, gateway: Gateway) -> None:
        self.of_users, self.now_s = 0, 1000.0
        self._ask = gateway.agent._api.ask
        gateway.agent._api.ask = self.ask  # type: ignore[method-assign]  # seen from outside
        gateway.agent._monotonic_s = lambda: self.now_s

    async def ask(self, command: str) -> str:
        self.of_users += command == "show table gr_users"
        return await self._ask(command)


async def test_what_is_refused_is_tried_again_now_and_then_and_at_once_with_another_table_or_process(
    make: Callable[..., Gateway],
) -> None:
    gateway = make()
    for name in ("a", "b"):
        await gateway.toy(name)
    await gateway.start_haproxy()
    agent, rows, reads = gateway.agent, gateway.rows("a", "b"), Reads(gateway)
    agent.offer(table(1, rows))
    assert await agent.reconcile()
    agent.config = replace(agent.config, ca_file=gateway.folder / "unheard-of.pem")  # HAProxy was started without it

    async def rounds(count: int) -> int:
        """Let so many seconds pass, with four rounds in each."""
        before = reads.of_users
        for _ in range(4 * count):
            reads.now_s += 0.25
            assert not await agent.reconcile()
        return reads.of_users - before

    agent.offer(table(2, [*rows, TLS], owners=[slot % 2 for slot in range(4096)]))
    await rounds(2)
    assert agent.counts.results["refused"] == 8
    assert 4 <= await rounds(10) <= 5
    assert not agent.unready(), "all else is written"
    agent.set_users({"0" * 32: "uid-b"})
    assert await rounds(1) >= 1, "what is new does not wait"
    assert (await gateway.ask("anybody")).status == 200
    await rounds(3)
    agent._process = "another than the one that answers"
    assert await rounds(1) >= 1, "nor does a HAProxy that has started again"
    agent.offer(table(3, rows))
    assert await agent.reconcile()
