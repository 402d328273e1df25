"""Visits that the tests of this folder share."""

from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from simulator.tiers.visits import Visits, visits_of_events
from simulator.traces import TraceEvent, load_mooncake, user_events

TRACE = Path(__file__).parents[3] / "traces" / "mooncake_conversation.jsonl"


@cache
def conversation() -> Visits:
    return visits_of_events(user_events(load_mooncake(TRACE)), bytes_per_token=16_384)


def visits(*rows: tuple[str, int], every_ms: float = 1000.0) -> Visits:
    """Visits of named users with these bytes of state, at equal distances in time."""
    events = [
        TraceEvent(time_ms=index * every_ms, user=user, history_tokens=size, candidates=1)
        for index, (user, size) in enumerate(rows)
    ]
    return visits_of_events(events, bytes_per_token=1)


ROWS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 60)), min_size=1, max_size=60)
