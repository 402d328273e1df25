"""The quick look at a reading sees every number that the slow one names."""

import math
from typing import Any

import msgspec
import pytest
from dataplane_fakes import FakeEngine

from contract.engine import Observe
from contract.histogram import MAX_BUCKET, MIN_BUCKET
from dataplane.agent.observe import _all_numbers_are_sound, _counters_of, _fault, _numbers, _paths, _regression
from dataplane.agent.reasons import Freeze


async def full_reading() -> Observe:
    """A reading in which no number is left out."""
    seen = await FakeEngine().observe()
    pre_infer = msgspec.structs.replace(seen.counters.pre_infer, slot_ms=1.0)
    latency = msgspec.structs.replace(seen.latency, counts={0: 1, 5: 2})
    return msgspec.structs.replace(
        seen, counters=msgspec.structs.replace(seen.counters, pre_infer=pre_infer), latency=latency, draining=None
    )


def replaced(value: Any, path: list[str], number: Any) -> Any:
    if not path:
        return number
    return msgspec.structs.replace(value, **{path[0]: replaced(getattr(value, path[0]), path[1:], number)})


def sound(seen: Observe) -> bool:
    return _all_numbers_are_sound(seen, _counters_of(seen.counters))


async def test_it_knows_every_number_of_a_reading() -> None:
    named = {name for name, _ in _numbers("", await full_reading()) if "[" not in name}
    assert set(_paths(Observe)) == named
    assert len(named) > 40


@pytest.mark.parametrize("number", [-1, math.nan, math.inf, -math.inf])
async def test_no_number_can_hide_behind_another(number: float) -> None:
    seen = await full_reading()
    assert sound(seen)
    for path in _paths(Observe):
        assert not sound(replaced(seen, path.split("."), number)), path
    counts = msgspec.structs.replace(seen.latency, counts={0: 10, 3: number})
    assert not sound(msgspec.structs.replace(seen, latency=counts))


@pytest.mark.parametrize(
    ("before", "after", "fell"),
    [
        ({1: 2, 3: 4}, {1: 2, 3: 4}, None),
        ({1: 2, 3: 4}, {1: 2, 3: 5, 7: 1}, None),
        ({1: 2, 3: 4}, {3: 4, 1: 2}, None),
        ({1: 2, 3: 4}, {7: 1, 3: 9, 1: 2}, None),
        ({}, {5: 1}, None),
        ({1: 2, 3: 4}, {1: 2, 3: 3}, 3),
        ({1: 2, 3: 4}, {3: 4, 1: 1}, 1),
        ({1: 2, 3: 4}, {1: 2}, 3),
        ({1: 2, 3: 4}, {1: 2, 5: 9}, 3),
        ({1: 2, 3: 0}, {1: 2}, None),
    ],
)
async def test_a_bucket_that_fell_is_found_in_whatever_order_they_come(
    before: dict[int, int], after: dict[int, int], fell: int | None
) -> None:
    first = await full_reading()
    old, new = (
        msgspec.structs.replace(first, latency=msgspec.structs.replace(first.latency, counts=counts))
        for counts in (before, after)
    )
    found = _regression(new, _counters_of(new.counters), old, _counters_of(old.counters))
    assert (found is None) == (fell is None)
    assert found is None or str(fell) in found[1]


GROW_ONLY = ("epoch", "clock_ms", *(path for path in _paths(Observe) if path.startswith("counters.")))


@pytest.mark.parametrize("path", GROW_ONLY)
async def test_whatever_may_only_grow_for_one_process_is_found_and_named_when_it_falls(path: str) -> None:
    first = await full_reading()
    before, same, fell = (replaced(first, path.split("."), number) for number in (7, 7, 6))
    counted = _counters_of(before.counters)
    assert _regression(same, _counters_of(same.counters), before, counted) is None
    found = _regression(fell, _counters_of(fell.counters), before, counted)
    assert found is not None
    assert found[0] is Freeze.COUNTERS_WENT_BACK
    assert {"clock_ms": "clockMs"}.get(path, path) in found[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"start_id": ""}, Freeze.ENGINE_GARBAGE),
        ({"latency.anchor_ms": 0.0}, Freeze.ENGINE_GARBAGE),
        ({"latency.counts": {MAX_BUCKET + 1: 1}}, Freeze.ENGINE_GARBAGE),
        ({"latency.counts": {MIN_BUCKET - 1: 1}}, Freeze.ENGINE_GARBAGE),
        (
            {"counters.kv.tokens_hit_dram": 1, "counters.kv.tokens_hit_hbm": 1, "counters.kv.tokens_asked": 1},
            Freeze.ENGINE_GARBAGE,
        ),
        ({"counters.emb.rows_hit": 2, "counters.emb.rows_asked": 1}, Freeze.ENGINE_GARBAGE),
        ({"split.limits.kv_bytes": FakeEngine().pool_bytes}, Freeze.LIMITS_ABOVE_POOL),
        ({"split.overage_bytes": -1}, Freeze.ENGINE_GARBAGE),
        ({"counters.work_ms.kv_miss": math.nan}, Freeze.NOT_A_NUMBER),
    ],
)
async def test_what_the_contract_forbids_in_a_reading_has_its_reason(changes: dict[str, Any], reason: Freeze) -> None:
    seen = await full_reading()
    describe = await FakeEngine().describe()
    assert _fault(seen, _counters_of(seen.counters), describe=describe, base=None, base_counted=()) is None
    for path, value in changes.items():
        seen = replaced(seen, path.split("."), value)
    found = _fault(seen, _counters_of(seen.counters), describe=describe, base=None, base_counted=())
    assert found is not None
    assert found[0] is reason
