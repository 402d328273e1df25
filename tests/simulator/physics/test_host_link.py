"""One host link: bytes are conserved, the first class goes first, both directions at once slow each other, caps hold."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.physics.accelerator import load_accelerator
from simulator.physics.link import Done, HostLink, Purpose
from simulator.physics.transfer import Direction, TransferCost, gather_ms, load_transfer, native_transfer

#: 1000 bytes a millisecond both ways, half of it to the device while the other direction is busy.
SIMPLE = TransferCost(
    name="simple",
    to_device_fixed_ms=2.0,
    to_device_bytes_per_second=1_000_000,
    to_host_fixed_ms=1.0,
    to_host_bytes_per_second=1_000_000,
    to_device_duplex_share=0.5,
    to_host_duplex_share=1.0,
)

submissions = st.lists(
    st.tuples(st.floats(0, 30), st.sampled_from(Purpose), st.integers(1, 50_000)), min_size=1, max_size=15
).map(lambda items: sorted(items, key=lambda item: item[0]))


def run(link: HostLink, items: list[tuple[float, Purpose, int]], until_ms: float) -> list[Done]:
    done = []
    for at, purpose, size in items:
        done += link.advance(at)
        link.submit(purpose, size, now_ms=at)
    return done + link.advance(until_ms)


@settings(max_examples=150, deadline=None)
@given(submissions, st.floats(30, 3000), st.dictionaries(st.sampled_from(Purpose), st.floats(1e4, 2e6)))
def test_bytes_are_conserved_at_every_instant(
    items: list[tuple[float, Purpose, int]], until_ms: float, caps: dict[Purpose, float]
) -> None:
    link = HostLink(SIMPLE, caps_bytes_per_second=caps)
    done = run(link, items, until_ms)
    assert abs(link.balance_bytes()) < 1e-3
    for purpose in Purpose:
        asked = sum(size for _, other, size in items if other is purpose)
        assert link.moved_bytes(purpose) + link.backlog_bytes(purpose) == pytest.approx(asked, abs=1e-3)
    assert len({one.transfer for one in done}) == len(done)
    for direction in Direction:
        moved = sum(link.moved_bytes(p) for p in Purpose if p.direction is direction)
        assert moved <= link.clock_ms * SIMPLE.bytes_per_ms(direction) + 1e-3


@settings(max_examples=100, deadline=None)
@given(submissions, st.floats(30, 500), st.lists(st.floats(0, 500), max_size=10))
def test_how_often_time_is_advanced_changes_nothing(
    items: list[tuple[float, Purpose, int]], until_ms: float, stops: list[float]
) -> None:
    at_once, in_steps = HostLink(SIMPLE), HostLink(SIMPLE)
    whole = run(at_once, items, until_ms)
    last = items[-1][0]
    stepped = run(in_steps, items, last)
    for stop in sorted(s for s in stops if last < s < until_ms):
        stepped += in_steps.advance(stop)
    stepped += in_steps.advance(until_ms)
    expected = {one.transfer: one.finished_ms for one in whole}
    assert {one.transfer: one.finished_ms for one in stepped} == pytest.approx(expected)


@settings(max_examples=100, deadline=None)
@given(submissions)
def test_everything_finishes_and_never_sooner_than_alone_on_the_link(items: list[tuple[float, Purpose, int]]) -> None:
    done = run(HostLink(SIMPLE), items, 1e6)
    assert len(done) == len(items)
    for one in done:
        alone = SIMPLE.transfer_ms(one.purpose.direction, one.byte_count)
        assert one.finished_ms >= one.submitted_ms + alone - 1e-6
    assert [one.finished_ms for one in done] == sorted(one.finished_ms for one in done)


@settings(max_examples=100, deadline=None)
@given(submissions, st.integers(1, 50_000))
def test_lower_classes_never_delay_demand(items: list[tuple[float, Purpose, int]], size: int) -> None:
    lower = [item for item in items if item[1] not in (Purpose.DEMAND, Purpose.OFFLOAD)]
    done = run(HostLink(SIMPLE), [*lower, (30.0, Purpose.DEMAND, size)], 1e6)
    demand = next(one for one in done if one.purpose is Purpose.DEMAND)
    assert demand.finished_ms == pytest.approx(30.0 + SIMPLE.transfer_ms(Direction.TO_DEVICE, size))


def test_a_transfer_alone_takes_its_fixed_time_and_its_bytes() -> None:
    link = HostLink(SIMPLE)
    link.submit(Purpose.RELOAD, 5000, now_ms=0)
    assert link.next_event_ms() == 2.0
    (done,) = link.advance(100)
    assert done.finished_ms == 7.0 == SIMPLE.transfer_ms(Direction.TO_DEVICE, 5000)
    assert link.next_event_ms() is None


def test_fixed_times_of_a_burst_overlap() -> None:
    link = HostLink(SIMPLE)
    for _ in range(10):
        link.submit(Purpose.OFFLOAD, 1000, now_ms=0)
    assert link.advance(100)[-1].finished_ms == pytest.approx(1.0 + 10)


def test_classes_go_in_the_order_demand_reload_prefetch_refill() -> None:
    link = HostLink(SIMPLE)
    for purpose in (Purpose.REFILL, Purpose.PREFETCH, Purpose.RELOAD, Purpose.DEMAND):
        link.submit(purpose, 1000, now_ms=0)
    assert [one.purpose for one in link.advance(100)] == [Purpose.DEMAND, Purpose.RELOAD, Purpose.PREFETCH, Purpose.REFILL]


def test_a_higher_class_takes_over_at_once_and_the_lower_one_keeps_what_it_moved() -> None:
    link = HostLink(SIMPLE)
    link.submit(Purpose.REFILL, 10_000, now_ms=0)
    link.advance(6)
    link.submit(Purpose.DEMAND, 1000, now_ms=6)
    demand, refill = link.advance(100)
    assert (demand.finished_ms, refill.finished_ms) == (9.0, 13.0)


def test_both_directions_at_once_slow_the_way_to_the_device() -> None:
    link = HostLink(SIMPLE)
    link.submit(Purpose.RELOAD, 10_000, now_ms=1)
    link.submit(Purpose.OFFLOAD, 10_000, now_ms=2)
    off, reload = link.advance(100)
    # Off-load runs from 3 to 13 at full rate; the reload moves 5000 bytes meanwhile and 5000 after.
    assert (off.purpose, off.finished_ms) == (Purpose.OFFLOAD, 13.0)
    assert reload.finished_ms == 18.0


def test_the_published_duplex_penalty_leaves_11_of_24_8_gb_a_second_to_the_device() -> None:
    # nvbandwidth on 8 x A100, dual socket: one way 24.8 GB/s; both ways 24 and 11.
    cost = native_transfer(load_accelerator("a100"))
    assert cost.bytes_per_ms(Direction.TO_DEVICE, duplex=True) * 1e3 == pytest.approx(11e9, rel=0.10)
    assert cost.bytes_per_ms(Direction.TO_HOST, duplex=True) * 1e3 == pytest.approx(24e9, rel=0.10)


def test_a_capped_refill_leaves_the_rest_of_the_link_to_others_and_never_exceeds_its_cap() -> None:
    link = HostLink(SIMPLE, caps_bytes_per_second={Purpose.REFILL: 200_000})
    link.submit(Purpose.REFILL, 2000, now_ms=0)
    link.advance(7)
    assert link.moved_bytes(Purpose.REFILL) == pytest.approx(1000)
    link.set_cap(Purpose.REFILL, None)
    assert link.advance(100)[0].finished_ms == pytest.approx(8)


def test_what_a_cap_withholds_goes_to_the_next_class() -> None:
    link = HostLink(SIMPLE, caps_bytes_per_second={Purpose.PREFETCH: 250_000})
    link.submit(Purpose.PREFETCH, 2500, now_ms=0)
    link.submit(Purpose.REFILL, 7500, now_ms=0)
    assert [one.finished_ms for one in link.advance(100)] == pytest.approx([12, 12])


def test_a_prefetch_that_a_request_now_waits_for_joins_the_reloads() -> None:
    link = HostLink(SIMPLE)
    link.submit(Purpose.RELOAD, 5000, now_ms=0)
    prefetch = link.submit(Purpose.PREFETCH, 1000, now_ms=0)
    late = link.submit(Purpose.RELOAD, 5000, now_ms=1)
    assert link.promote(prefetch, Purpose.RELOAD)
    assert [one.transfer for one in link.advance(100)] == [0, prefetch, late]
    assert not link.promote(prefetch, Purpose.RELOAD)
    assert link.balance_bytes() == pytest.approx(0)


def test_a_transfer_given_up_returns_what_it_had_not_moved() -> None:
    link = HostLink(SIMPLE)
    number = link.submit(Purpose.PREFETCH, 1000, now_ms=0)
    link.advance(2.25)
    assert link.cancel(number) == 750
    assert link.cancel(number) == 0
    assert link.moved_bytes(Purpose.PREFETCH) == pytest.approx(250)
    assert link.balance_bytes() == pytest.approx(0)
    assert link.advance(100) == []


def test_waiting_counts_what_is_ahead_in_the_same_direction() -> None:
    link = HostLink(SIMPLE)
    link.submit(Purpose.RELOAD, 4000, now_ms=0)
    link.submit(Purpose.REFILL, 9000, now_ms=0)
    assert link.wait_ms(Purpose.DEMAND) == 0
    assert link.wait_ms(Purpose.RELOAD) == 4
    assert link.wait_ms(Purpose.REFILL) == 13
    assert link.wait_ms(Purpose.OFFLOAD) == 0


def test_a_transfer_too_short_to_move_a_large_clock_still_ends() -> None:
    cost = native_transfer(load_accelerator("h100"))
    link = HostLink(cost)
    link.advance(1e12)
    for _ in range(20):
        link.submit(Purpose.DEMAND, 1, now_ms=1e12)
        link.submit(Purpose.OFFLOAD, 3, now_ms=1e12)
    assert len(link.advance(1e12 + 1)) == 40


def test_impossible_calls_are_refused() -> None:
    link = HostLink(SIMPLE)
    link.advance(5)
    with pytest.raises(ValueError, match="before 5"):
        link.advance(4)
    with pytest.raises(ValueError, match="before 5"):
        link.submit(Purpose.DEMAND, 1, now_ms=4)
    with pytest.raises(ValueError, match="at least 1"):
        link.submit(Purpose.DEMAND, 0, now_ms=5)
    with pytest.raises(ValueError, match="never let it finish"):
        link.set_cap(Purpose.REFILL, 0)
    with pytest.raises(ValueError, match="goes to_host"):
        link.promote(link.submit(Purpose.RELOAD, 1, now_ms=5), Purpose.OFFLOAD)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(Direction), st.integers(1, 1 << 34), st.integers(0, 1 << 34), st.booleans())
def test_a_transfer_never_undercuts_its_fixed_time_and_more_bytes_never_take_less(
    direction: Direction, size: int, more: int, duplex: bool
) -> None:
    for name in ("flexkv_h100", "flexkv_l20"):
        cost = load_transfer(name, load_accelerator("h100"))
        took = cost.transfer_ms(direction, size, duplex=duplex)
        assert took > cost.fixed_ms(direction)
        assert cost.transfer_ms(direction, size + more, duplex=duplex) >= took >= cost.transfer_ms(direction, size)
        assert cost.transfer_ms(direction, 0) == 0


def test_gathers_are_free_without_rows_and_slower_while_others_take_the_link() -> None:
    a100 = load_accelerator("a100")
    assert gather_ms(a100, rows=0, row_bytes=512, link_share_taken=0.5) == 0
    alone = gather_ms(a100, rows=1000, row_bytes=512) - a100.gather_fixed_ms
    assert alone == pytest.approx(1000 * 512 / (24.8e9 * 0.55) * 1e3)
    assert gather_ms(a100, rows=1000, row_bytes=512, link_share_taken=0.2) - a100.gather_fixed_ms == pytest.approx(alone / 0.8)
    with pytest.raises(ValueError, match="link_share_taken"):
        gather_ms(a100, rows=1, row_bytes=512, link_share_taken=1.0)


def test_stepping_from_event_to_event_gets_on_where_a_transfer_is_too_short_to_move_the_clock() -> None:
    link = HostLink(dataclasses.replace(SIMPLE, to_device_fixed_ms=0.0, to_device_bytes_per_second=10**15))
    link.advance(1e9)
    number = link.submit(Purpose.RELOAD, 1, now_ms=1e9)
    event = link.next_event_ms()
    assert event is not None
    assert event > link.clock_ms
    assert [done.transfer for done in link.advance(event)] == [number]
    assert link.next_event_ms() is None
