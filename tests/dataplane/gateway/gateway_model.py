"""A model of what HAProxy does with the commands of the runtime API, for tests that want many of them."""

from dataclasses import replace
from pathlib import Path

from dataplane.gateway.config import GatewayConfig
from dataplane.gateway.tables import GENERATION_KEY, LINEAGE_KEY, Held, HeldServer

CONFIG = GatewayConfig(
    pool_key=b"0123456789abcdef", bind="127.0.0.1:1", admin_socket=Path("/tmp/m/a.sock"), directory=Path("/tmp/m")
)
_ADMIN = {"ready": 0, "drain": 8, "maint": 1}


class Model:
    """Holds servers, tables and maps, and answers as HAProxy 2.6 does."""

    def __init__(self) -> None:
        self.servers: dict[int, HeldServer] = {}
        self.entries: dict[str, dict[str, int]] = {"gr_slots": {}, "gr_users": {}, "gr_ids": {}}
        self.maps: dict[str, dict[str, str]] = {str(path): {} for path in CONFIG.map_paths}
        self.refuses: set[str] = set()

    def held(self) -> Held:
        slots = {int(key): value for key, value in self.entries["gr_slots"].items()}
        names, echoes = (dict(entries) for entries in self.maps.values())
        generation, lineage = slots.pop(GENERATION_KEY, 0), slots.pop(LINEAGE_KEY, 0)
        users = dict(self.entries["gr_users"])
        return Held(
            servers=dict(self.servers),
            slots=slots,
            users=users,
            generation=generation,
            lineage=lineage,
            names=names,
            echoes=echoes,
            ids=frozenset(int(key) for key, value in self.entries["gr_ids"].items() if int(key) == value),
        )

    def run(self, command: str) -> str:
        if any(command.startswith(start) for start in self.refuses):
            return "refused."
        match command.split():
            case ["add", "server", label, address, "id", number, "weight", weight, *_]:
                if int(number) in self.servers or not label.endswith(f"/s{number}"):
                    return "already there."
                self.servers[int(number)] = HeldServer(
                    id=int(number), address=address, weight=int(weight), admin_state=1, in_use=0
                )
                return "New server registered."
            case ["enable", "server", label]:
                return self._change(label, admin_state=0)
            case ["enable", "health", label]:
                return self._change(label)
            case ["set", "server", label, "state", state]:
                return self._change(label, admin_state=_ADMIN[state])
            case ["set", "server", label, "weight", weight]:
                return self._change(label, weight=int(weight))
            case ["set", "server", label, "addr", host, "port", port]:
                self._change(label, address=f"{host}:{port}")
                return "IP changed"
            case ["del", "server", label]:
                server = self.servers.get(self._id(label))
                if server is None or server.admin_state != 1 or server.in_use:
                    return "cannot remove it."
                del self.servers[server.id]
                return "Server deleted."
            case ["shutdown", "sessions", "server", label]:
                return self._change(label, in_use=0)
            case ["set", "table", name, "key", key, "data.gpt0" | "data.server_id" as what, value]:
                if (what == "data.server_id") != (name == "gr_ids"):
                    return "Data type not stored in this table."
                self.entries[name][key] = int(value)
                return ""
            case ["clear", "table", name, "key", key]:
                self.entries[name].pop(key, None)
                return ""
            case [("add" | "set") as how, "map", path, key, value]:
                if (how == "set") != (key in self.maps[path]):
                    return "entry not found."
                self.maps[path][key] = value
                return ""
            case ["del", "map", path, key]:
                return "" if self.maps[path].pop(key, None) is not None else "Key not found."
        return "Unknown command."

    def _id(self, label: str) -> int:
        return int(label.rpartition("/s")[2])

    def _change(self, label: str, **changes: object) -> str:
        server = self.servers.get(self._id(label))
        if server is None:
            return "No such server."
        self.servers[server.id] = replace(server, **changes)  # type: ignore[arg-type]  # names come from the lines above
        return ""
