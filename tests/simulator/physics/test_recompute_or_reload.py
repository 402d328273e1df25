"""Recompute or reload: the cheaper way for this request, agreeing with the published break-even lengths."""

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator.physics.accelerator import AcceleratorProfile, load_accelerator
from simulator.physics.model_shape import GATED_DELTANET, HSTU_PUBLISHED, QWEN3_1_7B
from simulator.physics.reload import Action, break_even_tokens, hidden_share, recompute_or_reload, stall_ms
from simulator.physics.service import ServiceLaw, Work
from simulator.physics.transfer import load_transfer, native_transfer


def law(name: str = "a100", shape=HSTU_PUBLISHED, **changes: float) -> ServiceLaw:  # type: ignore[no-untyped-def]  # a shape
    return ServiceLaw(accelerator=dataclasses.replace(load_accelerator(name), **changes), shape=shape)


def bare(device: AcceleratorProfile) -> AcceleratorProfile:
    """Without launches and floors, as the closed form has it."""
    return dataclasses.replace(
        device, launch_ms_per_layer=1e-12, serial_query_tokens=1, compute_units=1, hbm_bytes_per_second=10**18
    )


@pytest.mark.parametrize(
    ("name", "share", "bytes_per_second", "published_tokens"),
    [
        # FLOP per KV byte of HSTU at width 1024 is 2.5 d + 0.5 n; the device's balance is R / link (docs/physics.md).
        ("l20", 77 / 119.5, 24e9, 1300),
        ("a100", 170 / 312, 24e9, 9000),
        ("h100", 600 / 989, 50e9, 19_000),
    ],
)
def test_break_even_lengths_of_hstu_are_the_known_ones(
    name: str, share: float, bytes_per_second: float, published_tokens: int
) -> None:
    at = break_even_tokens(law(name, effective_flop_share=share), bytes_per_second=bytes_per_second)
    assert at == pytest.approx(published_tokens, rel=0.05)


@pytest.mark.parametrize("name", ["l20", "a100", "h100"])
@pytest.mark.parametrize(("factor", "action"), [(0.8, Action.RECOMPUTE), (1.25, Action.RELOAD)])
def test_the_decision_turns_at_the_break_even_length(name: str, factor: float, action: Action) -> None:
    device = bare(load_accelerator(name))
    link = dataclasses.replace(native_transfer(device), to_device_fixed_ms=0.0)
    service = ServiceLaw(accelerator=device, shape=HSTU_PUBLISHED)
    history = int(break_even_tokens(service, bytes_per_second=device.to_device_bytes_per_second) * factor)
    work = Work(history_tokens=history, candidate_tokens=0)
    assert recompute_or_reload(service, link, work, host_tokens=history, layerwise=False).action is action


def test_grouped_heads_make_reloading_win_everywhere() -> None:
    assert break_even_tokens(law("h100", QWEN3_1_7B), bytes_per_second=50e9) == 0


def test_linear_attention_has_no_break_even_length_and_always_reloads_long_histories() -> None:
    service = law("a100", GATED_DELTANET)
    with pytest.raises(ValueError, match="one state size"):
        break_even_tokens(service, bytes_per_second=24e9)
    link = native_transfer(service.accelerator)
    work = Work(history_tokens=5000, candidate_tokens=256)
    assert recompute_or_reload(service, link, work, host_tokens=5000).action is Action.RELOAD


histories = st.integers(1, 20_000)


