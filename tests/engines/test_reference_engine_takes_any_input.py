"""Whatever bytes arrive on whatever route: an answer below 500, no stack trace, and the pool is never exceeded."""

import json
import random
from typing import Any

import aiohttp
from engine_process import ManualClock, in_process, small_config

from simulator.core.instance import GRInstanceCore

USER = "0123456789abcdef0123456789abcdef"
VALID: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "rank", {"requestId": "r", "userKey": USER, "modelVersion": "1", "historyTokens": 100, "candidates": 10,
                      "arrivalMs": 5.0, "rowsPerToken": 2, "itemPopularity": {"exponent": 1.0, "catalogRows": 999, "offset": 3}}),
    ("POST", "pre-infer", {"requestId": "r", "userKey": USER, "modelVersion": "1", "historyTokens": 100, "arrivalMs": 5.0}),
    ("PUT", "split", {"startId": "s", "revision": 1, "embBytes": 1 << 20, "kvBytes": 1 << 20, "refillBytesPerSecond": 5}),
    ("PUT", "limits", {"revision": 1, "preInferSlots": 2, "preInferBytes": 1 << 20, "hostBytes": 0, "ssdBytes": 0}),
    ("POST", "evict", {"userKeys": [USER]}),
    ("POST", "prefetch", {"userKeys": [USER]}),
    ("POST", "invalidate", {"modelVersion": "1", "embVersion": None}),
]  # fmt: skip
ODD: list[Any] = [
    None, True, -1, 0, 1, 1 << 62, (1 << 62) + 1, 1 << 80, 1.5, -0.0, 1e308, 1e-308,
    "", "x" * 5000, "\x00", "ü", [], {}, [[]], {"a": 1}, USER,
]  # fmt: skip


def mutated(body: dict[str, Any], chance: random.Random) -> bytes:
    """One to three fields replaced, dropped or added; sometimes the bytes themselves are cut or scrambled."""
    out = json.loads(json.dumps(body))
    for _ in range(chance.randint(1, 3)):
        inner = (
            out["itemPopularity"]
            if "itemPopularity" in body and isinstance(out.get("itemPopularity"), dict) and chance.random() < 0.3
            else out
        )
        field = chance.choice([*inner, "unknownField"]) if inner else "unknownField"
        if chance.random() < 0.15:
            inner.pop(field, None)
        else:
            inner[field] = chance.choice(ODD)
    raw = json.dumps(out).encode()
    if chance.random() < 0.1:
        raw = raw[: chance.randrange(len(raw))]
    if chance.random() < 0.1:
        raw = bytes(chance.choice([byte, chance.randrange(256)]) for byte in raw)
    return raw


async def test_mutated_requests_get_an_answer_and_leave_the_engine_sound() -> None:
    chance = random.Random(20240)
    core = GRInstanceCore(small_config(), seed=1, start_id="s")
    async with in_process(core, wall=ManualClock()) as url, aiohttp.ClientSession() as client:
        for _ in range(1500):
            method, path, body = chance.choice(VALID)
            raw = mutated(body, chance)
            async with client.request(method, f"{url}/gr/v1/{path}", data=raw) as response:
                text = await response.text()
                assert response.status < 500, (path, raw[:300], text[:300])
                assert "Traceback" not in text
                if response.status == 400:
                    assert json.loads(text)["error"]
            emb, kv = core.emb, core.kv
            assert max(emb.limit_bytes, emb.used_bytes) + max(kv.limit_bytes, kv.used_bytes) <= core.config.pool_bytes
        assert core.tally.requests > 20, "some of the mutations are harmless"
        async with client.get(f"{url}/gr/v1/observe") as response:
            assert response.status == 200
        async with client.get(f"{url}/metrics") as response:
            assert response.status == 200
