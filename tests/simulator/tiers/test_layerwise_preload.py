"""Loads beside compute, measured on the link: the known table, the closed form, others on the link."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.tiers_known import LOADING
from simulator.physics.accelerator import load_accelerator
from simulator.physics.link import HostLink, Purpose
from simulator.physics.model_shape import HSTU_PUBLISHED
from simulator.physics.reload import stall_ms
from simulator.physics.service import ServiceLaw, Work
from simulator.physics.transfer import TransferCost, native_transfer
from simulator.tiers.preload import Preloaded, PreloadPlan, preload, projection_share, read_buffer_bytes, walk_layers

RATE = 1_000_000_000
LAYERS = 8
COMPUTE_MS = 80.0


def idle_link(fixed_ms: float = 0.0) -> HostLink:
    cost = TransferCost(
        name="test",
        to_device_fixed_ms=fixed_ms,
        to_device_bytes_per_second=RATE,
        to_host_fixed_ms=fixed_ms,
        to_host_bytes_per_second=RATE,
        to_device_duplex_share=0.45,
        to_host_duplex_share=0.97,
    )
    return HostLink(cost)


def load_at(rho: float, plan: PreloadPlan, *, free_share: float = 0.0, fixed_ms: float = 0.0) -> Preloaded:
    load_bytes = round(rho * COMPUTE_MS / 1e3 * RATE)
    return preload(
        idle_link(fixed_ms),
        plan,
        ready_ms=10_000.0,
        load_bytes=load_bytes,
        compute_ms=COMPUTE_MS,
        layers=LAYERS,
        free_share=free_share,
    )


def plan(name: str, rho: float) -> PreloadPlan:
    buffer = read_buffer_bytes(load_ms=rho * COMPUTE_MS, compute_ms=COMPUTE_MS, bytes_per_second=RATE)
    return {
        "layer-wise": PreloadPlan(),
        "buffer": PreloadPlan(buffer_bytes=buffer),
        "early": PreloadPlan(buffer_bytes=buffer, early_layers=1),
    }[name]


@pytest.mark.parametrize("rho", LOADING)
def test_hidden_shares_are_those_of_the_known_run(rho: float) -> None:
    for name in ("layer-wise", "buffer", "early"):
        assert load_at(rho, plan(name, rho)).hidden_share == pytest.approx(LOADING[rho][name], abs=0.03), name
    bulk = load_at(rho, PreloadPlan(layerwise=False))
    assert (bulk.finished_ms - 10_000.0) / COMPUTE_MS == pytest.approx(LOADING[rho]["bulk"], abs=0.03)


@pytest.mark.parametrize("rho", [0.1, 0.25, 0.5, 0.9, 1.0, 1.5, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("better", [PreloadPlan(early_layers=1), PreloadPlan(chunks=4)], ids=["one layer early", "in chunks"])
def test_nine_tenths_of_what_compute_can_hide_is_hidden(rho: float, better: PreloadPlan) -> None:
    goal = 0.90 if rho <= 1 else 0.9 / rho
    assert load_at(rho, better, fixed_ms=0.05).hidden_share >= goal
    if rho <= 1:
        assert load_at(rho, PreloadPlan()).hidden_share < 0.90, "plain layer-wise loading waits for one layer in eight"


@settings(max_examples=100, deadline=None)
@given(st.floats(0.05, 8), st.integers(1, 32), st.floats(0, 2), st.integers(1, 8), st.floats(0, 0.5))
def test_measured_stalls_agree_with_the_closed_form_and_never_grow_by_helping(
    rho: float, layers: int, early: float, chunks: int, free_share: float
) -> None:
    load_bytes = round(rho * COMPUTE_MS / 1e3 * RATE)

    def run(what: PreloadPlan, free_share: float = 0.0) -> Preloaded:
        return preload(
            idle_link(),
            what,
            ready_ms=10_000.0,
            load_bytes=load_bytes,
            compute_ms=COMPUTE_MS,
            layers=layers,
            free_share=free_share,
        )

    plain = run(PreloadPlan())
    closed = stall_ms(load_ms=load_bytes / RATE * 1e3, compute_ms=COMPUTE_MS, layers=layers)
    assert plain.stall_ms == pytest.approx(closed, abs=1e-3)
    helped = [PreloadPlan(early_layers=early), PreloadPlan(chunks=chunks), PreloadPlan(buffer_bytes=load_bytes // 3)]
    assert all(run(what).stall_ms <= plain.stall_ms + 1e-6 for what in helped)
    assert run(PreloadPlan(), free_share).stall_ms <= plain.stall_ms + 1e-6
    bulk = run(PreloadPlan(layerwise=False))
    assert plain.stall_ms <= bulk.stall_ms + 1e-6
    assert bulk.stall_ms == pytest.approx(bulk.load_ms, abs=1e-6)
    assert run(PreloadPlan(early_layers=layers)).stall_ms == pytest.approx(0, abs=1e-6)


def test_demand_on_the_link_makes_a_reload_late_and_its_end_is_reported() -> None:
    quiet, busy = idle_link(), idle_link()
    demand = busy.submit(Purpose.DEMAND, 20_000_000, now_ms=0.0)
    arguments = {"ready_ms": 0.0, "load_bytes": 40_000_000, "compute_ms": COMPUTE_MS, "layers": LAYERS}
    alone = preload(quiet, PreloadPlan(), **arguments)  # type: ignore[arg-type]  # numbers
    crowded = preload(busy, PreloadPlan(), **arguments)  # type: ignore[arg-type]  # numbers
    assert crowded.stall_ms == pytest.approx(alone.stall_ms + 20.0)
    assert [done.transfer for done in crowded.others] == [demand]
    assert crowded.hidden_share < alone.hidden_share


def test_a_load_that_should_have_begun_in_the_past_is_refused() -> None:
    link = idle_link()
    link.advance(100.0)
    with pytest.raises(ValueError, match="would start at"):
        preload(link, PreloadPlan(early_layers=1), ready_ms=101.0, load_bytes=80_000_000, compute_ms=1.0, layers=LAYERS)
    for bad in ({"layers": 0}, {"load_bytes": 0}, {"compute_ms": -1.0}, {"free_share": 2.0}):
        arguments = {"ready_ms": 200.0, "load_bytes": 100, "compute_ms": 1.0, "layers": 1} | bad
        with pytest.raises(ValueError, match="impossible"):
            preload(link, PreloadPlan(), **arguments)  # type: ignore[arg-type]  # wrong on purpose


def test_a_layer_waits_only_after_what_needs_no_old_state() -> None:
    assert walk_layers([[5.0], [6.0]], start_ms=0.0, layer_ms=10.0) == 25.0
    assert walk_layers([[5.0], [6.0]], start_ms=0.0, layer_ms=10.0, free_share=0.5) == 20.0
    assert walk_layers([[2.0, 7.0]], start_ms=0.0, layer_ms=10.0) == 12.0


def test_projections_are_a_larger_share_where_little_is_attended_to() -> None:
    law = ServiceLaw(accelerator=load_accelerator("l20"), shape=HSTU_PUBLISHED)
    short = projection_share(law, Work(history_tokens=512, cached_tokens=448))
    long = projection_share(law, Work(history_tokens=8192, cached_tokens=8128))
    assert 0 < long < short < 0.8
    assert projection_share(law, Work(history_tokens=64, cached_tokens=64)) == 0.0


def test_slow_software_in_front_of_each_load_cannot_be_hidden_by_layers_but_by_starting_early() -> None:
    device = load_accelerator("h100")
    slow = dataclasses.replace(native_transfer(device), to_device_fixed_ms=10.0)
    arguments = {"ready_ms": 1000.0, "load_bytes": 134_217_728, "compute_ms": 10.0, "layers": 8}
    plain = preload(HostLink(slow), PreloadPlan(), **arguments)  # type: ignore[arg-type]  # numbers
    early = preload(HostLink(slow), PreloadPlan(early_layers=1), **arguments)  # type: ignore[arg-type]  # numbers
    assert plain.stall_ms > 10.0
    assert early.stall_ms < 1.0
