"""The reference engine passes every check of the contract, and engines that break it are caught by name."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from engine_process import EngineProcess, in_process, small_config

from contract import engine
from contract.conformance import Result, Verdict, as_text, run
from engines.reference.server import EngineServer
from simulator.core.instance import GRInstanceCore


def not_passed(results: list[Result]) -> dict[str, Verdict]:
    return {result.name: result.verdict for result in results if result.verdict is not Verdict.PASSED}


async def test_every_check_passes_on_a_process_that_can_be_restarted(
    tmp_path: Path, new_engine: Callable[..., EngineProcess]
) -> None:
    process = new_engine("--listen", f"unix:{tmp_path}/engine.sock", "--rows-one-in", "64")
    ready = await process.start()

    async def restart() -> None:
        await process.stop()
        await process.start()

    results = await run(ready["listen"], restart=restart)
    assert not_passed(results) == {}, as_text(results)
    assert await process.stop() == (0, "")


@pytest.mark.parametrize("options", [{"defer_shrinks_ms": 100.0}, {"max_split_change_bytes": 16 << 20}, {"emb_percent": 0}])
async def test_every_variant_of_the_engine_fails_no_check(options: dict[str, Any]) -> None:
    async with in_process(GRInstanceCore(small_config(**options), seed=1, start_id="first")) as url:
        results = await run(url, token=None)
    assert Verdict.FAILED not in not_passed(results).values(), as_text(results)


class GrowsBeforeTheShrinkIsDone(GRInstanceCore):
    def put_split(self, request: engine.SplitRequest, *, now_ms: float) -> engine.SplitAnswer:
        answer = super().put_split(request, now_ms=now_ms)
        if answer.status is engine.SplitStatus.DEFERRED:
            self.emb.set_limit(request.emb_bytes)
            limits = engine.PoolBytes(emb_bytes=request.emb_bytes, kv_bytes=request.kv_bytes)
            answer = msgspec.structs.replace(answer, split=msgspec.structs.replace(answer.split, limits=limits))
        return answer


class IgnoresTheStartId(GRInstanceCore):
    def put_split(self, request: engine.SplitRequest, *, now_ms: float) -> engine.SplitAnswer:
        return super().put_split(msgspec.structs.replace(request, start_id=self.start_id), now_ms=now_ms)


class AcceptsGaps(GRInstanceCore):
    def put_split(self, request: engine.SplitRequest, *, now_ms: float) -> engine.SplitAnswer:
        if request.revision > self.split.revision:
            request = msgspec.structs.replace(request, revision=self.split.revision + 1)
        return super().put_split(request, now_ms=now_ms)


class KeepsTheEpoch(GRInstanceCore):
    def invalidate(self, request: engine.InvalidateRequest) -> engine.UsersAnswer:
        answer = super().invalidate(request)
        self.epoch = 0
        return answer


class ResetsCounters(GRInstanceCore):
    def observe(self, now_ms: float) -> engine.Observe:
        seen = super().observe(now_ms)
        self.tally.kv_asked = self.tally.kv_hit = 0
        return seen


class LosesSamplesSilently(GRInstanceCore):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        read = self.samples.read
        self.samples.read = lambda cursor: (read(cursor)[0][24:], *read(cursor)[1:])  # type: ignore[method-assign]


class KeepsWhoItEvicted(GRInstanceCore):
    def evict(self, user_keys: Iterable[str]) -> engine.UsersAnswer:
        resident = {key[0] for key in self.kv.keys_oldest_first()}
        return engine.UsersAnswer(affected=sum(key in resident for key in user_keys), bytes=1)


class IsReadyWhileItDrains(GRInstanceCore):
    def ready(self) -> engine.ReadyAnswer:
        return engine.ReadyAnswer(ready=True)


class DrainsForEver(GRInstanceCore):
    def drain(self, *, draining: bool = True) -> engine.DrainAnswer:
        return super().drain()


class ForgetsToTellWhoWentAway(GRInstanceCore):
    def evict(self, user_keys: Iterable[str]) -> engine.UsersAnswer:
        answer = super().evict(user_keys)
        for key in user_keys:
            self.resident._changes.pop(key, None)
        return answer


@pytest.mark.parametrize(
    ("make", "check"),
    [
        (ForgetsToTellWhoWentAway, "residency_tells_whose_state_changed"),
        (IsReadyWhileItDrains, "a_drain_is_told_and_taken_back"),
        (GrowsBeforeTheShrinkIsDone, "split_deferred_holds_growth_back"),
        (IgnoresTheStartId, "split_for_another_process_is_conflict"),
        (AcceptsGaps, "split_gap_is_conflict"),
        (KeepsTheEpoch, "invalidation_begins_an_epoch"),
        (ResetsCounters, "counters_count_and_never_shrink"),
        (LosesSamplesSilently, "samples_follow_the_cursor"),
        (KeepsWhoItEvicted, "evicted_users_are_gone"),
    ],
)
async def test_an_engine_that_breaks_a_rule_fails_the_check_of_that_rule(make: Callable[..., GRInstanceCore], check: str) -> None:
    async with in_process(make(small_config(defer_shrinks_ms=50.0), seed=1)) as url:
        results = await run(url)
    assert not_passed(results).get(check) is Verdict.FAILED, as_text(results)


async def test_an_engine_that_cannot_take_a_drain_back_is_told_to_be_restarted() -> None:
    async with in_process(DrainsForEver(small_config(), seed=1)) as url:
        results = await run(url)
    assert not_passed(results)["a_drain_is_told_and_taken_back"] is Verdict.SKIPPED
    assert "restart it" in as_text(results)


async def test_an_engine_that_does_not_tell_whose_state_it_holds_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object) -> web.Response:
        raise web.HTTPNotFound

    monkeypatch.setattr(EngineServer, "residency", unknown)
    async with in_process(GRInstanceCore(small_config(), seed=1)) as url:
        results = await run(url)
    assert not_passed(results)["residency_tells_whose_state_changed"] is Verdict.SKIPPED


async def test_an_engine_that_does_not_answer_fails_every_check() -> None:
    results = await run("http://127.0.0.1:1", timeout_s=0.5)
    assert {result.verdict for result in results} <= {Verdict.FAILED, Verdict.SKIPPED}
    assert "0 passed" in as_text(results)
