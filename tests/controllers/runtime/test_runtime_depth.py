"""An object that is nested as deeply as the API server admits is an object like any other; what is deeper ends nothing."""

from __future__ import annotations

import contextlib
import json
import random
import resource
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from contract.agent import AgentStatus
from contract.answers import decode
from contract.errors import ProtocolViolation
from controllers.pool.workload import AgentImage, TemplateInvalid, deployment_body
from controllers.runtime import depth, process
from controllers.runtime.clock import FakeClock
from controllers.runtime.depth import DEEPEST, allow_deep_objects, deep_objects
from controllers.runtime.kube import HttpKubeApi, list_all
from controllers.runtime.resources import POOLS
from controllers.runtime.store import Store
from crds import GRServingPool, RoutingPolicySpec

ADMITTED = 9_980
MODEL = '{"name": "m", "version": "1", "kvBytesPerToken": 1, "embRowBytes": 1, "maxHistoryTokens": 1}'
SPEC = f'"model": {MODEL}, "memory": {{"hbmBytes": "80Gi"}}, "slo": {{"p99Ms": 50}}'


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)


def pool(name: str, template: str) -> str:
    metadata = f'{{"name": "{name}", "namespace": "team", "uid": "u-{name}", "resourceVersion": "5"}}'
    return f'{{"metadata": {metadata}, "spec": {{{SPEC}, "instances": {{"managed": {{"template": {template}}}}}}}}}'


def nested(levels: int) -> str:
    return '{"a": ' * levels + "1" + "}" * levels


ENGINE = '{"name": "engine", "ports": [{"name": "gr", "containerPort": 80}], "x": %s}'


async def test_a_pool_with_a_template_as_deep_as_the_api_server_admits_takes_nobody_along() -> None:
    allow_deep_objects()
    deep = pool("deep", nested(ADMITTED))
    deeper, less = (pool(f"engine-{n}", f'{{"spec": {{"containers": [{ENGINE % nested(n)}]}}}}') for n in (ADMITTED, 3000))
    page = f'{{"metadata": {{"resourceVersion": "7"}}, "items": [{deep}, {deeper}, {less}]}}'

    async def transport(*_: Any) -> tuple[int, dict[str, str], str]:
        return 200, {}, page

    kube = HttpKubeApi(transport, clock=FakeClock(), rng=random.Random(1))
    store = Store([POOLS])
    for listed in await list_all(kube, POOLS, None):
        store.upsert(POOLS, listed)
    for watched in json.loads(page)["items"]:  # as the watch library reads them
        store.observe(POOLS, "MODIFIED", {**watched, "metadata": {**watched["metadata"], "resourceVersion": "8"}})
    assert store.count(POOLS) == 3
    problems = [problem_of(stored) for stored in store.all(POOLS)]
    assert ["nested" in problem for problem in problems] == [True, False, True]
    assert problems[1] == ""


def problem_of(stored: Any) -> str:
    """Why there is no Deployment for the pool, in words; empty where there is one that can be sent."""
    try:
        body = deployment_body(
            GRServingPool.parse(stored), stored, agent=AgentImage(reference="agent"), policy=RoutingPolicySpec()
        )
    except TemplateInvalid as problem:
        return str(problem)
    return "" if json.dumps(body) else "nothing to send"


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a":' * 150_000, '{"other": ' + "[" * 900_000])
def test_an_answer_that_is_deeper_than_any_object_is_refused_and_no_more(text: str) -> None:
    allow_deep_objects()
    with pytest.raises(ProtocolViolation):
        decode(text.encode(), AgentStatus)
    with pytest.raises(RecursionError):
        json.loads(text)


@pytest.mark.parametrize(
    ("stack", "limit"), [(resource.RLIM_INFINITY, DEEPEST), (8 << 20, DEEPEST), (64 << 20, DEEPEST), (2 << 20, 1000)]
)
def test_a_stack_that_is_too_small_for_it_keeps_the_limit_that_it_has(
    monkeypatch: pytest.MonkeyPatch, stack: int, limit: int
) -> None:
    sys.setrecursionlimit(1000)
    monkeypatch.setattr(depth.resource, "getrlimit", lambda _: (stack, stack))
    allow_deep_objects()
    assert sys.getrecursionlimit() == limit


def test_a_command_allows_it_while_it_reads_and_no_longer() -> None:
    sys.setrecursionlimit(1500)
    with deep_objects():
        assert sys.getrecursionlimit() == DEEPEST
    with contextlib.suppress(KeyError), deep_objects():
        raise KeyError
    assert sys.getrecursionlimit() == 1500


def test_the_operator_allows_it_before_it_reads_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        """Far enough."""

    def runtime(*_: Any, **__: Any) -> Any:
        raise Started

    monkeypatch.setattr(process, "Runtime", runtime)
    monkeypatch.setattr(process, "_collect_rarely", lambda: None)
    monkeypatch.setattr(process, "configure_logging", lambda **_: None)
    with pytest.raises(Started):
        process.main([], loops=list)
    assert sys.getrecursionlimit() >= DEEPEST
