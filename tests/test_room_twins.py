"""What two rooms have to say independently, because neither may import the other, is the same in both.

The import table keeps the rooms apart; the price is a handful of constants, enumerations and defaults that stand twice. Whoever
changes one of a pair finds the other here.
"""

import enum
import json
import logging

import numpy as np
import pytest

import contract.agent
import contract.engine
import contract.histogram
import contract.keys
import contract.samples
import crds.hbm_policy
import crds.instance
import crds.pool_rollout
import crds.preinference_policy
import dataplane.agent.estimate
import dataplane.logs
import policies.allocation.apply
import policies.allocation.estimator
import policies.allocation.latency
import policies.allocation.model_file
import policies.allocation.recovery
import policies.allocation.residual
import policies.allocation.types
import policies.rollout.groups
import policies.rollout.phases
import policies.routing.rendezvous
import policies.scaling.types
import simulator.core.randomness
import simulator.fleet.allocation
from contract.table_sources.kubernetes_api import TABLE_PATH
from controllers.allocation.verdicts import _DATA_REASONS
from controllers.runtime import resources
from controllers.runtime.logs import JsonFormatter
from crds.registry import KINDS
from dataplane.agent.reasons import MESSAGES

OURS = (
    resources.POOLS,
    resources.INSTANCES,
    resources.HBM_POLICIES,
    resources.ROUTING_POLICIES,
    resources.PRE_INFERENCE_POLICIES,
    resources.ALLOCATOR_MODELS,
    resources.ROUTING_TABLES,
)


def values(kind: type[enum.StrEnum]) -> set[str]:
    return {member.value for member in kind}


def test_contract_and_policies_agree_on_slots_and_on_the_buckets_of_a_latency() -> None:
    assert contract.keys.SLOTS == policies.routing.rendezvous.SLOTS
    assert contract.histogram.BUCKET_RATIO == policies.allocation.latency.BUCKET_RATIO


def test_a_model_that_the_policy_reads_fits_into_a_call_of_the_agent_contract() -> None:
    assert contract.agent.MAX_MODEL_BYTES == policies.allocation.model_file.MAX_FILE_BYTES


def test_the_status_of_a_pool_holds_as_many_canaries_and_controls_as_are_chosen() -> None:
    assert crds.pool_rollout.MOST_CANARIES == policies.rollout.groups.MOST_CANARIES
    assert crds.pool_rollout.MOST_CONTROLS == policies.rollout.groups.MOST_CONTROLS


def test_an_agent_in_virtual_time_remembers_as_one_beside_an_engine() -> None:
    beside, virtual = dataplane.agent.estimate, simulator.fleet.allocation
    assert virtual.MEMORY_MS == beside.DEFAULT_MEMORY_MS
    assert virtual.TABLE_ENTRIES == beside.TABLE_ENTRIES
    assert virtual.PRIOR_ROWS_PER_TOKEN == beside.PRIOR_ROWS_PER_TOKEN


@pytest.mark.parametrize(
    ("one", "other", "only_in_the_other"),
    [
        (contract.agent.Strategy, policies.allocation.types.Strategy, {"TwoPoolArc"}),  # a baseline of studies, not of fleets
        (contract.agent.Enforcement, policies.allocation.types.Enforcement, set()),
        (contract.engine.SplitStatus, policies.allocation.apply.Answer, {"none"}),
        (crds.hbm_policy.RolloutPhase, policies.rollout.phases.Phase, set()),
        (crds.preinference_policy.PolicyType, policies.scaling.types.PolicyType, set()),
        (crds.preinference_policy.SelectPolicy, policies.scaling.types.SelectPolicy, set()),
    ],
)
def test_enumerations_that_stand_twice_have_the_same_words(
    one: type[enum.StrEnum], other: type[enum.StrEnum], only_in_the_other: set[str]
) -> None:
    assert values(one) | only_in_the_other == values(other)


@pytest.mark.parametrize(
    ("api", "wire", "policy"),
    [
        (crds.hbm_policy.Bounds, contract.agent.IntentBounds, policies.allocation.types.Bounds),
        (crds.hbm_policy.Step, contract.agent.IntentStep, policies.allocation.types.Step),
        (crds.hbm_policy.Residual, contract.agent.IntentResidual, policies.allocation.residual.Residual),
        (crds.hbm_policy.Recovery, contract.agent.IntentRecovery, policies.allocation.recovery.Recovery),
    ],
)
def test_settings_of_a_policy_have_one_set_of_defaults_at_the_api_on_the_wire_and_in_the_arithmetic(
    api: type, wire: type, policy: type
) -> None:
    names = policy.__struct_fields__
    assert {name: getattr(api(), name) for name in names} == {name: getattr(policy(), name) for name in names}
    assert {name: getattr(wire(), name) for name in names} == {name: getattr(policy(), name) for name in names}


def test_the_clamp_has_one_default_at_the_api_in_the_intent_on_the_wire_and_in_the_arithmetic() -> None:
    kinds = (
        crds.hbm_policy.Learned,
        crds.instance.IntentLearned,
        contract.agent.IntentLearned,
        policies.allocation.types.Learned,
    )
    assert {float(kind().clamp_percent) for kind in kinds} == {10.0}


@pytest.mark.parametrize("direction", ["up", "down"])
def test_the_api_and_the_arithmetic_of_scaling_have_the_same_defaults(direction: str) -> None:
    api = getattr(crds.preinference_policy.Behavior(), f"scale_{direction}")
    rules = getattr(policies.scaling.types.Behavior(), direction)
    assert api.stabilization_window_seconds == rules.stabilization_s
    assert api.select_policy.value == rules.select.value
    assert float(api.tolerance) == rules.tolerance
    assert [(p.type.value, p.value, p.period_seconds) for p in api.policies] == [
        (p.type.value, p.value, p.period_s) for p in rules.policies
    ]


@pytest.mark.parametrize("one_in", [1, 2, 64, 4096])
def test_engines_and_estimators_draw_the_same_sample(one_in: int) -> None:
    keys = policies.allocation.estimator.mix64(np.arange(2000, dtype=np.uint64))
    edge = np.array([(1 << 64) // one_in - 1, min((1 << 64) // one_in, (1 << 64) - 1)], dtype=np.uint64)
    keys = np.concatenate((keys, edge))
    engine = [contract.samples.is_sampled(key, one_in) for key in keys.tolist()]
    assert policies.allocation.estimator.sample_mask(keys, 1.0 / one_in).tolist() == engine


def test_the_simulator_and_the_estimator_mix_keys_alike() -> None:
    keys = np.arange(1, 5000, 7, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert (simulator.core.randomness.mix(keys) == policies.allocation.estimator.mix64(keys)).all()


def test_the_operator_reads_and_writes_the_kinds_that_the_registry_has() -> None:
    assert {(r.group, r.version, r.plural, r.kind) for r in OURS} == {(k.group, k.version, k.plural, k.name) for k in KINDS}


def test_routers_and_gateways_follow_the_resource_that_the_routing_loop_publishes() -> None:
    assert TABLE_PATH.format(namespace="here") == resources.ROUTING_TABLES.path("here")


def test_every_reason_that_the_operator_takes_for_bad_data_is_one_that_an_agent_can_give() -> None:
    assert set(MESSAGES) >= _DATA_REASONS


def test_operator_and_agent_write_the_same_kind_of_log_line() -> None:
    record = logging.LogRecord("grfleet", logging.INFO, __file__, 1, "hello %s", ("world",), None)
    lines = [json.loads(formatter.format(record)) for formatter in (JsonFormatter(), dataplane.logs.JsonFormatter())]
    assert lines[0] == lines[1]
