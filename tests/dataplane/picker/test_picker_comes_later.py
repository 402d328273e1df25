"""An Envoy that was there before its picker: it goes on by itself, and asks within seconds once the picker is there."""

from pathlib import Path

from picker_world import World, owner_in


async def test_an_envoy_that_was_there_before_its_picker_asks_it_within_seconds(envoy: Path, folder: Path) -> None:
    world = World(envoy, folder)
    try:
        await world.start(picker=False)
        assert (await world.ask("ann")).instance == "", "nobody names who answered"
        await world.start_picker()  # waits for Envoy to see it, less long than the minute that is Envoy's own
        assert (await world.ask("ann")).instance == owner_in(world.table, "ann")
    finally:
        await world.stop()