@settings(max_examples=200, deadline=None)
@given(histories, st.data(), st.floats(0, 50), st.booleans(), st.booleans(), st.floats(0, 20))
def test_the_cheaper_way_is_taken_and_waiting_never_makes_reloading_cheaper(
    history: int, data: st.DataObject, wait_ms: float, duplex: bool, layerwise: bool, early_ms: float
) -> None:
    host = data.draw(st.integers(0, history))
    work = Work(history_tokens=history, cached_tokens=data.draw(st.integers(0, host)), candidate_tokens=256)
    service = law("h100")
    link = native_transfer(service.accelerator)
    now = recompute_or_reload(service, link, work, host_tokens=host, duplex=duplex, layerwise=layerwise)
    assert (now.action is Action.RELOAD) == (now.reload_ms <= now.recompute_ms and host > work.cached_tokens)
    later = recompute_or_reload(service, link, work, host_tokens=host, wait_ms=wait_ms, duplex=duplex, layerwise=layerwise)
    assert later.reload_ms >= now.reload_ms - 1e-9
    early = recompute_or_reload(service, link, work, host_tokens=host, duplex=duplex, layerwise=layerwise, early_ms=early_ms)
    assert early.reload_ms <= now.reload_ms + 1e-9
    bulk = recompute_or_reload(service, link, work, host_tokens=host, duplex=duplex, layerwise=False)
    assert now.reload_ms <= bulk.reload_ms + 1e-9
    looked_up = recompute_or_reload(service, link, work, host_tokens=host, duplex=duplex, lookup_ms_per_token=0.001)
    assert looked_up.recompute_ms >= now.recompute_ms


def test_a_costly_software_stack_turns_a_reload_into_a_recompute() -> None:
    service = law("h100", QWEN3_1_7B)
    work = Work(history_tokens=1000, candidate_tokens=0)
    native, flexkv = native_transfer(service.accelerator), load_transfer("flexkv_h100", service.accelerator)
    assert recompute_or_reload(service, native, work, host_tokens=1000).action is Action.RELOAD
    assert recompute_or_reload(service, flexkv, work, host_tokens=1000).action is Action.RECOMPUTE


def test_embedding_lookups_of_a_recompute_tip_the_balance() -> None:
    service = law("a100")
    link = native_transfer(service.accelerator)
    work = Work(history_tokens=3000, candidate_tokens=256)
    assert recompute_or_reload(service, link, work, host_tokens=3000, layerwise=False).action is Action.RECOMPUTE
    # Three missed rows of 512 bytes a token over a random gather.
    lookup_ms = 3 * 512 / service.accelerator.gather_bytes_per_second * 1e3
    dear = recompute_or_reload(service, link, work, host_tokens=3000, layerwise=False, lookup_ms_per_token=10 * lookup_ms)
    assert dear.action is Action.RELOAD


@example(2.8e-85, 8.3e-54, 6, 0.0)  # a load that vanishes beside compute
@given(st.floats(0, 1000), st.floats(0, 1000), st.integers(1, 100), st.floats(0, 1000))
def test_a_stall_is_never_longer_than_the_load_nor_shorter_than_what_compute_cannot_hide(
    load_ms: float, compute_ms: float, layers: int, early_ms: float
) -> None:
    stall = stall_ms(load_ms=load_ms, compute_ms=compute_ms, layers=layers)
    assert load_ms - compute_ms - 1e-9 <= stall <= load_ms * (1 + 1e-12)
    assert 0 <= stall_ms(load_ms=load_ms, compute_ms=compute_ms, layers=layers, early_ms=early_ms) <= stall
    assert -1e-9 <= hidden_share(load_ms=load_ms, compute_ms=compute_ms, layers=layers) <= 1


def test_loading_that_hides_nothing_of_one_layer_hides_all_but_one_of_many() -> None:
    assert hidden_share(load_ms=10, compute_ms=10, layers=1) == 0
    assert hidden_share(load_ms=10, compute_ms=10, layers=8) == pytest.approx(7 / 8)
    assert hidden_share(load_ms=10, compute_ms=10, layers=8, early_ms=10 / 8) == 1
    with pytest.raises(ValueError, match="impossible"):
        stall_ms(load_ms=-1, compute_ms=1, layers=1)


def test_more_on_the_host_than_history_or_less_than_in_hbm_is_refused() -> None:
    service = law()
    link = native_transfer(service.accelerator)
    for host in (99, 1001):
        with pytest.raises(ValueError, match="host_tokens"):
            recompute_or_reload(service, link, Work(history_tokens=1000, cached_tokens=100), host_tokens=host)
