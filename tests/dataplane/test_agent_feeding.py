"""Rounds that follow each other quickly share one window of samples, and nothing is lost or counted twice by that."""

import numpy as np
import pytest
from dataplane_fakes import FakeEngine

from contract.engine import Observe
from contract.samples import KIND_EMB, MAX_BATCH_RECORDS, RECORD
from dataplane.agent.estimate import FEED_MS, MAX_BATCHES, Estimators
from dataplane.agent.observe import Observer, Reading


class Counting(FakeEngine):
    """Counts how often its samples are read."""

    reads = 0

    async def samples(self, cursor: int):  # type: ignore[no-untyped-def]  # as in the fake
        self.reads += 1
        return await super().samples(cursor)


async def rounds(engine: Counting, estimators: Estimators, *, step_ms: float, number: int) -> list[Observe]:
    observer, seen = Observer(engine), []
    for _ in range(number):
        reading = await observer.read()
        assert isinstance(reading, Reading)
        await estimators.feed(engine, reading, waited_ms=step_ms)
        seen.append(reading.now)
        engine.clock_ms += step_ms
        engine.touch(kind=0, key=7, size=100, time_ms=engine.clock_ms - 1.0)
    return seen


async def test_ten_rounds_in_a_second_read_the_samples_once_and_take_all_of_them() -> None:
    engine, estimators = Counting(), Estimators()
    seen = await rounds(engine, estimators, step_ms=100.0, number=28)
    assert engine.reads == 1 + int(2700.0 / FEED_MS)
    assert estimators.samples == 27
    assert seen[-1].clock_ms - seen[0].clock_ms == 2700.0


async def test_at_one_round_a_second_every_round_reads_them() -> None:
    engine, estimators = Counting(), Estimators()
    await rounds(engine, estimators, step_ms=1000.0, number=6)
    assert (engine.reads, estimators.samples) == (6, 5)


async def test_a_round_a_second_that_comes_a_little_early_reads_them_too() -> None:
    engine, estimators = Counting(), Estimators()
    await rounds(engine, estimators, step_ms=975.0, number=6)
    assert (engine.reads, estimators.samples) == (6, 5)


async def test_what_is_known_is_the_same_value_until_more_is() -> None:
    engine, estimators = Counting(), Estimators()
    await rounds(engine, estimators, step_ms=1000.0, number=3)
    first = estimators.view()
    assert estimators.view() is first
    await rounds(engine, estimators, step_ms=1000.0, number=2)
    assert estimators.view() is not first


async def test_a_short_memory_is_fed_more_often() -> None:
    engine, estimators = Counting(), Estimators(memory_ms=1000.0)
    await rounds(engine, estimators, step_ms=100.0, number=11)
    assert engine.reads == 11


async def test_a_new_price_of_a_miss_is_known_long_before_the_curves_have_forgotten_the_old_load() -> None:
    engine, estimators = Counting(), Estimators(memory_ms=60_000.0)
    observer = Observer(engine)

    async def price_after(seconds: int, *, times: float) -> float:
        for _ in range(seconds):
            paid = engine.totals["emb_miss"]
            engine.serve()
            engine.totals["emb_miss"] = paid + times * (engine.totals["emb_miss"] - paid)
            reading = await observer.read()
            assert isinstance(reading, Reading)
            await estimators.feed(engine, reading, waited_ms=1000.0)
        costs = estimators.view().costs
        assert costs is not None
        return costs.ms_per_emb_miss_row

    before = await price_after(90, times=1.0)
    after = await price_after(20, times=2.0)
    assert 1.8 < after / before < 2.0, "within a third of the memory, and not at once"


class Flooding(Counting):
    """Has a full batch whenever it is asked."""

    async def samples(self, cursor: int):  # type: ignore[no-untyped-def]  # as in the fake
        self.reads += 1
        batch = np.zeros(MAX_BATCH_RECORDS, dtype=RECORD)
        batch["time_us"] = self.clock_ms * 1000.0
        return batch, cursor + len(batch), 0


async def test_a_flood_of_samples_is_taken_in_by_parts() -> None:
    engine, estimators = Flooding(), Estimators()
    await rounds(engine, estimators, step_ms=1000.0, number=4)
    assert engine.reads == 4 * MAX_BATCHES
    assert estimators.samples == 3 * MAX_BATCHES * MAX_BATCH_RECORDS


@pytest.mark.parametrize("lost", [0, 1, 20])
async def test_samples_that_were_lost_are_not_taken_for_accesses_that_hit(lost: int) -> None:
    """No row ever comes back, so every access misses, whatever part of them was heard of."""
    engine, estimators = FakeEngine(), Estimators()
    observer = Observer(engine)
    for second in range(12):
        reading = await observer.read()
        assert isinstance(reading, Reading)
        await estimators.feed(engine, reading, waited_ms=1000.0)
        engine.serve(requests=16)  # asks for 32 000 rows, of which it samples one in 16
        kept = 2000 // (1 + lost)
        for number in range(kept):
            engine.touch(kind=KIND_EMB, key=(second * 2000 + number + 1) * 2**32, size=1, time_ms=engine.clock_ms - 1.0)
        engine.lost = 2000 - kept
    curve = estimators.view().emb
    assert curve is not None
    assert min(np.asarray(curve.miss_ratio)[:10]) > 0.9
