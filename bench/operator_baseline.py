"""The same outside work as the operator's, without an operator: the cost that no design can go below in this language.

A process of its own, so that its CPU time includes start and imports as the operator's does: `python -m bench.operator_baseline
MODE` with a JSON job on stdin, JSON figures on stdout.

- `write`: list all GRInstances, then one server-side apply of a status each;
- `list`: list every kind that the operator watches, once;
- `poll`: ask every agent of the job once, as the operator does each ten seconds.
"""

import asyncio
import json
import re
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from contract.agent import AgentStatus

GROUP = "/apis/grfleet.dev/v1alpha1"
PLURALS = ("grservingpools", "grinstances", "hbmpolicies", "routingpolicies", "grroutingtables")
CONCURRENT = 16


async def _each(items: list[Any], work: Any) -> None:
    """Run the coroutine function over the items, a few at a time."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(CONCURRENT)))


async def _list(session: aiohttp.ClientSession, job: dict[str, Any], plural: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    token = ""
    while True:
        query = {"limit": "500", **({"continue": token} if token else {})}
        async with session.get(f"{job['url']}{GROUP}/namespaces/{job['namespace']}/{plural}", params=query) as answer:
            answer.raise_for_status()
            page = json.loads(await answer.read())
        found += page["items"]
        token = page["metadata"].get("continue") or ""
        if not token:
            return found


async def _write(session: aiohttp.ClientSession, job: dict[str, Any]) -> None:
    condition = {
        "type": "Baseline",
        "status": "True",
        "reason": "Measured",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }

    async def apply(instance: dict[str, Any]) -> None:
        metadata = instance["metadata"]
        body = {
            "apiVersion": "grfleet.dev/v1alpha1",
            "kind": "GRInstance",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "status": {"conditions": [condition]},
        }
        path = f"{GROUP}/namespaces/{metadata['namespace']}/grinstances/{metadata['name']}/status"
        async with session.patch(
            f"{job['url']}{path}",
            params={"fieldManager": "baseline", "force": "true"},
            data=json.dumps(body),
            headers={"content-type": "application/apply-patch+yaml"},
        ) as answer:
            answer.raise_for_status()
            await answer.read()

    await _each(await _list(session, job, "grinstances"), apply)


async def _poll(session: aiohttp.ClientSession, job: dict[str, Any]) -> None:
    async def ask(url: str) -> None:
        async with session.get(f"{url}/agent/v1/status") as answer:
            msgspec.json.decode(await answer.read(), type=AgentStatus)

    await _each(job["agents"], ask)


async def _work(mode: str, job: dict[str, Any]) -> None:
    context = ssl.create_default_context(cafile=job["ca_file"])
    connector = aiohttp.TCPConnector(limit=CONCURRENT, ssl=context)
    headers = {"authorization": f"Bearer {job['token']}"} if mode != "poll" else {}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        if mode == "write":
            await _write(session, job)
        elif mode == "list":
            for plural in PLURALS:
                await _list(session, job, plural)
        else:
            await _poll(session, job)


def main() -> None:
    """Do the work of the mode in argv and print what it cost."""
    job = json.load(sys.stdin)
    began, cpu = time.monotonic(), time.process_time()
    asyncio.run(_work(sys.argv[1], job))
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    figures = {
        "wall_s": time.monotonic() - began,
        "cpu_s": time.process_time(),
        "work_cpu_s": time.process_time() - cpu,
        "rss_mib": int(peak[1]) / 1024 if peak else 0.0,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
