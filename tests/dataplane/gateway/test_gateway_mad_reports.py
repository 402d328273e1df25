"""Reports whose numbers are mad though they are numbers: nothing of them stays, and nobody else's users pay for them."""

import math
import warnings

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from residents_world import AWAY, KEY, Fleet, home_of, state

from contract.residency import InstanceLoad, ResidencyReport, UserState, decode_report, pack_overrides
from dataplane.hot_users.residents import LOAD_MEMORY_MS

MAD = st.sampled_from([0.0, 1e-300, 1e3, 1e12, 1e15])  # to where the contract ends; a report with more is not read at all
MANY = st.sampled_from([0, 1, 1000, 2**31, 2**53, 2**62])


def loads() -> st.SearchStrategy[InstanceLoad]:
    ms = st.none() | MAD
    return st.builds(
        InstanceLoad,
        reachable=st.just(True),
        queue=st.none() | MANY,
        in_flight=st.none() | MANY,
        service_ms=ms,
        rows_per_request=ms,
        ms_per_row=ms,
        ms_per_token=ms,
        ms_per_token_host=ms,
    )


def told(fleet: Fleet, uid: str, load: InstanceLoad, *states: UserState) -> None:
    fleet.cursors[uid] += 1
    report = ResidencyReport(
        uid=uid, start_id=fleet.starts[uid], generation=0, since=0, cursor=fleet.cursors[uid], users=list(states), load=load
    )
    fleet.residents.heard(uid, decode_report(msgspec.json.encode(report)), now_ms=fleet.now_ms)


@given(load=loads(), tokens=MANY, age_ms=MAD)
@settings(max_examples=60, deadline=None)
def test_no_number_of_a_report_overflows_or_stays_for_ever(load: InstanceLoad, tokens: int, age_ms: float) -> None:
    fleet = Fleet()
    fleet.all_tell()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            told(fleet, AWAY, load, UserState(key=KEY, tokens_hbm=tokens, tokens_host=tokens, age_ms=age_ms))
            pack_overrides(fleet.choose().users, for_ms=1.0)
    for _ in range(20):  # and as soon as it is itself again, it is taken for what it says
        fleet.now_ms += LOAD_MEMORY_MS * 5.0
        fleet.all_tell()
    known = fleet.residents._instances[AWAY]
    assert known.in_flight == pytest.approx(1.0)
    assert known.queue_ms == pytest.approx(0.0, abs=1e-6)
    assert all(math.isfinite(each.saved_ms) for each in fleet.residents._overrides.values())


@given(load=loads())
@example(load=InstanceLoad(reachable=True, rows_per_request=1000.0, ms_per_row=0.0, ms_per_token=0.0))
@example(load=InstanceLoad(reachable=True, rows_per_request=1e15, ms_per_row=0.0, ms_per_token=0.0))
@example(load=InstanceLoad(reachable=True, rows_per_request=1e15))
@settings(max_examples=60, deadline=None)
def test_a_mad_neighbour_keeps_nobody_from_its_state(load: InstanceLoad) -> None:
    fleet = Fleet()
    fleet.all_tell()
    mad = next(uid for uid in fleet.starts if uid not in (AWAY, home_of(KEY)))
    told(fleet, mad, load)
    fleet.tell(AWAY, state(KEY), whole=True)
    assert fleet.choose().users == {KEY: AWAY}
