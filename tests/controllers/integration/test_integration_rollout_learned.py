"""Strategy Learned on its whole way: a pushed model, a canary, all agents, and back; real agents and engines under load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from integration_fleet import Fleet, Pair, condition
from runtime_operator import running_operator

from contract.engine import RankRequest
from contract.engine_client import EngineClient
from policies.allocation.model_file import digest_of
from testbed.patience import eventually

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
COMMAND = [sys.executable, str(HERE / "integration_rollout_operator.py"), "--identity", "one"]
MODEL = HERE.parents[2] / "policies" / "models" / "split-1.safetensors"
TRIAL = {"canaryPercent": 25, "soakSeconds": 15, "rollbackP99Percent": 50}
PER_SECOND = 15
USERS = 200


@contextlib.contextmanager
def requests_to(*pairs: Pair) -> Iterator[None]:
    """The same returning users ask every engine, some times a second, for as long as the block lasts."""
    over = threading.Event()

    async def ask(pair: Pair) -> None:
        dice, number = random.Random(5), 0
        async with EngineClient(pair.service_url, timeout_s=10.0) as client:
            while not over.is_set():
                number += 1
                user = f"{int(USERS * dice.random() ** 2):032x}"
                with contextlib.suppress(Exception):  # an engine that is busy is not what this is about
                    await client.rank(
                        RankRequest(
                            request_id=f"r{number}",
                            user_key=user,
                            model_version="1",
                            history_tokens=200 + number % 300,
                            candidates=50,
                            rows_per_token=1,
                        )
                    )
                await asyncio.sleep(1.0 / PER_SECOND)

    async def ask_all() -> None:
        await asyncio.gather(*(ask(pair) for pair in pairs))

    thread = threading.Thread(target=lambda: asyncio.run(ask_all()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30.0)


def push(fleet: Fleet) -> None:
    """`grfleet model push` of the model that is shipped."""
    program = str(Path(sys.executable).parent / "grfleet")
    environment = {**os.environ, "KUBECONFIG": str(fleet.plane.kubeconfig)}
    environment.pop("KUBERNETES_SERVICE_HOST", None)
    command = [program, "model", "push", str(MODEL), "-n", fleet.namespace]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def in_force(pairs: list[Pair]) -> dict[str, str | None]:
    """The model that decides on each agent, or else the strategy."""
    found: dict[str, str | None] = {}
    for pair in pairs:
        try:
            told: dict[str, Any] = httpx.get(f"{pair.agent_url}/agent/v1/status").json()
        except httpx.ConnectError:
            told = {}
        found[pair.name] = told.get("modelInForce") or (told.get("strategyInForce") if told.get("generation") else None)
    return found


def phase(fleet: Fleet) -> str:
    return str(((fleet.pool().get("status") or {}).get("rollout") or {}).get("phase", ""))


def test_a_model_decides_on_a_canary_then_on_all_and_on_none_when_the_policy_goes_back(
    fleet: Fleet, account: Path, tmp_path: Path
) -> None:
    digest = digest_of(MODEL.read_bytes())
    pairs = [fleet.new_pair() for _ in range(3)]
    names = [pair.name for pair in pairs]
    with running_operator(tmp_path, account, fleet.namespace, name="one", command=COMMAND):
        # given a pool under load that the anchor decides for
        push(fleet)
        fleet.apply("HBMPolicy", "mine", {"strategy": "MissRatioCurve", "rollout": TRIAL})
        fleet.apply_pool("pool", *pairs, policies={"hbm": "mine"})
        fleet.start(*pairs)
        eventually(lambda: in_force(pairs) == dict.fromkeys(names, "MissRatioCurve"), why=lambda: in_force(pairs))
        fleet.wait_for_condition("allocatormodel/split-1", "Verified")
        with requests_to(*pairs):
            # when the policy asks for the model, then one agent runs it first
            change = {"strategy": "Learned", "enforcement": "Active", "learned": {"model": "split-1"}}
            fleet.patch("hbmpolicies", "mine", change)
            eventually(lambda: phase(fleet) == "Canary", timeout_seconds=120, why=fleet.pool)
            (canary,) = fleet.pool()["status"]["rollout"]["canaries"]
            mine = canary["name"].removeprefix("pool-")
            expected = {name: digest if name == mine else "MissRatioCurve" for name in names}
            eventually(lambda: in_force(pairs) == expected, why=lambda: in_force(pairs))
            eventually(lambda: fleet.get("allocatormodels", "split-1")["status"]["instances"] == 1)
            # and all of them once it has soaked
            eventually(lambda: phase(fleet) == "Complete", timeout_seconds=240, why=fleet.pool)
            eventually(lambda: in_force(pairs) == dict.fromkeys(names, digest), why=lambda: in_force(pairs))
            eventually(lambda: fleet.get("hbmpolicies", "mine")["status"].get("model") == "split-1")
            assert condition(fleet.pool(), "RolloutProgressing")["reason"] == "Complete"
            # when it goes back, then none runs it, and nothing says that one does
            fleet.patch("hbmpolicies", "mine", {"strategy": "Static"})
            eventually(lambda: in_force(pairs) == dict.fromkeys(names, "Static"), why=lambda: in_force(pairs))
            eventually(lambda: "model" not in fleet.get("hbmpolicies", "mine")["status"])
            eventually(lambda: condition(fleet.get("allocatormodels", "split-1"), "InUse").get("status") == "False")
