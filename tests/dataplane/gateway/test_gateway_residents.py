"""Hot users of a gateway by what agents report, on a clock that only the test moves."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from residents_world import AWAY, KEY, NAMES, OWNERS, Fleet, home_of, key_of, rows, state

from contract.residency import ResidencyReport, UserState
from contract.table import InstanceState
from policies.routing.types import LoadBound

SLACK = 1e-6


def test_a_user_whose_state_lies_elsewhere_is_sent_there(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    assert fleet.choose().users == {KEY: AWAY}


def test_a_user_at_home_needs_no_override_and_is_not_even_weighed(fleet: Fleet) -> None:
    fleet.tell(home_of(KEY), state(KEY))
    chosen = fleet.choose()
    assert (chosen.users, chosen.weighed, chosen.known) == ({}, 0, 1)


def test_a_user_whose_state_is_gone_goes_home(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    fleet.choose()
    fleet.tell(AWAY, UserState(key=KEY))
    assert fleet.choose().users == {}


def test_a_state_that_went_and_came_back_between_two_rounds_is_there(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    fleet.choose()
    fleet.tell(AWAY, UserState(key=KEY))
    fleet.tell(AWAY, state(KEY))
    chosen = fleet.choose()
    assert (chosen.users, chosen.moved) == ({KEY: AWAY}, 1)  # it has not moved meanwhile


def test_a_report_that_begins_anew_makes_what_was_known_before_forgotten(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY), state(key_of(8)))
    assert fleet.choose().known == 2
    fleet.tell(AWAY, state(KEY), whole=True)
    assert fleet.choose().known == 1


def test_an_agent_whose_engine_does_not_answer_is_as_silent_as_none(fleet: Fleet) -> None:
    fleet.choose()
    for _ in range(10):
        for uid in fleet.starts:
            fleet.tell(uid, reachable=uid != AWAY)
        chosen = fleet.choose()
    assert chosen.silent == 1


def test_the_load_of_a_process_that_is_gone_is_not_its_successors(fleet: Fleet) -> None:
    fleet.tell(AWAY, in_flight=4000)
    fleet.now_ms += 120_000.0
    for uid in fleet.starts:
        fleet.tell(uid, in_flight=4000 if uid == AWAY else 1)
    fleet.starts[AWAY] = "start-2"
    fleet.tell(AWAY, state(KEY), whole=True)
    assert fleet.choose().users == {KEY: AWAY}


def test_a_restarted_instance_inherits_neither_residency_nor_overrides(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    assert fleet.choose().users == {KEY: AWAY}
    fleet.starts[AWAY] = "start-2"
    fleet.tell(AWAY, whole=True)
    assert fleet.choose().users == {}


def test_a_successor_that_goes_on_from_the_cursor_of_another_start_is_asked_anew(fleet: Fleet) -> None:
    fleet.starts[AWAY] = "start-2"
    assert fleet.tell(AWAY, state(KEY), whole=False)
    assert fleet.residents.cursor_of(AWAY) == 0
    assert fleet.choose().users == {}
    assert not fleet.tell(AWAY, state(KEY), whole=True)
    assert fleet.choose().users == {KEY: AWAY}


def test_an_agent_whose_cursor_goes_backwards_is_asked_anew_and_heard_again(fleet: Fleet) -> None:
    fleet.cursors[AWAY] = 1 << 60
    fleet.tell(AWAY, state(key_of(8)))
    fleet.choose()
    fleet.cursors[AWAY] = 5
    fleet.tell(AWAY, state(KEY), whole=False)
    assert fleet.residents.cursor_of(AWAY) == 0
    fleet.tell(AWAY, state(KEY))
    assert fleet.residents.cursor_of(AWAY) == 7
    assert fleet.choose().users[KEY] == AWAY


def test_emptied_caches_withdraw_what_was_made_for_them(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    fleet.choose()
    fleet.tell(AWAY, whole=True, generation=1)
    assert fleet.choose().users == {}


def test_an_engine_that_does_not_answer_its_agent_twice_is_sent_nobody(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    fleet.choose()
    fleet.tell(AWAY, reachable=False)
    assert fleet.choose().users == {KEY: AWAY}
    fleet.tell(AWAY, reachable=False)
    assert fleet.choose().users == {}
    fleet.tell(AWAY)
    assert fleet.choose().users == {KEY: AWAY}


def test_missing_reports_move_nobody(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    fleet.choose()
    for _ in range(20):
        fleet.residents.missed()
        assert fleet.choose(seconds=60.0).users == {KEY: AWAY}


def test_a_load_that_an_instance_had_before_it_fell_silent_keeps_nobody_out_for_ever(fleet: Fleet) -> None:
    fleet.now_ms += 120_000.0  # what was in flight before is forgotten
    for uid in fleet.starts:
        fleet.tell(uid, *([state(KEY)] if uid == AWAY else []), in_flight=4000 if uid == AWAY else 1)
    assert fleet.choose().refused == 1
    for _ in range(6):
        fleet.now_ms += 2000.0
        for uid in fleet.starts:
            if uid != AWAY:
                fleet.tell(uid)
    chosen = fleet.choose()
    assert (chosen.silent, chosen.users) == (1, {KEY: AWAY})


def test_the_age_of_a_report_is_that_of_what_the_engine_said_and_not_of_its_agents_last_word(fleet: Fleet) -> None:
    for _ in range(5):
        fleet.now_ms += 2000.0
        for uid in fleet.starts:
            fleet.tell(uid, reachable=uid != AWAY)
    ages = fleet.residents.view(now_ms=fleet.now_ms).age_s
    assert {f"uid-{name}": age for name, age in ages.items()} == {uid: 10.0 if uid == AWAY else 0.0 for uid in fleet.starts}


def test_nobody_leaves_an_instance_that_is_silent_for_what_others_report(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    fleet.choose(seconds=1.0)
    fleet.now_ms += 60_000.0  # AWAY says nothing any more
    third = next(uid for uid in fleet.starts if uid not in (AWAY, home_of(KEY)))
    fleet.tell(third, state(KEY, 9000))
    assert fleet.choose().users == {KEY: AWAY}


def test_an_instance_that_is_down_for_haproxy_and_silent_is_sent_nobody(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    assert fleet.choose(down=(AWAY,)).users == {KEY: AWAY}  # its agent speaks: a check may have failed on its way
    assert fleet.choose(seconds=60.0, down=(AWAY,)).users == {}


def test_a_report_in_the_name_of_another_instance_is_fenced(fleet: Fleet) -> None:
    report = ResidencyReport(uid="uid-x", start_id="start-1", generation=0, since=0, cursor=9, users=[state(KEY)])
    assert not fleet.residents.heard(AWAY, report, now_ms=0.0)
    assert not fleet.residents.heard("uid-unknown", report, now_ms=0.0)
    assert fleet.choose().users == {}
    assert fleet.residents.view(now_ms=0.0).reports["fenced"] == 2


def test_an_instance_that_left_the_table_takes_its_overrides_along(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    fleet.choose()
    names = tuple(name for name in NAMES if f"uid-{name}" != AWAY)
    fleet.residents.follow(rows(names), [slot % 2 for slot in range(4096)])
    assert fleet.choose().users == {}


def test_users_stay_at_their_caches_when_slots_change_owner(fleet: Fleet) -> None:
    keys = [key_of(number) for number in range(400)]
    for key in keys:
        fleet.tell(home_of(key), state(key))
    fleet.choose()
    fleet.residents.follow(rows(), [(owner + 1) % len(NAMES) for owner in OWNERS])
    chosen = fleet.choose()
    assert chosen.users == {key: home_of(key) for key in keys}


def test_an_agent_that_starts_again_moves_nobody_and_learns() -> None:
    fleet = Fleet()
    fleet.residents.adopt({KEY: AWAY, key_of(8): "uid-gone"}, now_ms=0.0)
    assert fleet.choose().users == {KEY: AWAY}
    fleet.all_tell()
    assert fleet.choose().users == {KEY: AWAY}
    fleet.starts[AWAY] = "start-2"
    fleet.tell(AWAY, whole=True)
    assert fleet.choose().users == {}


def test_an_adopted_override_ends_with_its_time() -> None:
    fleet = Fleet(ttl_ms=10_000.0)
    fleet.residents.adopt({KEY: AWAY}, now_ms=0.0)
    fleet.all_tell()
    assert fleet.choose(seconds=9.0).users == {KEY: AWAY}
    assert fleet.choose(seconds=2.0).users == {}


def test_a_request_just_sent_counts_for_two_seconds_and_not_longer() -> None:
    for seconds, expected in ((1.0, AWAY), (3.0, home_of(KEY))):
        fleet = Fleet()
        fleet.all_tell()
        fleet.tell(home_of(KEY), state(KEY, 1000))
        fleet.residents.adopt({KEY: AWAY}, now_ms=0.0)
        fleet.residents.routed(KEY, AWAY, now_ms=0.0)
        assert fleet.choose(seconds=seconds).users.get(KEY, home_of(KEY)) == expected


def test_a_request_of_a_user_that_nobody_reported_says_nothing_of_its_state(fleet: Fleet) -> None:
    fleet.residents.routed(KEY, AWAY, now_ms=0.0)
    assert fleet.choose(seconds=1.0).users == {}


def test_a_draining_instance_is_given_nobody(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    fleet.choose()
    draining = [row if row.uid != AWAY else rows((row.name,), state=InstanceState.DRAINING)[0] for row in rows()]
    fleet.residents.follow(draining, OWNERS)
    assert fleet.choose().users == {}


actions = st.lists(
    st.tuples(st.sampled_from(["tell", "gone", "restart", "lost", "choose", "wait"]), st.sampled_from(NAMES), st.integers(0, 30)),
    max_size=60,
)


@settings(max_examples=30, deadline=None)
@given(actions, st.randoms(use_true_random=False))
def test_an_override_only_ever_points_to_a_process_that_reported_the_user(
    log: list[tuple[str, str, int]], dice: random.Random
) -> None:
    fleet = Fleet(bound=LoadBound(percent=400.0, floor=1000.0))
    reported: dict[tuple[str, str], set[str]] = {}
    for what, name, number in log:
        uid, key = f"uid-{name}", key_of(number)
        match what:
            case "tell" | "gone":
                told = state(key, dice.randrange(1, 5000)) if what == "tell" else UserState(key=key)
                fleet.tell(uid, told)
                here = reported.setdefault((uid, fleet.starts[uid]), set())
                (here.add if what == "tell" else here.discard)(key)
            case "restart":
                fleet.starts[uid] = f"start-{dice.random()}"
                fleet.tell(uid, whole=True)
            case "lost":
                fleet.tell(uid, reachable=False)
            case "wait":
                fleet.now_ms += 30_000.0
            case _:
                for user, owner in fleet.choose().users.items():
                    assert user in reported.get((owner, fleet.starts[owner]), set())


@settings(max_examples=30, deadline=None)
@given(actions, st.randoms(use_true_random=False))
def test_rounds_that_leave_users_out_come_to_what_rounds_over_all_come_to(
    log: list[tuple[str, str, int]], dice: random.Random
) -> None:
    quick, thorough = (Fleet(bound=LoadBound(percent=400.0, floor=1000.0)) for _ in range(2))
    for what, name, number in [*log, ("choose", "a", 0), ("choose", "a", 0)]:
        uid, key, tokens, start = f"uid-{name}", key_of(number), dice.randrange(1, 5000), f"start-{dice.random()}"
        chosen = []
        for fleet in (quick, thorough):
            match what:
                case "tell":
                    fleet.tell(uid, state(key, tokens))
                case "gone":
                    fleet.tell(uid, UserState(key=key))
                case "restart":
                    fleet.starts[uid] = start
                    fleet.tell(uid, whole=True)
                case "lost":
                    fleet.tell(uid, reachable=False)
                case "wait":
                    fleet.now_ms += 3_000.0
                case _:
                    if fleet is thorough:
                        fleet.residents._whole_ms = float("-inf")
                    chosen.append(fleet.choose().users)
        assert not chosen or chosen[0] == chosen[1]
