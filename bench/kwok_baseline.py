"""A list and a watch of pods without an operator: the cost that no design can go below in this language.

A process of its own, so that its CPU time includes start and imports as the operator's does: `python -m bench.kwok_baseline` with
a JSON job on stdin. It keeps every pod whole, says `listed` once the list is in, and goes on until it is ended.
"""

import asyncio
import json
import ssl
import sys
from typing import Any

import aiohttp

PAGE = 500
PIECE = 1 << 16


async def _list(session: aiohttp.ClientSession, url: str, pods: dict[str, Any]) -> str:
    token = ""
    while True:
        query = {"limit": str(PAGE), **({"continue": token} if token else {})}
        async with session.get(url, params=query) as answer:
            answer.raise_for_status()
            page = json.loads(await answer.read())
        pods.update({item["metadata"]["name"]: item for item in page["items"]})
        token = page["metadata"].get("continue") or ""
        if not token:
            return str(page["metadata"]["resourceVersion"])


async def _watch(session: aiohttp.ClientSession, url: str, version: str, pods: dict[str, Any]) -> str:
    """Follow one watch until the API server ends it, which it does when it is short of time; returns where to go on."""
    query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
    async with session.get(url, params=query) as answer:
        answer.raise_for_status()
        rest = b""
        async for chunk in answer.content.iter_chunked(PIECE):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise RuntimeError(event["object"]["message"])
                metadata = event["object"]["metadata"]
                version = metadata["resourceVersion"]
                if event["type"] == "DELETED":
                    pods.pop(metadata["name"], None)
                elif event["type"] != "BOOKMARK":
                    pods[metadata["name"]] = event["object"]
    return version


async def _work(job: dict[str, str]) -> None:
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=job["ca_file"]))
    headers = {"authorization": f"Bearer {job['token']}"}
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=1 << 20
    ) as session:
        pods: dict[str, Any] = {}
        url = f"{job['url']}/api/v1/namespaces/{job['namespace']}/pods"
        version = await _list(session, url, pods)
        print("listed", flush=True)
        while True:
            version = await _watch(session, url, version, pods)
            print(f"watch ended at {version} with {len(pods)} pods", flush=True)


if __name__ == "__main__":
    asyncio.run(_work(json.load(sys.stdin)))
    print("ended", flush=True)
