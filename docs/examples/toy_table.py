"""Prints a routing table for servers on this machine: `toy_table.py GENERATION NAME=PORT ...`; without a server, a tombstone."""

import sys

import msgspec

from contract.table import NOBODY, InstanceState, RoutingTable, TableInstance, pack_slots
from policies.routing.rendezvous import SLOTS, place


def main() -> None:
    servers = [text.split("=") for text in sys.argv[2:]]
    names = [name for name, _ in servers]
    instances = [
        TableInstance(
            name=name, uid=f"toy-{name}", address=f"http://127.0.0.1:{port}", weight_percent=100, state=InstanceState.READY
        )
        for name, port in servers
    ]
    owners = place(names, [100.0] * len(names)).tolist() if names else [NOBODY] * SLOTS
    table = RoutingTable(generation=int(sys.argv[1]), instances=instances, slots=pack_slots(owners))
    sys.stdout.write(msgspec.json.encode(table).decode() + "\n")


if __name__ == "__main__":
    main()
