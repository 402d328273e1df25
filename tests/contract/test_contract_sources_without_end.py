"""A source is taken up again for ever: soon where it works, if only for a moment each time, and less and less where it fails."""

import random
from collections.abc import AsyncGenerator

import pytest

from contract.backoff import Backoff
from contract.table_sources.sources import Sighting
from contract.table_sources.unbroken import unbroken


class Moments:
    """A source whose sessions last so long, and end well or not."""

    label = "moments"

    def __init__(self, lasts_ms: float, *, fails: bool) -> None:
        self.lasts_ms, self.fails = lasts_ms, fails
        self.now_ms = 0.0
        self.pauses: list[float] = []

    async def sightings(self) -> AsyncGenerator[Sighting, None]:
        yield Sighting()
        self.now_ms += self.lasts_ms
        if self.fails:
            raise OSError("cut")

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize(
    ("lasts_ms", "fails", "soon"),
    [(1_000.0, False, True), (999.0, False, False), (1_000.0, True, False), (9_999.0, True, False), (10_000.0, True, True)],
)
async def test_what_works_for_a_moment_is_asked_again_soon_and_what_fails_less_and_less(
    lasts_ms: float, *, fails: bool, soon: bool
) -> None:
    source = Moments(lasts_ms, fails=fails)
    sightings = unbroken(source, rng=random.Random(1), sleep=source.sleep, clock=lambda: source.now_ms)
    async for _ in sightings:
        if len(source.pauses) == 12:
            break
    await sightings.aclose()
    first = Backoff(random.Random(1))
    assert (max(source.pauses) <= 0.2) is soon
    assert (max(source.pauses) > 5.0) is not soon
    assert source.pauses[0] == first.pause_s()
