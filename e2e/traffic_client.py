"""A caller of a pool, run in a pod of its own: it follows the published table with `grfleet.client` and sends ranking requests.

It knows nothing but the pool's name; instances come and go in the table. A request that fails goes once to the next owner, as
ranking is idempotent; what made it fail, a busy machine (slow) or an instance that is not there (refused), is counted apart. Told
of a gateway, it sends everything there with the raw user id and tries nothing twice; then the table only says who should have
answered, and answers of others are counted (elsewhere). Each second one line of JSON says what has happened since the start.
"""

import asyncio
import json
import os
import random
import ssl
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import msgspec

from contract.engine import PREFIX, ItemPopularity, RankRequest
from contract.keys import user_key
from grfleet.client import NoInstance, Router, follow

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
POOL_KEY = b"the pool key of end-to-end tests"
# Users who come back with long histories, and items of which few are popular: KV state is what is short.
USERS, TOKENS, CANDIDATES, ITEMS = 220, 2000, 20, ItemPopularity(exponent=1.2, catalog_rows=200_000)
TIMEOUT = httpx.Timeout(20.0, connect=5.0)  # a busy machine is slow, and that is no failure
GATEWAY_TIMEOUT = 20.0  # and nobody else is there to be asked


class Caller:
    """Sends requests at a steady rate and counts what comes back."""

    def __init__(self, router: Router, engines: httpx.AsyncClient, gateway: str = "") -> None:
        self._router = router
        self._engines = engines
        self._gateway = gateway
        self._dice = random.Random(7)
        self.counts: Counter[str] = Counter(sent=0, answered=0, refused=0, slow=0, failed=0, elsewhere=0)
        self.instances: Counter[str] = Counter()
        self.problems: dict[str, str] = {}  # the last of each kind

    async def ask(self, number: int) -> None:
        """Send one request, to the next owner once more if the first fails."""
        self.counts["sent"] += 1
        user = f"user-{self._dice.randrange(USERS)}"
        key = user_key(POOL_KEY, user)
        request = RankRequest(
            request_id=f"r{number}",
            user_key=key,
            model_version="1",
            history_tokens=TOKENS,
            candidates=CANDIDATES,
            item_popularity=ITEMS,
        )
        if self._gateway:
            await self._ask_gateway(request, user)
            return
        failed: list[str] = []
        for _ in range(2):
            try:
                pick = self._router.pick(key, exclude=failed)
                answer = await self._engines.post(f"{pick.address}{PREFIX}/rank", content=msgspec.json.encode(request))
                answer.raise_for_status()
            except NoInstance as error:
                self.problems["nobody"] = str(error)
                break
            except httpx.HTTPError as error:
                kind = "slow" if isinstance(error, httpx.TimeoutException) else "refused"
                self.problems[kind] = f"{pick.name}: {type(error).__name__} {error}"[:200]
                failed.append(pick.name)
                self.counts[kind] += 1
                continue
            self.counts["answered"] += 1
            self.instances[pick.name] += 1
            return
        self.counts["failed"] += 1

    async def _ask_gateway(self, request: RankRequest, user: str) -> None:
        try:
            url = f"{self._gateway}{PREFIX}/rank"
            answer = await self._engines.post(
                url, content=msgspec.json.encode(request), headers={"x-user-id": user}, timeout=GATEWAY_TIMEOUT
            )
            answer.raise_for_status()
        except httpx.HTTPError as error:
            self.problems["gateway"] = f"{type(error).__name__} {error}"[:200]
            self.counts["failed"] += 1
            return
        name = answer.headers.get("x-gr-instance", "")  # none where a gateway went on without its picker
        self.counts["answered"] += 1
        self.instances[name] += 1
        try:
            self.counts["elsewhere"] += self._router.pick(request.user_key).name != name
        except NoInstance:
            self.counts["elsewhere"] += 1

    def line(self) -> str:
        """What has happened since the start."""
        return json.dumps(
            {
                **self.counts,
                "generation": self._router.generation,
                "instances": dict(self.instances),
                "problems": self.problems,
            }
        )


async def main(namespace: str, pool: str, per_second: float, gateway: str = "") -> None:
    """Run until killed."""
    router = Router()
    url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    async with (
        httpx.AsyncClient(base_url=url, verify=tls, headers=headers, trust_env=False) as api,
        httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, headers={"content-type": "application/json"}) as engines,
    ):
        caller = Caller(router, engines, gateway)
        following = asyncio.create_task(follow(router, api, namespace=namespace, name=pool, on_problem=say))
        while router.generation < 0:  # noqa: ASYNC110 - a router has no event to wait for
            await asyncio.sleep(0.1)
        tasks: set[asyncio.Task[None]] = set()
        started = time.monotonic()
        for number in range(10**9):
            await asyncio.sleep(max(0.0, started + number / per_second - time.monotonic()))
            task = asyncio.create_task(caller.ask(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if number % max(1, int(per_second)) == 0:
                sys.stdout.write(caller.line() + "\n")
                sys.stdout.flush()
        following.cancel()


def say(problem: str) -> None:
    """Interruptions of the table go to the log beside the counts."""
    sys.stderr.write(problem + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[4:]))
