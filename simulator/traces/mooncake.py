"""The Mooncake conversation trace: request lengths, and the hashes of their 512-token blocks, over about an hour.

It has no user column; identity is read off the blocks. **Rule**: blocks that every request of the trace starts with (a common
preamble) belong to nobody and are set aside. A user is the chain of leading blocks after them that no request of anybody else
starts with: requests belong to one user exactly when their first block after the preamble is the same. A request that is shorter
than the preamble plus one block shares nothing and is a user of its own. Later turns of a conversation then carry the same user
and a longer history, in the order in which they really came.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from simulator.traces.events import TraceEvent
from simulator.traces.reading import MAX_TIME_MS, MAX_TOKENS, TraceError, lines_of


class _Line(msgspec.Struct):
    timestamp: Annotated[float, Meta(ge=0, le=MAX_TIME_MS)]
    input_length: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    output_length: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    hash_ids: Annotated[list[int], Meta(max_length=1 << 16)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeRecord:
    """One request: time in ms since the start, prompt length in tokens, hashes of its blocks from the first on."""

    time_ms: float
    input_tokens: int
    blocks: tuple[int, ...]


def load_mooncake(path: Path) -> list[MooncakeRecord]:
    """Return the requests of the trace in file order.

    Raises
    ------
    TraceError
        Names file, line and field of the first bad value.
    """
    decoder = msgspec.json.Decoder(_Line)
    records: list[MooncakeRecord] = []
    for number, text in lines_of(path):
        try:
            line = decoder.decode(text)
        except msgspec.ValidationError as error:
            problem, _, where = str(error).partition(" - at ")
            raise TraceError(path, problem, line=number, field=where.strip("`").removeprefix("$.") or None) from error
        except msgspec.DecodeError as error:
            raise TraceError(path, f"not a JSON object ({error})", line=number) from error
        if records and line.timestamp < records[-1].time_ms:
            raise TraceError(path, "comes before the line above; sort the trace by time", line=number, field="timestamp")
        records.append(MooncakeRecord(time_ms=line.timestamp, input_tokens=line.input_length, blocks=tuple(line.hash_ids)))
    if not records:
        raise TraceError(path, "holds no request")
    return records


def user_events(records: Sequence[MooncakeRecord]) -> list[TraceEvent]:
    """Return one event per request, its user found by the rule above; the trace knows no candidates, so they are 0."""
    preamble = _common_blocks(records)
    events = []
    for index, record in enumerate(records):
        own = record.blocks[preamble : preamble + 1]
        user = f"block-{own[0]}" if own else f"short-{index}"
        events.append(TraceEvent(time_ms=record.time_ms, user=user, history_tokens=record.input_tokens, candidates=0))
    return events


def _common_blocks(records: Sequence[MooncakeRecord]) -> int:
    """Return how many leading blocks all requests share, never more than the shortest request has."""
    if len(records) < 2:
        return 0
    first, last = min(record.blocks for record in records), max(record.blocks for record in records)
    # Of sorted tuples the first and the last share the prefix that all share.
    return next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
