"""Moving memory between pools: whole pages, the published cost of each call, creating pages is what costs."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fleet.config import FleetConfig
from simulator.physics.accelerator import known_accelerators, load_accelerator
from simulator.physics.remap import grow_ms, move, pages_of, shrink_ms

A100 = load_accelerator("a100")
GIB = 1 << 30


@pytest.mark.parametrize(
    ("took_ms", "published_ms"),
    [
        # kvcached on A100, 2 MiB pages: create 193 us, map 1.5, set access 36, unmap 26.
        (grow_ms(A100, GIB, create=True), 120),
        (grow_ms(A100, GIB, create=False), 19),
        (shrink_ms(A100, GIB), 13),
    ],
)
def test_a_gibibyte_costs_what_is_published(took_ms: float, published_ms: float) -> None:
    assert took_ms == pytest.approx(published_ms, rel=0.03)


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 30))
def test_cost_grows_with_bytes_and_never_falls_below_the_pages_it_needs(size: int, more: int) -> None:
    done = move(A100, size)
    assert done.byte_count >= size
    assert done.byte_count - size < A100.page_bytes
    assert done.byte_count == done.pages * A100.page_bytes
    assert move(A100, size + more).total_ms >= done.total_ms
    assert move(A100, size, create=True).total_ms >= done.total_ms == done.unmap_ms + done.map_ms


def test_a_granule_of_256_mebibytes_is_handed_over_in_eight_milliseconds() -> None:
    assert move(A100, 256 << 20).total_ms == pytest.approx(8.1, abs=0.1)
    assert move(A100, 0).total_ms == 0


@pytest.mark.parametrize("name", known_accelerators())
@pytest.mark.parametrize("granules", [1, 8, 64])
def test_handing_memory_over_takes_less_than_a_tenth_of_refilling_it_under_the_default_cap(name: str, granules: int) -> None:
    # Why the fleet and the emulated engine leave remapping out: what fills a grown cache takes ten times as long, or more.
    device, size = load_accelerator(name), granules * 256 << 20
    cap_percent = inspect.signature(FleetConfig).parameters["refill_link_percent"].default
    refill_ms = size / (device.to_device_bytes_per_second * cap_percent / 100) * 1e3
    assert move(device, size).total_ms < refill_ms / 10


def test_negative_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="byte_count"):
        pages_of(A100, -1)
