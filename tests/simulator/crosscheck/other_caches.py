"""libcachesim as the judge: what its caches hit, access by access.

Its caches keep the size that an object had when it came in. Where our entries grow, `hits(..., growing=True)` takes the object
out and asks anew with the new size, which for LRU is the same as growing in place: either way it is the youngest afterwards.
"""

from collections.abc import Sequence

import libcachesim
import numpy as np
from numpy.typing import NDArray


def hits(
    kind: str, ids: Sequence[int], capacity: int, *, sizes: Sequence[int] | None = None, growing: bool = False
) -> NDArray[np.bool_]:
    """Whether each access hits a cache of `capacity` bytes; without `sizes` each object is one byte."""
    cache = getattr(libcachesim, kind)(capacity, hashpower=17)
    request = libcachesim.Request()
    request.obj_size = 1
    found = np.zeros(len(ids), dtype=np.bool_)
    for index, key in enumerate(ids):
        request.obj_id = key
        if sizes is not None:
            request.obj_size = sizes[index]
        if growing:
            found[index] = cache.remove(key)
            cache.get(request)
        else:
            found[index] = cache.get(request)
    return found


def farthest_use_hits(ids: Sequence[int], next_access: Sequence[int], capacity: int) -> int:
    """Hits of Belady's rule among objects of one byte; `next_access` is the place of the next access to the same object."""
    cache = libcachesim.Belady(capacity, hashpower=17)
    request = libcachesim.Request()
    request.obj_size = 1
    count = 0
    for key, following in zip(ids, next_access, strict=True):
        request.obj_id, request.next_access_vtime = key, following
        count += cache.get(request)
    return count
