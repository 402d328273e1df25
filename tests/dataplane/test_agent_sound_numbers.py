"""The quick look at a reading sees every number that the slow one names."""

import math
from typing import Any

import msgspec
import pytest
from dataplane_fakes import FakeEngine

from contract.engine import Observe
from dataplane.agent.observe import _all_numbers_are_sound, _numbers, _paths


async def full_reading() -> Observe:
    """A reading in which no number is left out."""
    seen = await FakeEngine().observe()
    pre_infer = msgspec.structs.replace(seen.counters.pre_infer, slot_ms=1.0)
    latency = msgspec.structs.replace(seen.latency, counts={0: 1, 5: 2})
    return msgspec.structs.replace(
        seen, counters=msgspec.structs.replace(seen.counters, pre_infer=pre_infer), latency=latency, draining=None
    )


def replaced(value: Any, path: list[str], number: float) -> Any:
    if not path:
        return number
    return msgspec.structs.replace(value, **{path[0]: replaced(getattr(value, path[0]), path[1:], number)})


async def test_it_knows_every_number_of_a_reading() -> None:
    named = {name for name, _ in _numbers("", await full_reading()) if "[" not in name}
    assert set(_paths(Observe)) == named
    assert len(named) > 40


@pytest.mark.parametrize("number", [-1, math.nan, math.inf, -math.inf])
async def test_no_number_can_hide_behind_another(number: float) -> None:
    sound = await full_reading()
    assert _all_numbers_are_sound(sound)
    for path in _paths(Observe):
        assert not _all_numbers_are_sound(replaced(sound, path.split("."), number)), path
    counts = msgspec.structs.replace(sound.latency, counts={0: 10, 3: number})
    assert not _all_numbers_are_sound(msgspec.structs.replace(sound, latency=counts))
