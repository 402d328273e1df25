"""A real Envoy on loopback by docs/examples/picker-envoy.yaml, a picker in a process of its own, and toy instances in the test.

Beside the listener of that page there are two of the test's own: one that sends bodies full duplex, as gateways of the inference
extension do, and one that says which endpoints may be chosen.
"""

import asyncio
import contextlib
import copy
import hashlib
import json
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from aiohttp import web

from contract.keys import SLOTS, slot_of, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, pack_slots, unpack_slots

ROOT = Path(__file__).resolve().parents[3]
POOL_KEY = b"0123456789abcdef"
MOST_IN_FLIGHT = 4


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def row(name: str, port: int, *, state: InstanceState = InstanceState.READY, uid: str = "") -> TableInstance:
    return TableInstance(name=name, uid=uid or f"uid-{name}", address=f"http://127.0.0.1:{port}", weight_percent=100, state=state)


def table(generation: int, rows: Sequence[TableInstance]) -> RoutingTable:
    """A table whose slots go round the rows that serve."""
    serving = [i for i, r in enumerate(rows) if r.state in (InstanceState.READY, InstanceState.WARMING)]
    owners = [serving[slot % len(serving)] if serving else 0xFFFF for slot in range(SLOTS)]
    return RoutingTable(generation=generation, instances=list(rows), slots=pack_slots(owners))


def owner_in(wanted: RoutingTable, user: str) -> str:
    """The name of the instance that a table gives a raw user id."""
    owners = unpack_slots(wanted.slots, instances=len(wanted.instances))
    return wanted.instances[owners[slot_of(user_key(POOL_KEY, user))]].name


