"""The world of a fault test with pods: a managed and an adopted pool under one operator, scheduler and kubelet played.

ReplicaSets, the Deployment controller and the garbage collector are the real ones, so whatever the operator writes has the effect
that it has on a cluster. `change` gives work that touches all of it: size, model version, bounds, pods that come and go, and
somebody who scales the Deployment by hand.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import fault_pods_oracle
import httpx
import msgspec
from aiohttp import web
from fault_agents import Agent, AgentFarm, Offer
from fault_world import World
from integration_kubelet import Kubelet
from msgspec.structs import replace
from runtime_operator import OperatorProcess

from contract import agent as wire
from contract.agent import Intent, PreInferCounters, ServingReport
from contract.engine import LimitsRequest
from testbed.control_plane import ControlPlane

MANAGED, ADOPTED = "pool", "taken"
SLOTS = 2
BOUND_SECONDS = 120.0
DRAIN_SECONDS = 2
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
PORTS = {"gr": 8000, "grfleet-agent": 9001}


class PlayedPods(Kubelet):
    """The kubelet of the integration tests, with a memory and agents that keep a record.

    Attributes
    ----------
    made
        Names of all pods that there ever were, by uid.
    ended
        The deletion cost that a pod had when it was first seen to end, by name.
    skew_seconds
        How far the agents' wall clocks are ahead of this machine's.
    overage_bytes
        What the engine of a pod still has to give back before its split is in force.
    """

    def __init__(self, api: httpx.Client, namespace: str) -> None:
        super().__init__(api, namespace)
        self.made: dict[str, str] = {}
        self.ended: dict[str, str | None] = {}
        self.skew_seconds = 0.0
        self.overage_bytes: Callable[[str], int] = lambda name: 0

    def pods(self) -> list[dict[str, Any]]:
        """All pods of the namespace, noted."""
        found = super().pods()
        for pod in found:
            metadata = pod["metadata"]
            self.made[metadata["uid"]] = metadata["name"]
            if metadata.get("deletionTimestamp"):
                self.ended.setdefault(metadata["name"], (metadata.get("annotations") or {}).get(DELETION_COST))
        return found

    def _served(self, agent: Agent) -> web.Application:
        async def status(_: web.Request) -> web.Response:
            return web.Response(body=msgspec.json.encode(self._status(agent)), content_type="application/json")

        async def intent(request: web.Request) -> web.Response:
            offered = msgspec.json.decode(await request.read(), type=Intent)
            answer = agent.book.offer(offered, now_s=time.time() + self.skew_seconds)
            agent.offers.append(Offer(time.monotonic(), offered, answer.status, answer.reason))
            return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

        app = web.Application()
        app.router.add_get(f"{wire.PREFIX}/status", status)
        app.router.add_put(f"{wire.PREFIX}/intent", intent)
        return app

    def _status(self, agent: Agent) -> wire.AgentStatus:
        """A healthy agent that has done what its intent says; somebody has asked for prefixes."""
        said, held, in_flight = agent.status(), agent.book.current, self.in_flight(agent.name)
        over = self.overage_bytes(agent.name)
        assert said.split is not None
        capacity = held.spec.pre_infer if held is not None else None
        serving = ServingReport(
            clock_ms=1000.0 * time.monotonic(),
            requests=0,
            queue=0,
            in_flight=in_flight,
            live_prefix_bytes=1,
            pre_infer=PreInferCounters(),
        )
        limits = (
            None
            if capacity is None
            else LimitsRequest(revision=1, pre_infer_slots=capacity.slots, pre_infer_bytes=capacity.bytes)
        )
        usable = (held.spec.usable_bytes if held is not None else None) or said.split.usable_bytes
        half = usable // 2
        return replace(
            said,
            kv_hit_percent=self.hit_percent(agent.name),
            split=replace(
                said.split,
                usable_bytes=usable,
                target_emb_bytes=half,
                accepted_emb_bytes=half,
                accepted_kv_bytes=half,
                used_emb_bytes=half + over,
                overage_bytes=over,
                settled=not over,
            ),
            serving=serving,
            limits=limits,
            draining=held is not None and held.spec.draining,
            idle_seconds=0.0 if in_flight else 60.0,
        )


class PodsWorld(World):
    """See the module."""

    def __init__(
        self,
        plane: ControlPlane,
        api: httpx.Client,
        namespace: str,
        directory: Path,
        farm: AgentFarm,
        stack: ExitStack,
        pods: PlayedPods,
        *,
        deadline_seconds: int,
    ) -> None:
        super().__init__(plane, api, namespace, directory, farm, stack)
        self.pods, self.deadline_seconds = pods, deadline_seconds
        farm.agents = pods.agents
        self.replicas, self.version, self.guests = 2, 1, 0
        self.pools: list[str] = []
        self.lost_instances: dict[str, int] = {}
        """How often somebody has deleted the instance of a pod, by name."""
        self._turn = 0

    # -- operators ------------------------------------------------------------------------------------------------

    @contextmanager
    def operator(self, name: str = "one", *flags: str, clock_seconds: float = 0.0) -> Iterator[OperatorProcess]:
        """A running operator that knows the agent's image, with its wall clock ahead of this machine's by so much."""
        own = ("--agent-image", "agent:1", f"--clock-ahead-seconds={clock_seconds}")
        with super().operator(name, *own, *flags) as started:
            yield started

    # -- what people do -------------------------------------------------------------------------------------------

    def make_policies(self) -> None:
        """As without pods; drains end soon, and every instance keeps two slots ready."""
        drain = {"deadlineSeconds": self.deadline_seconds}
        routing = {"churn": {"maxMovedPercent": 100, "windowSeconds": 1}, "warmup": {"maxSeconds": 1}, "drain": drain}
        self._create("RoutingPolicy", "routingpolicies", "default", routing)
        self._create("HBMPolicy", "hbmpolicies", "default", self._hbm())
        slots = {"slotsPerInstance": {"min": SLOTS, "max": SLOTS}}
        self._create("PreInferencePolicy", "preinferencepolicies", "default", slots)

    def make_pools(self, *names: str) -> None:
        """The managed pool, the adopted one with two pods, or both."""
        for name in names or (MANAGED, ADOPTED):
            self.pools.append(name)
            self._create("GRServingPool", "grservingpools", name, self._pod_pool(name))
        if ADOPTED in self.pools:
            self.make_guest()
            self.make_guest()

    def change(self) -> None:
        """The next of four pieces of work, so that four calls touch everything."""
        self._turn += 1
        turn = self._turn % 4
        self.fallback_percent = 40 + (self.fallback_percent - 39) % 20
        self._patch("hbmpolicies", "default", self._hbm())
        if turn == 1:
            self.scale(self.replicas + 1)
            self.make_guest()
        elif turn == 2:
            self.update_model()
            self.delete_pod(self.live_pods(ADOPTED)[0])
        elif turn == 3:
            self.scale(self.replicas - 1)
            self.delete_pod(self.live_pods(MANAGED)[0])
        else:
            self.scale_deployment_by_hand(self.replicas + 2)

    def scale(self, replicas: int) -> None:
        """Another size of the managed pool."""
        self.replicas = replicas
        self._patch("grservingpools", MANAGED, {"replicas": replicas})

    def update_model(self) -> None:
        """A new model version of the managed pool."""
        self.version += 1
        self._patch("grservingpools", MANAGED, {"model": {"version": str(self.version)}})

    def delete_pool(self, name: str) -> None:
        """The pool is not wanted any more."""
        self.pools.remove(name)
        self.api.delete(f"{self.path('grservingpools')}/{name}").raise_for_status()

    def make_guest(self) -> None:
        """One more pod that somebody else runs, for the adopted pool."""
        self.guests += 1
        containers = [{"name": "engine", "image": "engine:1", "ports": [{"name": "gr", "containerPort": PORTS["gr"]}]}]
        port = [{"name": "grfleet-agent", "containerPort": PORTS["grfleet-agent"]}]
        sidecar = [{"name": "agent", "image": "agent:1", "restartPolicy": "Always", "ports": port}]
        body = {
            "metadata": {"name": f"guest-{self.guests}", "labels": {"app": "engine"}},
            "spec": {"initContainers": sidecar, "containers": containers},
        }
        self.api.post(f"/api/v1/namespaces/{self.namespace}/pods", json=body).raise_for_status()

    def delete_pod(self, name: str) -> None:
        """What anybody may do at any time."""
        self.api.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def delete_instance(self, name: str) -> None:
        """Somebody deletes the object of an instance whose pod is well."""
        self.lost_instances[name] = self.lost_instances.get(name, 0) + 1
        self.api.delete(f"{self.path('grinstances')}/{name}").raise_for_status()

    def scale_deployment_by_hand(self, replicas: int) -> None:
        """Somebody bypasses the pool; does nothing while there is no Deployment."""
        content = {"content-type": "application/merge-patch+json"}
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{MANAGED}/scale"
        self.api.patch(f"{path}?fieldManager=somebody", json={"spec": {"replicas": replicas}}, headers=content)

    def _pod_pool(self, name: str) -> dict[str, Any]:
        template = {
            "spec": {"containers": [{"name": "engine", "image": "engine:1", "ports": [{"name": "gr", "containerPort": 8000}]}]}
        }
        spec = self._pool()
        spec["model"]["version"] = str(self.version)
        if name == ADOPTED:
            return {**spec, "instances": {"adopted": {"matchLabels": {"app": "engine"}}}}
        return {**spec, "instances": {"managed": {"template": template}}, "replicas": self.replicas}

    # -- what is there --------------------------------------------------------------------------------------------

    def deployment(self) -> dict[str, Any]:
        """The Deployment of the managed pool, or nothing."""
        answer = self.api.get(f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{MANAGED}")
        return answer.json() if answer.status_code == 200 else {}

    def live_pods(self, pool: str) -> list[str]:
        """Names of the pods of a pool that nobody has deleted."""
        return fault_pods_oracle.live_pods(self.pods.pods(), pool)

    def draining(self) -> list[str]:
        """Names of the instances that leave."""
        return [each["metadata"]["name"] for each in self.list("grinstances") if each["spec"].get("drain")]

    def _versions(self) -> dict[str, str]:
        deployment = self.deployment()
        return {**super()._versions(), "deployment": deployment.get("metadata", {}).get("resourceVersion", "")}

    # -- the oracle -----------------------------------------------------------------------------------------------

    def differences(self) -> list[str]:
        """What is not yet as it should be."""
        return fault_pods_oracle.differences(self)

    def violations(self) -> list[str]:
        """What should never have happened."""
        return fault_pods_oracle.violations(self)

    def converges(self, *, seconds: float = BOUND_SECONDS, quiet_seconds: float = 1.0) -> float:
        """As without pods, with time for them to start and warm up."""
        return super().converges(seconds=seconds, quiet_seconds=quiet_seconds)

    def log_tail(self) -> str:
        """The end of the logs, and how the pods are."""
        pods = [(pod["metadata"]["name"], pod["status"].get("conditions")) for pod in self.pods.pods()]
        done = [each for each in self.writes() if "/deployments/" in each.path]
        writes = [f"{each.method} {each.path} {each.status} told {each.told}: {each.body[:300]!r}" for each in done]
        return "\n".join([super().log_tail(), f"pods: {pods}", "writes of the Deployment:", *writes[-12:]])


@contextmanager
def open_pods_world(
    plane: ControlPlane, api: httpx.Client, directory: Path, *, deadline_seconds: int = DRAIN_SECONDS
) -> Iterator[PodsWorld]:
    """A new namespace with its policies and a kubelet that plays its pods; deleted afterwards without waiting."""
    namespace = f"faults-{secrets.token_hex(4)}"
    api.post("/api/v1/namespaces", json={"metadata": {"name": namespace}}).raise_for_status()
    with ExitStack() as stack:
        pods = stack.enter_context(PlayedPods(stack.enter_context(plane.client()), namespace))
        farm = stack.enter_context(AgentFarm())
        world = PodsWorld(plane, api, namespace, directory, farm, stack, pods, deadline_seconds=deadline_seconds)
        world.make_policies()
        yield world
    api.delete(f"/api/v1/namespaces/{namespace}")
