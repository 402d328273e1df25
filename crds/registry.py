"""All kinds of the API group, in the order in which people meet them."""

from __future__ import annotations

from typing import Any

from crds import (
    allocator_model,
    hbm_policy,
    instance,
    preinference_policy,
    routing_policy,
    routing_table,
    serving_pool,
)
from crds.kind import Kind

KINDS: tuple[Kind[Any], ...] = (
    serving_pool.KIND,
    instance.KIND,
    hbm_policy.KIND,
    routing_policy.KIND,
    preinference_policy.KIND,
    allocator_model.KIND,
    routing_table.KIND,
)

BY_NAME: dict[str, Kind[Any]] = {kind.name: kind for kind in KINDS}
PLURALS: dict[str, str] = {kind.name: kind.plural for kind in KINDS}