class Toy:
    """An instance: answers with its name, the headers it saw and the digest of the body; gives the body back when asked to."""

    def __init__(self, name: str) -> None:
        self.name, self.port, self.served = name, 0, 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.in_hand: set[asyncio.Transport] = set()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.0, max_line_size=65536, max_field_size=65536)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    @property
    def running(self) -> bool:
        return self._runner is not None

    async def kill(self) -> None:
        """Nothing listens any more, and every connection is cut, also under a request."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for site in list(runner.sites):
                await site.stop()
            for transport in self.in_hand:
                transport.abort()
            self.hold.set()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self.in_hand.add(request.transport)
        await self.hold.wait()
        self.in_hand.discard(request.transport)
        body = await request.read()
        self.served += 1
        if request.path == "/give-back":
            response = web.StreamResponse(headers={"x-me": self.name})
            await response.prepare(request)
            for start in range(0, len(body), 100_000):
                await response.write(body[start : start + 100_000])
            await response.write_eof()
            return response
        said = {"me": self.name, "headers": dict(request.headers), "sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
        return web.json_response({**said, "headers": {k.lower(): v for k, v in said["headers"].items()}})  # type: ignore[attr-defined]  # a dict


class Answer:
    """What the caller got."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def instance(self) -> str:
        return self.headers.get("x-gr-instance", "")

    @property
    def said(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    @property
    def me(self) -> str:
        return str(self.said["me"])


class World:
    """Envoy, picker and toys."""

    def __init__(self, envoy: Path, folder: Path) -> None:
        self.envoy, self.folder = envoy, folder
        self.toys = {name: Toy(name) for name in "abc"}
        self.ports = {name: free_port() for name in ("plain", "duplex", "subset", "closed", "hasty", "admin", "picker", "health")}
        self.generation = 0
        self.table = table(0, [])
        self.picker: asyncio.subprocess.Process | None = None
        self._envoy: asyncio.subprocess.Process | None = None
        self.session = aiohttp.ClientSession()

    async def start(self, *, picker: bool = True) -> None:
        """Start everything; without the picker, Envoy has nothing but the file that one had left."""
        for toy in self.toys.values():
            await toy.start()
        (self.folder / "pool.key").write_bytes(POOL_KEY)
        (self.folder / "endpoints").mkdir()
        self.write_table(self.rows("a", "b", "c"))
        await self.start_picker()
        if not picker:
            await self.kill_picker()
        (self.folder / "envoy.json").write_text(json.dumps(self.config()))
        with (self.folder / "envoy.log").open("wb") as log:
            self._envoy = await asyncio.create_subprocess_exec(
                str(self.envoy), "-c", str(self.folder / "envoy.json"), "--concurrency", "1", "--disable-hot-restart",
                "-l", "warning", stdout=log, stderr=log,
            )  # fmt: skip
        await self.until(self._envoy_ready, "Envoy is ready")
        if picker:
            await self.until(self.picker_is_asked, "Envoy asks the picker")

    async def stop(self) -> None:
        await self.session.close()
        for process in (self._envoy, self.picker):
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()
        for toy in self.toys.values():
            toy.hold.set()
            await toy.kill()

    async def whole(self) -> None:
        """Bring everything back that a test took away."""
        for toy in self.toys.values():
            toy.hold.set()
            if not toy.running:
                await toy.start()
        if self.picker is None or self.picker.returncode is not None:
            await self.start_picker()
        await self.offer(self.rows("a", "b", "c"))
        await self.until(self._nothing_ejected, "every instance is healthy in Envoy")
        await self.until(self._envoy_asks, "Envoy is connected to the picker, also to one that was started anew")

    def config(self) -> dict[str, Any]:
        text = (ROOT / "docs" / "examples" / "picker-envoy.yaml").read_text()
        text = text.replace("port_value: 9901", f"port_value: {self.ports['admin']}")
        text = text.replace("port_value: 9002", f"port_value: {self.ports['picker']}")
        text = text.replace("/tmp/toys/endpoints", str(self.folder / "endpoints"))
        text = text.replace("interval: 2s", "interval: 0.2s").replace("base_ejection_time: 5s", "base_ejection_time: 0.3s")
        text = text.replace("interval: 1s, base", "interval: 0.2s, base").replace("connect_timeout: 0.5s", "connect_timeout: 5s")
        config: dict[str, Any] = yaml.safe_load(text)
        plain = config["static_resources"]["listeners"][0]
        listeners = {name: copy.deepcopy(plain) for name in ("plain", "duplex", "subset", "closed", "hasty")}
        for name, listener in listeners.items():
            listener["name"] = name
            listener["address"]["socket_address"]["port_value"] = self.ports[name]
            # On a busy machine half a second is not long, and whoever waits less for the picker goes on by Envoy's own hash.
            _processor(listener)["message_timeout"] = "0.2s" if name == "hasty" else "10s"
        _processor(listeners["closed"])["failure_mode_allow"] = False
        duplex = dict.fromkeys(("request_header_mode", "response_header_mode"), "SEND")
        duplex |= dict.fromkeys(("request_body_mode", "response_body_mode"), "FULL_DUPLEX_STREAMED")
        duplex |= dict.fromkeys(("request_trailer_mode", "response_trailer_mode"), "SEND")
        _processor(listeners["duplex"])["processing_mode"] = duplex
        _filters(listeners["subset"]).insert(0, self._subset_hint("b"))
        config["static_resources"]["listeners"] = list(listeners.values())
        return config

    def _subset_hint(self, *names: str) -> dict[str, Any]:
        addresses = [f"127.0.0.1:{self.toys[name].port}" for name in names]
        kind = "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config"
        value = {"x-gateway-destination-endpoint-subset": addresses}
        entry = {"metadata_namespace": "envoy.lb.subset_hint", "value": value}
        return {"name": "envoy.filters.http.set_metadata", "typed_config": {"@type": kind, "metadata": [entry]}}

    def rows(self, *names: str) -> list[TableInstance]:
        return [row(name, self.toys[name].port) for name in names]

    def write_table(self, rows: Sequence[TableInstance]) -> None:
        self.generation += 1
        self.table = table(self.generation, rows)
        part = self.folder / "table.part"
        part.write_bytes(msgspec.json.encode(self.table))
        part.replace(self.folder / "table.json")

    async def offer(self, rows: Sequence[TableInstance]) -> None:
        """Publish a table and wait until the picker has it and Envoy knows its instances."""
        self.write_table(rows)
        wanted = self.generation if rows else -1
        await self.until(lambda: self._picker_has(wanted), f"generation {wanted}")
        await self.until(self._envoy_knows, "Envoy knows the instances")

    async def start_picker(self, *arguments: str) -> None:
        with (self.folder / "picker.log").open("ab") as log:
            self.picker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "dataplane.picker.main", "--table", str(self.folder / "table.json"),
                "--pool-key", str(self.folder / "pool.key"), "--bind", f"127.0.0.1:{self.ports['picker']}",
                "--health-bind", f"127.0.0.1:{self.ports['health']}", "--max-in-flight", str(MOST_IN_FLIGHT),
                "--endpoints-file", str(self.folder / "endpoints" / "pool.json"), "--key-id", "k1", *arguments,
                stdout=asyncio.subprocess.PIPE, stderr=log, cwd=ROOT,
            )  # fmt: skip
        assert self.picker.stdout is not None
        line = await asyncio.wait_for(self.picker.stdout.readline(), 30)
        assert json.loads(line or b"{}").get("ready"), (self.folder / "picker.log").read_text()[-2000:]
        if self._envoy is not None:
            await self.until(self.picker_is_asked, "Envoy asks the picker")

    async def kill_picker(self) -> None:
        assert self.picker is not None
        self.picker.kill()
        await self.picker.wait()

    async def ask(self, user: str | None, *, port: str = "plain", path: str = "/", data: Any = None, **headers: str) -> Answer:
        """One request, as `user` if that is not None; underscores in names of headers are dashes."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if user is not None:
            sent["x-user-id"] = user
        url = f"http://127.0.0.1:{self.ports[port]}{path}"
        timeout = aiohttp.ClientTimeout(total=30)
        async with self.session.request("GET" if data is None else "POST", url, headers=sent, data=data, timeout=timeout) as got:
            return Answer(got.status, {k.lower(): v for k, v in got.headers.items()}, await got.read())

    async def metric(self, name: str, **labels: str) -> float:
        text = await self._get("health", "/metrics")
        inside = "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else ""
        found = re.search(rf"^{re.escape(name + inside)} (\S+)$", text, re.M)
        assert found is not None, f"no {name}{inside}"
        return float(found.group(1))

    async def until(self, true: Any, what: str) -> None:
        try:
            async with asyncio.timeout(20):
                while not await true():  # noqa: ASYNC110  # another process is waited for
                    await asyncio.sleep(0.01)
        except TimeoutError:
            logs = [
                (self.folder / name).read_text()[-1500:] for name in ("envoy.log", "picker.log") if (self.folder / name).exists()
            ]
            raise AssertionError(f"never: {what}\n" + "\n".join(logs)) from None

    async def _get(self, port: str, path: str) -> str:
        with contextlib.suppress(aiohttp.ClientError):
            async with self.session.get(f"http://127.0.0.1:{self.ports[port]}{path}") as got:
                return await got.text() if got.status == 200 else ""
        return ""

    async def _envoy_ready(self) -> bool:
        assert self._envoy is not None
        assert self._envoy.returncode is None, (self.folder / "envoy.log").read_text()
        return await self._get("admin", "/ready") != "" and await self._envoy_knows()

    async def _envoy_asks(self) -> bool:
        return (await self.ask("somebody")).instance != ""

    async def _picker_has(self, generation: int) -> bool:
        return await self.metric("grfleet_picker_generation") == generation

    async def _clusters(self) -> str:
        return await self._get("admin", "/clusters")

    async def _envoy_knows(self) -> bool:
        held = set(re.findall(r"^pool::127\.0\.0\.1:(\d+)::", await self._clusters(), re.M))
        return held == {each.address.rsplit(":", 1)[1] for each in self.table.instances}

    async def picker_is_asked(self) -> bool:
        """Whether a request is; what Envoy's main thread knows of a picker's health, its workers hear up to a second later."""
        before = await self._unasked()
        await self.ask(None)
        return await self._unasked() == before

    async def _unasked(self) -> str:
        """How often Envoy has gone on without its picker."""
        return await self._get("admin", "/stats?filter=ext_proc.failure_mode_allowed")

    async def _nothing_ejected(self) -> bool:
        flags = re.findall(r"^pool::127\.0\.0\.1:\d+::health_flags::(\S+)", await self._clusters(), re.M)
        return bool(flags) and set(flags) == {"healthy"}


def _filters(listener: dict[str, Any]) -> list[dict[str, Any]]:
    filters: list[dict[str, Any]] = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    return filters


def _processor(listener: dict[str, Any]) -> dict[str, Any]:
    found = next(each for each in _filters(listener) if each["name"] == "envoy.filters.http.ext_proc")
    config: dict[str, Any] = found["typed_config"]
    return config
