"""Sends ranking requests of made-up users to an emulated engine: `toy_traffic.py ENGINE REQUESTS_PER_SECOND SECONDS`.

ENGINE is `unix:/path` or `http://host:port`. A few users come often, most come once. Ends with what the last answer says.
"""

import asyncio
import random
import sys
import time

import httpx
import msgspec

from contract.engine import RankAnswer, RankRequest
from contract.keys import user_key

SECRET = b"a key for made-up users"


def made_up(number: int, chance: random.Random) -> RankRequest:
    user = int(chance.paretovariate(0.6))
    return RankRequest(
        request_id=f"toy-{number}",
        user_key=user_key(SECRET, str(user)),
        model_version="1",
        history_tokens=500 + user * 7919 % 3000,
        candidates=200,
    )


async def main(engine: str, rate: float, seconds: float) -> None:
    path = engine.removeprefix("unix:") if engine.startswith("unix:") else None
    chance, number, answers = random.Random(1), 0, []
    async with httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=path), base_url="http://engine" if path else engine, timeout=30
    ) as client:
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            body = msgspec.json.encode(made_up(number, chance))
            answers.append(asyncio.create_task(client.post("/gr/v1/rank", content=body)))
            number += 1
            await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
        done = [(await answer).raise_for_status() for answer in answers]
    last = msgspec.json.decode(done[-1].content, type=RankAnswer)
    sys.stdout.write(
        f"{number} answers; the last found {last.kv_tokens_hit} tokens of its history, in {last.latency_ms:.1f} ms model time\n"
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
