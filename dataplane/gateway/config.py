"""The configuration of a gateway's HAProxy, rendered from validated values.

A request's user id is hashed at the edge and taken out of the request; what HAProxy stores, logs and shows is the user key
alone. The instance is looked up in this order: the choice that the caller echoes, the hot-user table, the slot table, and as
the last resort HAProxy's own consistent hash with bounded load. Both tables hold server ids and are written only by the agent:
traffic never writes them. From an id HAProxy comes to its server by a third table, which is its own; as long as that is empty,
after a start or a reload, it searches for the server by name.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contract.keys import SLOTS, USER_KEY_HEX_LENGTH
from contract.table import KEY_ID_HEADER, USER_KEY_HEADER, TableLimits, key_header_of
from dataplane.edge import ConfigError, check_names, check_pool_key
from dataplane.gateway.peer_push import AGENT_PEER
from dataplane.gateway.servers import Server

FLEET = "gr_fleet"
SLOT_TABLE = "gr_slots"
USER_TABLE = "gr_users"
ID_TABLE = "gr_ids"
FILLED_KEY = 0
"""Key of the id table, no server's, that says that the table is filled."""
INSTANCE_MAP = "instances.map"
ECHO_MAP = "echo.map"
HAPROXY_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""What HAProxy should be started with: a look-up among 100 000 users then misses the translation of fewer addresses."""
_BIND = re.compile(r"(?:unix@/[\w./-]{1,100}|(?:[0-9.]{7,15}|\[[0-9a-fA-F:]{2,39}\]|\*)?:[0-9]{1,5})")
_PATH = re.compile(r"/[\w./-]{0,100}")
_PEER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HTTP_PATH = re.compile(r"/[\w./?=&-]{0,200}")
_LEAST_FALLBACK_PERCENT = 200
_MAX_SERVERS = 65_536


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """What a gateway's HAProxy is told at its start; everything else arrives through the runtime API.

    Attributes
    ----------
    pool_key : bytes
        Secret of the pool, at least 16 bytes; it stands in the file, which is therefore for its owner's eyes only.
    bind, admin_socket
        Where requests arrive (`host:port` or `unix@/path`), and the path of the runtime API.
    directory
        Folder of the rendered files, readable by HAProxy.
    master_socket
        Path of HAProxy's master CLI (`-W -S PATH`), by which it is reloaded when its configuration changes; None: it is not.
    id_header
        Header with the raw user id, hashed and removed here.
    key_id
        Name of the pool key, handed on with the user key.
    bounded_load_percent, retriable_bytes
        Bound of the last resort in percent of the mean load (None: what the table says, but 200 at least), and the largest
        request that is tried again elsewhere. Below 200 the survivors of a small fleet may all stand at the bound, as they carry
        the load of a dead one as well; HAProxy would then choose the dead one again for the retry.
    peers
        `name -> address` of all replicas; `local_peer` names this one. Without peers a process that has run for ten seconds
        still teaches its successor.
    check_path
        Path of an HTTP health check; None checks that the port opens.
    honour_echo
        Whether a caller may choose by `x-gr-instance`.
    max_connections, threads, max_users
        Sizes of the process; `max_users` bounds the hot-user table.
    ca_file, authorities
        Certificates of the authorities that instances which speak TLS are verified by; None: such instances are left out. And
        what stands in that file now: HAProxy reads it when it starts, so that another content asks for a reload.
    key_header
        Header that carries the user key, from callers that have made it and to instances; None: what the table says.
    said
        What the table in force says of such values.
    """

    pool_key: bytes = field(repr=False)
    bind: str
    admin_socket: Path
    directory: Path
    id_header: str = "x-user-id"
    key_id: str = ""
    bounded_load_percent: int | None = None
    retriable_bytes: int = 32_768
    peers: Mapping[str, str] = field(default_factory=dict)
    local_peer: str = "local"
    check_path: str | None = None
    check_interval_ms: int = 1000
    honour_echo: bool = True
    metrics_bind: str | None = None
    max_connections: int = 4000
    threads: int = 1
    max_users: int = 131_072
    connect_timeout_ms: int = 1000
    answer_timeout_ms: int = 30_000
    drain_seconds: int = 60
    master_socket: Path | None = None
    ca_file: Path | None = None
    authorities: bytes = field(default=b"", repr=False)
    key_header: str | None = None
    said: TableLimits = field(default_factory=TableLimits)

    @property
    def fallback_percent(self) -> int:
        """Bound of the fallback hash that is in force."""
        if self.bounded_load_percent is not None:
            return self.bounded_load_percent
        return max(_LEAST_FALLBACK_PERCENT, self.said.bounded_load_percent or 0)

    @property
    def user_key_header(self) -> str:
        """Header of the user key that is in force."""
        return self.key_header or key_header_of(self.said)

    @property
    def map_paths(self) -> tuple[Path, Path]:
        """Files that name the instance of a server, and the server of an instance."""
        return self.directory / INSTANCE_MAP, self.directory / ECHO_MAP


def validate(config: GatewayConfig) -> None:
    """Refuse what HAProxy would misread.

    Raises
    ------
    ConfigError
        Naming the first value that is wrong.
    """
    check_pool_key(config.pool_key)
    check_names(id_header=config.id_header, key_header=config.key_header, key_id=config.key_id)
    _an_address("bind", config.bind)
    if config.metrics_bind is not None:
        _an_address("metrics bind", config.metrics_bind)
    if config.check_path is not None:
        _matching("check path", config.check_path, _HTTP_PATH)
    sockets = [("admin socket", config.admin_socket)]
    sockets += [("master socket", config.master_socket)] if config.master_socket is not None else []
    for what, path in (*sockets, ("directory", config.directory), *([("ca file", config.ca_file)] if config.ca_file else [])):
        _matching(what, str(path), _PATH)
    for what, path in sockets:
        if len(str(path)) > 90:
            raise ConfigError(f"{what}: the path of a Unix socket has at most 90 characters")
    _matching("local peer", config.local_peer, _PEER)
    for name, address in config.peers.items():
        _matching("peer", name, _PEER)
        _an_address(f"address of peer {name}", address)
    if AGENT_PEER in (*config.peers, config.local_peer):
        raise ConfigError(f"peers: {AGENT_PEER} is the agent's own name")
    if config.peers and config.local_peer not in config.peers:
        raise ConfigError(f"local peer: {config.local_peer} is not among the peers")
    for name, value, low, high in (
        ("bounded load percent", config.fallback_percent, _LEAST_FALLBACK_PERCENT, 1000),
        ("retriable bytes", config.retriable_bytes, 16_384, 1_048_576),
        ("check interval ms", config.check_interval_ms, 50, 60_000),
        ("max connections", config.max_connections, 10, 1_000_000),
        ("threads", config.threads, 1, 64),
        ("max users", config.max_users, 1, 4_194_304),
        ("connect timeout ms", config.connect_timeout_ms, 10, 60_000),
        ("answer timeout ms", config.answer_timeout_ms, 10, 600_000),
        ("drain seconds", config.drain_seconds, 1, 86_400),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{name}: {value} lies outside {low}..{high}")


def _matching(what: str, value: str, pattern: re.Pattern[str]) -> None:
    if pattern.fullmatch(value) is None:
        raise ConfigError(f"{what}: {value[:80]!r} cannot stand in a configuration")


def _an_address(what: str, value: str) -> None:
    _matching(what, value, _BIND)
    port = value.rpartition(":")[2]
    if not value.startswith("unix@") and not 1 <= int(port) <= 65_535:
        raise ConfigError(f"{what}: port {port} lies outside 1..65535")


def render(config: GatewayConfig, servers: tuple[Server, ...] = ()) -> str:
    """Return the text of haproxy.cfg.

    Parameters
    ----------
    servers
        What the table holds now, so that a HAProxy that starts again serves before its agent has spoken.

    Raises
    ------
    ConfigError
        As `validate`.
    """
    validate(config)
    head = "# Written by grfleet-gateway; it holds the pool's key: keep it readable by its owner only."
    return "\n\n".join((head, _global(config), *_sections(config), _fleet(config, servers), ""))


def mark_of(config: GatewayConfig) -> str:
    """Return the mark of a configuration without its servers, which HAProxy shows as its description.

    An agent sees by it whether the HAProxy beside it runs on what the agent would write now. It gives nothing away of a pool key
    that is random.
    """
    anybody = server_options(Server(id=1, name="any", uid="any", address="[::]:1", weight_percent=0), config)
    trusted = hashlib.sha256(config.authorities).hexdigest() if config.authorities else ""
    frame = "\n\n".join((_global(config, mark=""), *_sections(config), _fleet(config, ()), anybody, trusted))
    return f"grfleet-{hashlib.sha256(frame.encode()).hexdigest()[:16]}"


def _sections(config: GatewayConfig) -> tuple[str, ...]:
    authorities = (_authorities(config),) if config.ca_file is not None else ()
    return _defaults(config), _peers(config), *authorities, _tables(config), _frontend(config)


def render_maps(servers: tuple[Server, ...]) -> tuple[str, str]:
    """Return the contents of the two maps: server name -> instance name, and instance name -> server name."""
    return (
        "".join(f"{s.label} {s.name}\n" for s in servers),
        "".join(f"{s.name} {s.label}\n" for s in servers if not s.draining_only),
    )


def _global(config: GatewayConfig, *, mark: str | None = None) -> str:
    return f"""global
  description {mark_of(config) if mark is None else mark}
  maxconn {config.max_connections}
  nbthread {config.threads}
  localpeer {config.local_peer}
  tune.bufsize {config.retriable_bytes}
  hard-stop-after {config.drain_seconds}s
  stats socket {config.admin_socket} mode 600 level admin expose-fd listeners
  stats timeout 10m"""


def _defaults(config: GatewayConfig) -> str:
    # One retry only: the second attempt goes to another server (redispatch), and a third could go back to the first.
    return f"""defaults
  mode http
  option redispatch 1
  option idle-close-on-response
  retries 1
  retry-on conn-failure empty-response
  http-reuse always
  timeout connect {config.connect_timeout_ms}ms
  timeout client {config.answer_timeout_ms}ms
  timeout server {config.answer_timeout_ms}ms
  timeout queue {config.connect_timeout_ms}ms
  timeout http-request 10s
  timeout http-keep-alive 60s"""


def peers_of(config: GatewayConfig) -> Mapping[str, str]:
    """Return name -> address of the replicas; without any, HAProxy is its only peer, for the sake of its successor."""
    return config.peers or {config.local_peer: f"unix@{config.directory}/peer.sock"}


def _peers(config: GatewayConfig) -> str:
    # The agent calls HAProxy; nobody answers at the address that stands for it.
    peers = {**peers_of(config), AGENT_PEER: f"unix@{config.directory}/agent.sock"}
    return "\n".join(("peers gr_peers", *(f"  peer {name} {address}" for name, address in sorted(peers.items()))))


def _authorities(config: GatewayConfig) -> str:
    # A server that comes while HAProxy runs may only use authorities that its file has named.
    return f"""backend gr_authorities
  server none 127.0.0.1:1 ssl verify required ca-file {config.ca_file} disabled"""


def _tables(config: GatewayConfig) -> str:
    # Hot users who come are set before those who go are taken off: for a moment there are twice as many. What finds no room is
    # dropped without a word. An entry takes memory when it is set.
    return f"""backend {USER_TABLE}
  stick-table type string len {USER_KEY_HEX_LENGTH} size {2 * config.max_users} nopurge store gpt0 peers gr_peers

