"""What it costs to move memory between two pools through a virtual memory interface, page by page.

Growing maps pages and makes them accessible, shrinking unmaps them; creating physical pages is by far the dearest call and is
saved when a pool of them is kept. The calls run on a management thread and take no time from kernels.
"""

import math
from dataclasses import dataclass

from simulator.physics.accelerator import AcceleratorProfile


@dataclass(frozen=True, kw_only=True)
class Remap:
    """One move of memory: whole pages and the time of the calls."""

    pages: int
    byte_count: int
    unmap_ms: float
    map_ms: float

    @property
    def total_ms(self) -> float:
        """Shrink first, then grow, one page after the other."""
        return self.unmap_ms + self.map_ms


def pages_of(accelerator: AcceleratorProfile, byte_count: int) -> int:
    """Pages that hold so many bytes.

    Raises
    ------
    ValueError
        For negative bytes.
    """
    if byte_count < 0:
        raise ValueError(f"byte_count: {byte_count} must not be negative")
    return math.ceil(byte_count / accelerator.page_bytes)


def shrink_ms(accelerator: AcceleratorProfile, byte_count: int) -> float:
    """Milliseconds to unmap."""
    return pages_of(accelerator, byte_count) * accelerator.page_unmap_ms


def grow_ms(accelerator: AcceleratorProfile, byte_count: int, *, create: bool) -> float:
    """Milliseconds to map and make accessible; `create` also makes the physical pages."""
    page = accelerator.page_map_ms + accelerator.page_access_ms + (accelerator.page_create_ms if create else 0.0)
    return pages_of(accelerator, byte_count) * page


def move(accelerator: AcceleratorProfile, byte_count: int, *, create: bool = False) -> Remap:
    """Move memory from one pool to the other: the receiver maps the pages that the donor unmapped.

    Parameters
    ----------
    accelerator : AcceleratorProfile
    byte_count : int
        Rounded up to whole pages.
    create : bool
        When the freed pages are given back to the driver and made anew instead of handed over.

    Raises
    ------
    ValueError
        For negative bytes.
    """
    pages = pages_of(accelerator, byte_count)
    return Remap(
        pages=pages,
        byte_count=pages * accelerator.page_bytes,
        unmap_ms=shrink_ms(accelerator, byte_count),
        map_ms=grow_ms(accelerator, byte_count, create=create),
    )
