"""Runs the checks in order and says what came out, one line a check."""

import asyncio
import enum
from collections.abc import Sequence
from dataclasses import dataclass

from contract.conformance import serving_checks, split_checks
from contract.conformance.session import Failed, Restart, Session, Skipped
from contract.engine_client import EngineClient
from contract.errors import ProtocolViolation, Unreachable


class Verdict(enum.StrEnum):
    PASSED = "ok"
    FAILED = "FAIL"
    SKIPPED = "skip"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one check came to; `detail` says why when it did not pass."""

    name: str
    verdict: Verdict
    detail: str = ""


CHECKS = (*serving_checks.CHECKS, *split_checks.CHECKS)


async def run(
    url: str, *, token: str | None = None, restart: Restart | None = None, timeout_s: float = 5.0, wait_s: float = 0.0
) -> list[Result]:
    """Run every check against one idle engine.

    Parameters
    ----------
    url, token : str
        As for `EngineClient`.
    restart : callable, optional
        Restarts the engine at the same address.
    timeout_s : float
        Limit of each call in seconds.
    wait_s : float
        How long an engine that is still starting may take to answer for the first time.

    Returns
    -------
    list[Result]
        One a check, in order. An engine that does not answer at all fails each.
    """
    results = []
    async with EngineClient(url, token=token, timeout_s=timeout_s) as client:
        await answering(client, wait_s)
        session = Session(url=url, client=client, token=token, restart=restart)
        for check in CHECKS:
            verdict, detail = Verdict.PASSED, ""
            try:
                await check(session)
            except Skipped as reason:
                verdict, detail = Verdict.SKIPPED, str(reason)
            except (Failed, ProtocolViolation, Unreachable) as error:
                verdict, detail = Verdict.FAILED, str(error)
            results.append(Result(name=check.__name__, verdict=verdict, detail=detail))
    return results


async def answering(client: EngineClient, wait_s: float) -> None:
    """Return once the engine answers, or when the time is over."""
    deadline = asyncio.get_running_loop().time() + wait_s
    while asyncio.get_running_loop().time() < deadline:
        try:
            await client.describe()
            return
        except ProtocolViolation:
            return
        except Unreachable:
            await asyncio.sleep(0.1)


def as_text(results: Sequence[Result]) -> str:
    """Return a readable report: a line a check and a closing line with the counts."""
    lines = [f"{result.verdict.value:<4}  {result.name}" + (f": {result.detail}" if result.detail else "") for result in results]
    counts = [f"{sum(result.verdict == verdict for result in results)} {verdict.name.lower()}" for verdict in Verdict]
    return "\n".join([*lines, ", ".join(counts)])
