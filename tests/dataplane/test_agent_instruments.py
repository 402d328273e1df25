"""What the agent's own instruments write, Prometheus reads: the same numbers, kinds, labels and texts."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dataplane.instruments import Counter, Gauge, Histogram, Registry


def read(registry: Registry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(registry.text().decode())
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def test_kinds_texts_and_numbers_are_those_that_were_given() -> None:
    registry = Registry()
    counter = Counter("a_total", "How many,\nby kind of \\ thing", ("kind", "why"), registry=registry)
    counter.labels(why='"quoted"\n', kind="x\\y").inc()
    counter.labels(kind="x\\y", why='"quoted"\n').inc(2.5)
    plain = Counter("b_total", "Plain", registry=registry)
    gauge = Gauge("c", "A gauge", registry=registry)
    gauge.set(-1e30)
    plain.inc(0)
    numbers = read(registry)
    assert numbers["a_total", (("kind", "x\\y"), ("why", '"quoted"\n'))] == 3.5
    assert numbers["b_total", ()] == 0.0
    assert numbers["c", ()] == -1e30
    families = {family.name: family for family in text_string_to_metric_families(registry.text().decode())}
    assert {name: family.type for name, family in families.items()} == {"a": "counter", "b": "counter", "c": "gauge"}
    assert families["a"].documentation == "How many,\nby kind of \\ thing"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.1, 1 << 60, True])
def test_every_number_comes_back(value: float) -> None:
    registry = Registry()
    Gauge("g", "x", registry=registry).set(value)
    found = read(registry)["g", ()]
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_a_histogram_counts_up_to_each_bound() -> None:
    registry = Registry()
    histogram = Histogram("h_seconds", "x", registry=registry, buckets=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    numbers = read(registry)
    counts = [numbers["h_seconds_bucket", (("le", bound),)] for bound in ("0.1", "1.0", "+Inf")]
    assert (counts, numbers["h_seconds_count", ()]) == ([2, 3, 4], 4)
    assert numbers["h_seconds_sum", ()] == pytest.approx(7.65)


def test_a_counter_never_shrinks_and_labels_are_all_given() -> None:
    registry = Registry()
    counter = Counter("a_total", "x", ("kind",), registry=registry)
    with pytest.raises(ValueError, match="grow"):
        counter.labels(kind="a").inc(-1)
    with pytest.raises(ValueError, match="grow"):
        counter.labels(kind="a").inc(math.nan)
    with pytest.raises(KeyError):
        counter.labels(other="a")
