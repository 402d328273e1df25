"""Each number that people write about pre-inference reaches the arithmetic, and no other number moves with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from preinference_world import pool

from controllers.preinference.rules import rules_of
from crds import GRServingPool, PreInferencePolicySpec
from policies.preinference.rules import CapacityRules


def flat(rules: CapacityRules) -> dict[str, Any]:
    """Dotted names of all numbers."""
    found: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(f"{prefix}.{name}" if prefix else name, inner)
        else:
            found[prefix] = value

    walk("", msgspec.to_builtins(rules))
    return found


def rules(policy: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return flat(rules_of(GRServingPool.parse(pool(**spec)), PreInferencePolicySpec.model_validate(policy)))


@pytest.mark.parametrize(
    ("policy", "changed"),
    [
        ({"slotsPerInstance": {"min": 2, "max": 4}}, {"slots.minimum": 2, "slots.maximum": 4}),
        ({"targets": {"hitBeforeRankPercent": 81}}, {"hit_before_rank_percent": 81.0}),
        ({"targets": {"utilizationPercent": 41}}, {"utilization_percent": 41.0}),
        ({"budget": {"maxInflight": 7}}, {"max_inflight": 7}),
        ({"behavior": {"scaleUp": {"stabilizationWindowSeconds": 17}}}, {"behavior.up.stabilization_s": 17.0}),
        ({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 17}}}, {"behavior.down.stabilization_s": 17.0}),
        ({"behavior": {"scaleUp": {"tolerance": "0.3"}}}, {"behavior.up.tolerance": 0.3}),
        ({"behavior": {"scaleDown": {"selectPolicy": "Disabled"}}}, {"behavior.down.select": "Disabled"}),
    ],
)
def test_a_number_of_the_policy_moves_its_rule_and_no_other(policy: dict[str, Any], changed: dict[str, Any]) -> None:
    before, after = rules({}), rules(policy)
    assert {name: value for name, value in after.items() if before.get(name) != value} == changed


def test_the_share_of_prefix_memory_is_a_share_of_what_the_pool_may_use() -> None:
    half, whole = (rules({"budget": {"prefixPercent": percent}})["prefix_budget_bytes"] for percent in (20, 40))
    assert whole == 2 * half > 0
