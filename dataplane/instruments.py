"""Counters, gauges and histograms in the Prometheus text format, and nothing else.

The client library of Prometheus brings a web server, a push gateway and TLS with it: nine megabytes of the fifty that an agent
may take beside an engine. What an agent shows is three kinds of numbers with at most two labels, which is this page; a test reads
it with that library's parser.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

Labels = tuple[str, ...]


class Registry:
    """All instruments of one agent, in the order in which they were made."""

    def __init__(self) -> None:
        self._instruments: list[_Instrument] = []

    def __iter__(self) -> Iterator[_Instrument]:
        return iter(self._instruments)

    def add(self, instrument: _Instrument) -> None:
        """Show it from now on."""
        self._instruments.append(instrument)

    def text(self) -> bytes:
        """Return everything in the text format, version 0.0.4."""
        lines: list[str] = []
        for each in self._instruments:
            lines += [f"# HELP {each.name} {_escaped(each.help)}", f"# TYPE {each.name} {each.kind}", *each.lines()]
        return ("\n".join(lines) + "\n").encode()


class _Instrument:
    """Name, help and labels of a family of numbers."""

    kind = "untyped"

    def __init__(self, name: str, text: str, label_names: Sequence[str] = (), *, registry: Registry) -> None:
        self.name = name
        self.help = text
        self.label_names = tuple(label_names)
        registry.add(self)

    def lines(self) -> Iterator[str]:
        """Yield the lines of all series."""
        raise NotImplementedError

    def _series(self, values: Labels = (), *, suffix: str = "", more: str = "") -> str:
        pairs = [f'{name}="{_escaped(value, quotes=True)}"' for name, value in zip(self.label_names, values, strict=True)]
        inside = ",".join([*pairs, more] if more else pairs)
        return f"{self.name}{suffix}{{{inside}}}" if inside else f"{self.name}{suffix}"


class _Number:
    """One series; a family without labels is its own."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1.0) -> None:
        """Add to a counter; ValueError below zero."""
        if not by >= 0.0:
            raise ValueError(f"{by} would not make a counter grow")
        self.value += by

    def set(self, value: float) -> None:
        """Let a gauge be this number."""
        self.value = float(value)


class _Numbers(_Instrument):
    """One number for each set of labels."""

    def __init__(self, name: str, text: str, label_names: Sequence[str] = (), *, registry: Registry) -> None:
        super().__init__(name, text, label_names, registry=registry)
        self._numbers: dict[Labels, _Number] = {} if label_names else {(): _Number()}

    def labels(self, **values: str) -> _Number:
        """The series with these labels, which begins at 0; KeyError when one is not given."""
        key = tuple(map(values.__getitem__, self.label_names))
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = _Number()
        return found

    def lines(self) -> Iterator[str]:
        for values, number in self._numbers.items():
            yield f"{self._series(values)} {_text(number.value)}"


class Counter(_Numbers):
    """Numbers that only grow."""

    kind = "counter"

    def inc(self, by: float = 1.0) -> None:
        """Add to the only series of a family without labels; ValueError below zero."""
        self._numbers[()].inc(by)


class Gauge(_Numbers):
    """Numbers that go up and down."""

    kind = "gauge"

    def set(self, value: float) -> None:
        """Set the only series of a family without labels."""
        self._numbers[()].set(value)


class Histogram(_Instrument):
    """Counts of what was observed, by upper bounds."""

    kind = "histogram"

    def __init__(self, name: str, text: str, *, registry: Registry, buckets: Sequence[float]) -> None:
        super().__init__(name, text, registry=registry)
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self) -> Iterator[str]:
        so_far = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            so_far += count
            series = self._series(suffix="_bucket", more=f'le="{_text(bound)}"')
            yield f"{series} {_text(so_far)}"
        yield f"{self._series(suffix='_count')} {_text(so_far)}"
        yield f"{self._series(suffix='_sum')} {_text(self._sum)}"


def _text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
