"""What bounds the hot users of a gateway: load of instances, number of overrides, what is weighed and what is known."""

from residents_world import AWAY, KEY, Fleet, elsewhere, home_of, key_of, rows, state

from policies.routing.types import Limits, LoadBound


def test_overrides_obey_the_bound_on_load() -> None:
    fleet = Fleet(bound=LoadBound(percent=125.0, floor=1.0), load_per_user=0.5)
    keys = [key for key in map(key_of, range(600)) if home_of(key) != "uid-a"]
    fleet.tell("uid-a", *(state(key) for key in keys), in_flight=10)
    fleet.tell("uid-b", in_flight=10)
    fleet.tell("uid-c", in_flight=10)
    chosen = fleet.choose()
    # A third of 30 requests in flight and a quarter more: 12.5, of which 10 are there already.
    assert len(chosen.users) == 5
    assert set(chosen.users.values()) == {"uid-a"}
    assert chosen.refused == len(keys) - 5
    again = fleet.choose()
    view = fleet.residents.view(now_ms=fleet.now_ms)
    assert (view.refused, view.refusals) == (again.refused, chosen.refused + again.refused)
    assert (view.overrides, view.most) == (len(again.users), Limits().most)


def test_other_limits_hold_from_the_next_choice_also_for_users_that_stand_already(fleet: Fleet) -> None:
    keys = [key_of(number) for number in range(40) if home_of(key_of(number)) != "uid-a"]
    fleet.tell("uid-a", *(state(key) for key in keys))
    assert len(fleet.choose().users) == len(keys)
    assert fleet.residents.set_limits(Limits(most=3))
    assert not fleet.residents.set_limits(Limits(most=3))
    assert len(fleet.choose().users) == 3
    fleet.residents.set_limits(Limits(most=0))
    assert fleet.choose().users == {}
    fleet.residents.set_limits(Limits())
    assert len(fleet.choose().users) == len(keys), "nothing was forgotten of them"
    fleet.residents.set_limits(Limits(bound=LoadBound(percent=100.0, floor=0.0), load_per_user=1.0))
    assert len(fleet.choose().users) < len(keys)


def test_overrides_are_taken_back_from_an_instance_that_gets_above_its_bound() -> None:
    fleet = Fleet(bound=LoadBound(percent=125.0, floor=4.0), load_per_user=0.5)
    keys = [key for key in map(key_of, range(30)) if home_of(key) != "uid-a"][:4]
    fleet.all_tell()
    fleet.tell("uid-a", *(state(key) for key in keys))
    assert len(fleet.choose().users) == 4
    for _ in range(100):  # minutes, as what is in flight is averaged
        fleet.tell("uid-a", in_flight=40)
        fleet.tell("uid-b", in_flight=10)
        fleet.tell("uid-c", in_flight=10)
        chosen = fleet.choose(seconds=3.0)
    assert chosen.users == {}


def test_a_load_far_above_the_bound_takes_overrides_back_at_once(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    fleet.choose()
    fleet.tell(AWAY, in_flight=4000)
    assert fleet.choose().users == {}


def test_a_moment_of_load_moves_nobody(fleet: Fleet) -> None:
    fleet.tell(AWAY, state(KEY))
    fleet.choose()
    fleet.tell(AWAY, in_flight=80)
    assert fleet.choose().users == {KEY: AWAY}


def test_a_round_weighs_only_users_that_have_state_where_they_are_not_sent(fleet: Fleet) -> None:
    keys = [key_of(number) for number in range(300)]
    for uid in fleet.starts:
        fleet.tell(uid, *(state(key) for key in keys if elsewhere(key) == uid))
    first = fleet.choose()
    assert (first.weighed, len(first.users)) == (300, 300)
    assert fleet.choose().weighed == 0
    third = next(uid for uid in fleet.starts if uid not in (AWAY, home_of(KEY)))
    fleet.tell(third, state(KEY, 9000))
    again = fleet.choose()
    assert (again.weighed, again.users[KEY], len(again.users)) == (2, third, 300)
    assert fleet.choose(seconds=60.0).weighed == 301  # now and then all of them


def test_what_is_known_is_bounded_over_all_instances_together() -> None:
    fleet = Fleet(most=600)
    keys = [key_of(number) for number in range(1000)]
    for uid in fleet.starts:
        fleet.tell(uid, *(state(key, 10 + number) for number, key in enumerate(keys)))
    assert fleet.choose().known == 1200  # 400 on each
    fleet.residents.follow(rows(("a", "b")), [slot % 2 for slot in range(4096)])
    for uid in ("uid-a", "uid-b"):
        fleet.tell(uid, *(state(key, 10 + number) for number, key in enumerate(keys)), whole=True)
    assert fleet.choose().known == 1200  # 600 on each
