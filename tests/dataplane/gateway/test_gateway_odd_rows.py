"""Rows whose addresses are odd, in a real HAProxy: it holds what is an address, and what is none keeps nobody from the others."""

import msgspec
from gateway_world import Gateway, row, table, until

ODD = [
    "[::ffff:127.0.0.1]",
    "[::1.2.3.4]",
    "[1::2:3:4:5:0:8]",
    "0.0.0.0",
    "224.0.0.1",
    "[fe80::1%lo]",
    "no-such-name",
    "127.0.0.1:0",
]


async def test_haproxy_comes_to_rest_whatever_addresses_a_table_has_and_starts_again_from_its_file(gateway: Gateway) -> None:
    rows = [*gateway.rows("a", "b", "c")]
    rows += [msgspec.structs.replace(row(f"odd-{n}", 81), address=f"http://{host}") for n, host in enumerate(ODD)]
    await gateway.offer(table(2**62, rows, owners=[slot % 3 for slot in range(4096)]))
    await until(lambda: gateway.agent._compared is not None)  # it looked again, and there was nothing left to do
    assert gateway.agent.unready() == []
    assert {each.name for each in gateway.agent._want.refused} == {"odd-5", "odd-6", "odd-7"}
    await gateway.kill_haproxy()
    await gateway.start_haproxy()
    assert (await gateway.ask("user-1")).status == 200
