"""docs/contract.md promises engine authors that four calls are enough to have the split moved."""

import pytest
from dataplane_world import World

from contract.errors import ProtocolViolation


async def test_an_engine_that_answers_four_calls_only_has_its_split_moved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for call in ("put_limits", "drain", "residency"):

        async def refuse(*_: object, call: str = call, **__: object) -> None:
            asked.append(call)
            raise ProtocolViolation(f"{call}: no such path")

        monkeypatch.setattr(world.engine, call, refuse)
    await world.rounds(2)
    world.static(30)
    await world.rounds(4)
    split = world.agent.status().split
    assert split is not None
    assert split.settled
    assert world.emb_percent == pytest.approx(30, abs=1)
    assert asked == []
