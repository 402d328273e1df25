"""How many pools stand how, for alerts: each condition of a pool with each status, counted in the store when somebody scrapes.

Every replica shows it, because followers keep their store too: pools that are not ready are seen while nobody leads.
"""

from __future__ import annotations

from functools import partial

from prometheus_client import Gauge

from controllers.runtime.conditions import conditions_of, find_condition
from controllers.runtime.resources import POOLS
from controllers.runtime.store import Store
from crds.reasons import CONDITIONS

STATUSES = ("True", "False", "Unknown")
POOL_CONDITIONS = tuple(dict.fromkeys(str(spec.type) for spec in CONDITIONS if "GRServingPool" in spec.kinds))


def count_pools(store: Store, condition: str, status: str) -> int:
    """Pools whose condition has this status; a condition that nobody has set yet counts nowhere."""
    found = (find_condition(conditions_of(pool), condition) for pool in store.all(POOLS))
    return sum(item is not None and item.get("status") == status for item in found)


def expose_pools(gauge: Gauge, store: Store) -> None:
    """Let the gauge with the labels condition and status answer from the store; without pools in the store nothing is shown."""
    if POOLS in store.resources:
        for condition in POOL_CONDITIONS:
            for status in STATUSES:
                gauge.labels(condition, status).set_function(partial(count_pools, store, condition, status))
