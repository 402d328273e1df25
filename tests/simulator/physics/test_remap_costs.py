"""Moving memory between pools: whole pages, the published cost of each call, creating pages is what costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.physics.accelerator import load_accelerator
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


def test_negative_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="byte_count"):
        pages_of(A100, -1)
