"""Engines, agents and objects of an integration test, and the questions that tests ask about them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from testbed.control_plane import ControlPlane
from testbed.patience import eventually
from testbed.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
GROUP = "/apis/grfleet.dev/v1alpha1"
POOL_BYTES = 2 << 30
OPERATOR = [sys.executable, "-c", "from controllers.runtime.process import main; raise SystemExit(main())"]


@dataclass
class Pair:
    """One reference engine and the agent beside it, on ports that stay the same over restarts."""

    directory: Path
    name: str
    engine_port: int = field(default_factory=free_port)
    agent_port: int = field(default_factory=free_port)
    engine: subprocess.Popen[bytes] | None = None
    agent: subprocess.Popen[bytes] | None = None

    @property
    def service_url(self) -> str:
        return f"http://127.0.0.1:{self.engine_port}"

    @property
    def agent_url(self) -> str:
        return f"http://127.0.0.1:{self.agent_port}"

    @property
    def entry(self) -> dict[str, str]:
        """The entry of instances.external."""
        return {"name": self.name, "serviceURL": self.service_url, "agentURL": self.agent_url}

    def start_engine(self) -> None:
        flags = ["--listen", self.service_url, "--hbm-bytes", str(POOL_BYTES), "--emb-percent", "50"]
        self.engine = self._start("engines.reference.main", *flags)

    def start_agent(self, key: Path) -> None:
        flags = ["--engine", self.service_url, "--listen", self.agent_url, "--intent-key", str(key)]
        self.agent = self._start("dataplane.agent.main", *flags)

    def stop_agent(self) -> None:
        _end(self.agent)
        self.agent = None

    def stop(self) -> None:
        _end(self.agent)
        _end(self.engine)

    def _start(self, module: str, *flags: str) -> subprocess.Popen[bytes]:
        code = f"import sys; from {module} import main; sys.exit(main())"
        log = (self.directory / f"{self.name}-{module}.log").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, "-c", code, *flags],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                cwd=self.directory,
            )


def _end(child: subprocess.Popen[bytes] | None) -> None:
    if child is not None and child.poll() is None:
        child.kill()
        child.wait()


class Fleet:
    """The namespace of a test."""

    def __init__(self, plane: ControlPlane, api: httpx.Client, namespace: str, directory: Path) -> None:
        self.plane, self.api, self.namespace, self.directory = plane, api, namespace, directory
        self.pairs: list[Pair] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for pair in self.pairs:
            pair.stop()

    def new_pair(self) -> Pair:
        pair = Pair(self.directory, f"i{len(self.pairs)}")
        self.pairs.append(pair)
        return pair

    def start(self, *pairs: Pair) -> None:
        """Start engines and agents; the key is the one that the operator publishes in this namespace."""
        for pair in pairs:
            pair.start_engine()
        key = self.intent_key()
        for pair in pairs:
            pair.start_agent(key)

    def intent_key(self) -> Path:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/grfleet-intent-key"
        found = eventually(lambda: (self.api.get(path).json().get("data") or {}).get("public.key"))
        assert len(base64.b64decode(found)) == 32
        file = self.directory / "intent.key"
        file.write_text(found)
        return file

    def apply(self, kind: str, name: str, spec: dict[str, Any], *, namespace: str | None = None) -> None:
        body = {
            "apiVersion": "grfleet.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace or self.namespace},
            "spec": spec,
        }
        self.plane.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(body))

    def apply_pool(self, name: str, *pairs: Pair, **changes: Any) -> None:
        self.apply("GRServingPool", name, pool_spec([pair.entry for pair in pairs], **changes))

    def patch(self, plural: str, name: str, spec: dict[str, Any]) -> None:
        answer = self.api.patch(
            f"{GROUP}/namespaces/{self.namespace}/{plural}/{name}",
            json={"spec": spec},
            headers={"content-type": "application/merge-patch+json"},
        )
        answer.raise_for_status()

    def get(self, plural: str, name: str) -> dict[str, Any]:
        answer = self.api.get(f"{GROUP}/namespaces/{self.namespace}/{plural}/{name}")
        return answer.json() if answer.status_code == 200 else {}

    def pool(self, name: str = "pool") -> dict[str, Any]:
        return self.get("grservingpools", name)

    def instance(self, name: str) -> dict[str, Any]:
        return self.get("grinstances", name)

    def table(self, name: str = "pool") -> dict[str, Any]:
        return self.get("grroutingtables", name)

    def delete(self, plural: str, name: str) -> None:
        self.api.delete(f"{GROUP}/namespaces/{self.namespace}/{plural}/{name}").raise_for_status()

    def names(self, plural: str) -> list[str]:
        return sorted(
            i["metadata"]["name"] for i in self.api.get(f"{GROUP}/namespaces/{self.namespace}/{plural}").json()["items"]
        )

    def wait_for_condition(self, resource: str, condition: str, *, seconds: int = 150) -> None:
        """What a user does: `kubectl wait`. After a burst of changes a pool's word may be a minute late or more."""
        wait = ("wait", f"--for=condition={condition}", f"--timeout={seconds}s", "-n", self.namespace, resource)
        self.plane.kubectl(*wait, timeout_seconds=seconds + 30)

    def versions(self) -> dict[str, str]:
        """resourceVersion of every object of ours in the namespace."""
        return {
            f"{plural}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for plural in ("grservingpools", "grinstances", "grroutingtables", "hbmpolicies", "routingpolicies")
            for item in self.api.get(f"{GROUP}/namespaces/{self.namespace}/{plural}").json()["items"]
        }


def pool_spec(entries: list[dict[str, str]], **changes: Any) -> dict[str, Any]:
    """A small valid pool."""
    return {
        "model": {"name": "ranker", "version": "1", "kvBytesPerToken": 4096, "embRowBytes": 512, "maxHistoryTokens": 8192},
        "instances": {"external": entries},
        "memory": {"hbmBytes": str(POOL_BYTES)},
        "slo": {"p99Ms": 50},
        **changes,
    }


def condition(obj: dict[str, Any], type_: str) -> dict[str, Any]:
    """The condition of that type, or an empty one."""
    items = (obj.get("status") or {}).get("conditions") or []
    return next((item for item in items if item["type"] == type_), {})
