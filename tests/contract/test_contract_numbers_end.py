"""Numbers that come over the wire have an end: JSON has none, and what is beyond a float stops whoever calculates with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from contract import agent, engine, histogram, residency, table

NAMED = [
    kind
    for module in (agent, engine, histogram, residency, table)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
]


def numbers(kind: inspect.Type, path: str) -> Iterator[tuple[str, inspect.IntType | inspect.FloatType]]:
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        yield path, kind
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from numbers(one, path)
    elif isinstance(kind, inspect.DictType):
        yield from numbers(kind.key_type, f"{path} (key)")
        yield from numbers(kind.value_type, f"{path} (value)")
    elif isinstance(kind, inspect.CollectionType):
        yield from numbers(kind.item_type, f"{path}[]")


@pytest.mark.parametrize("kind", NAMED, ids=lambda kind: kind.__name__)
def test_each_whole_number_has_a_least_and_a_greatest_value(kind: type[msgspec.Struct]) -> None:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        for path, number in numbers(field.type, field.encode_name):
            if isinstance(number, inspect.IntType):
                assert number.le is not None, path
                assert number.ge is not None, path
                assert number.le < 1 << 64


def test_each_figure_of_an_engine_has_an_end_so_that_no_sum_of_them_is_endless() -> None:
    for kind in (engine.Observe, engine.Counters, engine.WorkMs, engine.Describe, histogram.LatencyHistogram):
        described = inspect.type_info(kind)
        assert isinstance(described, inspect.StructType)
        for field in described.fields:
            for path, number in numbers(field.type, field.encode_name):
                assert number.le is not None, f"{kind.__name__}.{path}"


@pytest.mark.parametrize("field", ["linkBytesPerSecond", "kvBytesPerToken", "embRowBytes", "poolBytes", "granuleBytes"])
def test_a_description_beyond_all_bounds_is_refused_by_the_field(field: str) -> None:
    good: dict[str, Any] = {
        "contractVersion": "v1",
        "engine": "e",
        "emulation": True,
        "startId": "s",
        "epoch": 0,
        "model": {"name": "m", "version": "1"},
        "poolBytes": 1 << 34,
        "granuleBytes": 1 << 26,
        "linkBytesPerSecond": 1,
        "kvBytesPerToken": 1,
        "embRowBytes": 1,
        "resizable": [],
        "keyKinds": [],
        "tiers": [],
        "p99Ms": 1.0,
        "sampling": {"usersOneIn": 1, "rowsOneIn": 1},
    }
    msgspec.convert(good, engine.Describe)
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.json.decode(
            msgspec.json.encode(good).replace(f'"{field}":'.encode(), f'"{field}":9{"0" * 400}'.encode()), type=engine.Describe
        )