backend {SLOT_TABLE}
  stick-table type integer size {2 * SLOTS} nopurge store gpt0 peers gr_peers

backend {ID_TABLE}
  stick-table type integer size {_MAX_SERVERS} nopurge store server_id"""


def _frontend(config: GatewayConfig) -> str:
    id_header, key_header = config.id_header, config.user_key_header
    pool_key = base64.b64encode(config.pool_key).decode()
    # The whole value counts (req.hdr would cut at commas), of several the last: without -1 a test passes on any of them.
    made_of, made = f"req.fhdr({id_header},-1)", f"req.fhdr({key_header},-1)"
    with_id = f"{{ {made_of} -m len gt 0 }}"
    lines = [
        "frontend gr_in",
        f"  bind {config.bind}",
        f'  http-request set-var(txn.gr_key) {made_of},hmac(sha256,"{pool_key}"),bytes(0,16),hex,lower if {with_id}',
        f"  http-request set-var(txn.gr_key) {made} if !{with_id} {{ {made} -m reg ^[0-9a-f]{{32}}$ }}",
        # What a caller says of the key's name holds for a key of the caller's alone.
        f"  http-request del-header {KEY_ID_HEADER} if {with_id} or !{{ var(txn.gr_key) -m found }}",
        *(f"  http-request del-header {name}" for name in dict.fromkeys((id_header, key_header, USER_KEY_HEADER))),
        f"  http-request set-header {key_header} %[var(txn.gr_key)] if {{ var(txn.gr_key) -m found }}",
    ]
    if config.key_id:
        lines.append(f"  http-request set-header {KEY_ID_HEADER} {config.key_id} if {{ var(txn.gr_key) -m found }}")
    lines += [
        f"  http-response set-header x-gr-instance %[srv_name,map_str({config.map_paths[0]})]",
        f"  default_backend {FLEET}",
    ]
    if config.metrics_bind is not None:
        lines += [
            "",
            "frontend gr_metrics",
            f"  bind {config.metrics_bind}",
            "  http-request use-service prometheus-exporter if { path /metrics }",
            "  http-request return status 404",
        ]
    return "\n".join(lines)


def _fleet(config: GatewayConfig, servers: tuple[Server, ...]) -> str:
    user, slot = f"table_gpt0({USER_TABLE})", f"xxh32,mod({SLOTS}),table_gpt0({SLOT_TABLE})"
    lines = [
        f"backend {FLEET}",
        "  balance hash var(txn.gr_key)",
        "  hash-type consistent sdbm avalanche",
        f"  hash-balance-factor {config.fallback_percent}",
    ]
    if config.check_path is not None:
        lines += [f"  option httpchk GET {config.check_path}", "  http-check expect status 200"]
    lines += [
        f"  http-request set-var(txn.gr_echo) req.fhdr(x-gr-instance),map_str({config.map_paths[1]})",
        "  http-request del-header x-gr-instance",
        # Without the id table servers are found by name, one after the other.
        f"  http-request set-var(txn.gr_bare) var(txn.gr_key) unless {{ int({FILLED_KEY}),in_table({ID_TABLE}) }}",
        f"  http-request set-var(txn.gr_user) var(txn.gr_bare),{user}",
        f"  http-request set-var(txn.gr_slot) var(txn.gr_bare),{slot}",
        *(["  use-server %[var(txn.gr_echo)] if { var(txn.gr_echo) -m found }"] if config.honour_echo else []),
        # A server that is down does not end the search: the next rule is tried, and after the last one the hash. HAProxy goes
        # through the rules of the id table after these, and stops at the first server as well.
        "  use-server s%[var(txn.gr_user)] if { var(txn.gr_user) -m int gt 0 }",
        "  use-server s%[var(txn.gr_slot)] if { var(txn.gr_slot) -m int gt 0 }",
        f"  stick match var(txn.gr_key),{user} table {ID_TABLE}",
        f"  stick match var(txn.gr_key),{slot} table {ID_TABLE}",
    ]
    lines += [
        f"  server {s.label} {s.address} {server_options(s, config)}" + (" disabled" if s.draining_only else "") for s in servers
    ]
    return "\n".join(lines)


def server_options(server: Server, config: GatewayConfig) -> str:
    """What follows the address of a server, the same in the file and in `add server`."""
    inter = config.check_interval_ms
    tls = ""
    if server.tls:
        # Of an instance known by its address alone only the authority is checked: HAProxy compares names.
        named = f" verifyhost {server.host} sni str({server.host}) check-sni {server.host}" if server.host else ""
        tls = f" ssl check-ssl verify required ca-file {config.ca_file}{named}"
    return (
        f"id {server.id} weight {server.weight} check inter {inter}ms fastinter {max(50, inter // 5)}ms "
        f"downinter {inter}ms fall 2 rise 2 observe layer4 error-limit 3 on-error mark-down{tls}"
    )
