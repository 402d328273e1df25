"""Plays scheduler and kubelet for the pods of one namespace: gives them a node, an address and conditions, and ends them.

The pods are real objects that the real ReplicaSet controller made; nothing runs in them. Each has an address of its own on
loopback with an agent of the test behind its agent port, so that the operator speaks to it as to any other.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec
from aiohttp import web
from fault_agents import Agent
from msgspec.structs import replace

from contract import agent as wire
from contract.agent import Intent, PreInferCounters, ServingReport

GATE = "grfleet.dev/warm"
NODE = "played-node"
AGENT_PORT = 9001
MERGE = {"content-type": "application/strategic-merge-patch+json"}
LOOK_SECONDS = 0.1
NODE_SECONDS = 5.0


class Kubelet:
    """A thread that looks at the pods ten times a second.

    Attributes
    ----------
    starts
        Whether a pod becomes ready; others stay as they are, or wait for the reason in `waiting`.
    ends
        Whether a pod that is being deleted may go.
    hit_percent, resident_bytes, in_flight
        What the agent of a pod reports of its engine.
    """

    def __init__(self, api: httpx.Client, namespace: str) -> None:
        self._api, self._pods = api, f"/api/v1/namespaces/{namespace}/pods"
        self.agents: dict[str, Agent] = {}
        self.starts: Callable[[str], bool] = lambda name: True
        self.ends: Callable[[str], bool] = lambda name: True
        self.waiting: dict[str, str] = {}
        self.hit_percent: Callable[[str], float] = lambda name: 60.0
        self.resident_bytes: Callable[[str], int] = lambda name: 1 << 30
        self.in_flight: Callable[[str], int] = lambda name: 0
        self._net = f"127.{os.getpid() % 200 + 20}.{secrets.randbelow(250)}"
        self._addresses: dict[str, str] = {}
        self._sites: dict[str, web.AppRunner] = {}
        self._stop = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._server = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._looks = 0

    def __enter__(self) -> Self:
        self._server.start()
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        for name in list(self._sites):
            self._close(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._server.join()
        self._loop.close()

    def address(self, name: str) -> str:
        """Where the pod is, or was."""
        return self._addresses[name]

    def pods(self) -> list[dict[str, Any]]:
        """All pods of the namespace."""
        items: list[dict[str, Any]] = self._api.get(self._pods).raise_for_status().json()["items"]
        return items

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self._look()
            except httpx.HTTPError:
                continue

    def _look(self) -> None:
        self._looks += 1
        if self._looks % round(NODE_SECONDS / LOOK_SECONDS) == 0:
            self._beat()
        for pod in self.pods():
            name = pod["metadata"]["name"]
            if pod["metadata"].get("deletionTimestamp"):
                if self.ends(name):
                    self._close(name)
                    self._api.request("DELETE", f"{self._pods}/{name}", json={"gracePeriodSeconds": 0})
                continue
            if not pod["spec"].get("nodeName"):
                self._bind(name)
            self._report(pod)

    def _bind(self, name: str) -> None:
        body = {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": NODE}}
        self._api.post(f"{self._pods}/{name}/binding", json=body)

    def _report(self, pod: dict[str, Any]) -> None:
        name, status = pod["metadata"]["name"], pod["status"]
        up = self.starts(name) and name not in self.waiting
        opened = {item["type"] for item in status.get("conditions") or () if item["status"] == "True"}
        gates = {gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()}
        ready = up and gates <= opened
        wanted = {"PodScheduled": True, "ContainersReady": up, "Ready": ready}
        present = {item["type"]: item["status"] == "True" for item in status.get("conditions") or ()}
        told = [each["state"] for each in status.get("containerStatuses") or ()]
        waits = [{"waiting": {"reason": self.waiting[name]}}] if name in self.waiting else []
        if up and status.get("podIP") is None:
            self._open(name)
        if all(present.get(type_) == value for type_, value in wanted.items()) and told == waits:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [
            {"type": type_, "status": "True" if value else "False", "lastTransitionTime": now} for type_, value in wanted.items()
        ]
        body: dict[str, Any] = {"conditions": conditions, "phase": "Running" if up else "Pending"}
        if name in self._addresses:
            body |= {"podIP": self._addresses[name], "podIPs": [{"ip": self._addresses[name]}]}
        if waits:
            container = pod["spec"]["containers"][0]["name"]
            body["containerStatuses"] = [
                {"name": container, "ready": False, "restartCount": 0, "image": "", "imageID": "", "state": waits[0]}
            ]
        self._api.patch(f"{self._pods}/{name}/status", json={"status": body}, headers=MERGE)

    def _open(self, name: str) -> None:
        if name in self._sites:
            return
        self._addresses[name] = f"{self._net}.{len(self._addresses) + 1}"
        self.agents[name] = Agent(name)
        self._sites[name] = asyncio.run_coroutine_threadsafe(self._serve(name), self._loop).result(10)

    async def _serve(self, name: str) -> web.AppRunner:
        runner = web.AppRunner(self._served(self.agents[name]), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, self._addresses[name], AGENT_PORT).start()
        return runner

    def _close(self, name: str) -> None:
        runner = self._sites.pop(name, None)
        if runner is not None:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), self._loop).result(10)

    def _beat(self) -> None:
        """A node that stays ready, or the pods on it would be evicted."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._api.post("/api/v1/nodes", json={"metadata": {"name": NODE}})
        condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "reason": "Played", "message": ""}
        self._api.patch(f"/api/v1/nodes/{NODE}/status", json={"status": {"conditions": [condition]}}, headers=MERGE)

    def _served(self, agent: Agent) -> web.Application:
        """The agent's contract, as far as the operator uses it."""

        async def status(_: web.Request) -> web.Response:
            said, held, in_flight = agent.status(), agent.book.current, self.in_flight(agent.name)
            assert said.split is not None
            serving = ServingReport(
                clock_ms=1000.0 * time.monotonic(),
                requests=0,
                queue=0,
                in_flight=in_flight,
                live_prefix_bytes=0,
                pre_infer=PreInferCounters(),
            )
            body = replace(
                said,
                kv_hit_percent=self.hit_percent(agent.name),
                split=replace(said.split, used_kv_bytes=self.resident_bytes(agent.name)),
                serving=serving,
                draining=held is not None and held.spec.draining,
                idle_seconds=0.0 if in_flight else 60.0,
            )
            return web.Response(body=msgspec.json.encode(body), content_type="application/json")

        async def intent(request: web.Request) -> web.Response:
            answer = agent.book.offer(msgspec.json.decode(await request.read(), type=Intent), now_s=time.time())
            return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

        app = web.Application()
        app.router.add_get(f"{wire.PREFIX}/status", status)
        app.router.add_put(f"{wire.PREFIX}/intent", intent)
        return app
