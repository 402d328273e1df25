"""The one way in which loops write a status.

It is applied under the loop's field manager, guarded by the version that was read, and what the API server answers goes into the
store at once, so that the next look does not repeat what was just done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controllers.runtime.loop import Context
from controllers.runtime.resources import Object, ResourceType, identity, key_of
from crds.reasons import FieldManager


async def write_status(
    ctx: Context, resource: ResourceType, current: Object, status: Mapping[str, Any], *, field_manager: FieldManager
) -> None:
    """Apply the manager's whole part of the status of `current`; nothing is sent when it stands there already.

    Raises
    ------
    Conflict
        When the object has changed since `current` was read.
    """
    answer = await ctx.kube.apply_status(
        resource,
        {**identity(resource, key_of(current)), "status": dict(status)},
        field_manager=field_manager,
        current=current,
        resource_version=current["metadata"]["resourceVersion"],
    )
    ctx.store.upsert(resource, answer)
