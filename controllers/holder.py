"""Whose object stands under a name that a pool wants: its own, that of a deleted pool of the same name, or somebody else's.

Names are not enough, because a pool can be deleted and made again under its name; owner references carry the uid.
"""

from __future__ import annotations

from enum import Enum, auto

from controllers.runtime.resources import POOLS, Object, key_of, uid_of

PREDECESSOR_SECONDS = 5.0
"""When to look again after an object of a deleted pool; the garbage collector takes a moment."""


class Holder(Enum):
    """Whose object it is."""

    NOBODY = auto()
    """There is none."""
    POOL = auto()
    """It is this pool's."""
    ORPHAN = auto()
    """It has no owner: made by hand, or its owner reference was taken away."""
    PREDECESSOR = auto()
    """It belongs to a deleted pool of the same name and is about to be collected."""
    STRANGER = auto()
    """It belongs to somebody else."""


def holder_of(obj: Object | None, pool: Object) -> Holder:
    """Whose object it is, by its owner references."""
    if obj is None:
        return Holder.NOBODY
    owners = obj["metadata"].get("ownerReferences") or ()
    if any(owner.get("uid") == uid_of(pool) for owner in owners):
        return Holder.POOL
    if not owners:
        return Holder.ORPHAN
    same_name = any(owner.get("kind") == POOLS.kind and owner.get("name") == key_of(pool).name for owner in owners)
    return Holder.PREDECESSOR if same_name else Holder.STRANGER


def owner_in_words(obj: Object) -> str:
    """Kind and name of each owner, or `nobody`."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return ", ".join(f"{owner.get('kind')} {owner.get('name')}" for owner in owners) or "nobody"
