"""Picks: overrides on top of slots, one order of fallback for all, exclusions that decay, and fences against the past."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace

import msgspec
import pytest
from client_tables import SECRET, HandClock, even, key_in_slot_of, table, tombstone
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ProtocolViolation
from contract.keys import SLOTS, slot_of, user_key
from contract.table import NOBODY, InstanceState, TableLimits
from grfleet.client import ExclusionLimits, NoInstance, Router

KEY = user_key(SECRET, "somebody")


def router_of(names: str = "abc", *, clock: HandClock | None = None, **limits: float) -> Router:
    exclusion = ExclusionLimits(**{"ramp_ms": 0.0, **limits})  # type: ignore[arg-type]  # the keywords are the test's own
    router = Router(clock=clock or HandClock(), exclusion=exclusion)
    router.accept(table(1, names))
    return router


def override(key: str, uid: str, until_ms: float) -> SimpleNamespace:
    return SimpleNamespace(user_key=key, instance_uid=uid, until_ms=until_ms)


# ---------------------------------------------------------------- order of fallback


@given(
    st.lists(st.sampled_from([0, 1, 2, NOBODY]), min_size=SLOTS // 256, max_size=SLOTS // 256), st.text(min_size=1, max_size=8)
)
def test_the_order_of_fallback_is_a_function_of_the_table_alone(pattern: list[int], user: str) -> None:
    owners, key = pattern * 256, user_key(SECRET, user.encode("utf-8", "replace").decode())
    one, other = Router(), Router()
    for router in (one, other):
        router.accept(table(7, owners=owners))
    other.failed("uid-a")  # what one client went through does not change the order, only who is passed over
    order = one.owners(key)
    assert order == other.owners(key)
    assert len({pick.uid for pick in order}) == len(order) == len(set(pattern) - {NOBODY})
    excluded: list[str] = []
    for expected in order:
        assert one.pick(key, exclude=excluded) == expected
        excluded.append(expected.name)
    for name in (name for at, name in enumerate("abc") if at not in pattern):
        assert one.pick(key, exclude=excluded).name == name, "who serves and owns nothing yet is better than nobody"
        excluded.append(name)
    with pytest.raises(NoInstance):
        one.pick(key, exclude=excluded)


def test_users_of_one_failed_instance_are_spread_over_all_others() -> None:
    router = Router()
    router.accept(table(1, "abcdef", owners=[random.Random(slot).randrange(6) for slot in range(SLOTS)]))
    keys = [key for key in (user_key(SECRET, f"u{n}") for n in range(6_000)) if router.pick(key).name == "a"]
    taken_over = {name: sum(router.pick(key, exclude=["a"]).name == name for key in keys) for name in "bcdef"}
    assert max(taken_over.values()) < 2 * min(taken_over.values())


def test_a_request_without_a_user_goes_anywhere_in_proportion_to_slots() -> None:
    router = Router()
    router.accept(table(1, "ab", owners=[0] * (SLOTS // 4) + [1] * (3 * SLOTS // 4)))
    rng = random.Random(5)
    share = sum(router.pick_any(rng).name == "a" for _ in range(2_000)) / 2_000
    assert 0.2 < share < 0.3
    assert router.pick_any(rng, exclude=["a"]).name == "b"


# ---------------------------------------------------------------- overrides


def test_an_override_wins_over_the_slot_until_it_expires() -> None:
    clock = HandClock()
    router = router_of(clock=clock)
    key = key_in_slot_of("a", router)
    assert router.overrides.replace([override(key, "uid-c", clock.now_ms + 100.0)]) == 1
    assert router.pick(key).name == "c"
    assert router.pick(key_in_slot_of("b", router)).name == "b"
    clock.now_ms += 100.0
    assert router.pick(key).name == "a"


def test_an_override_that_was_added_expires_like_one_of_a_set() -> None:
    clock = HandClock()
    router = router_of(clock=clock)
    key, other = key_in_slot_of("a", router), key_in_slot_of("b", router)
    router.overrides.replace([override(other, "uid-c", clock.now_ms + 1_000.0)])
    router.overrides.put(key, "uid-c", until_ms=clock.now_ms + 100.0)
    assert (router.pick(key).name, key in router.overrides) == ("c", True)
    clock.now_ms += 100.0
    assert (router.pick(key).name, key in router.overrides) == ("a", False)
    assert router.pick(other).name == "c"


@pytest.mark.parametrize("what", ["gone", "made anew under its name", "draining", "excluded", "just failed"])
def test_an_override_to_an_instance_that_cannot_serve_falls_back_to_the_slot(what: str) -> None:
    router = router_of()
    key = key_in_slot_of("a", router)
    router.overrides.replace([override(key, "uid-c", 1e9)])
    if what == "gone":
        router.accept(table(2, "ab", owners=[0] * SLOTS))
    elif what == "made anew under its name":
        router.accept(table(2, "abc", uid="later-{name}"))
    elif what == "draining":
        no_c = [owner % 2 for owner in even("abc")]
        router.accept(table(2, "abc", owners=no_c, states={"c": InstanceState.DRAINING}))
    elif what == "just failed":
        router.failed("uid-c")
    exclude = ["c"] if what == "excluded" else []
    assert router.pick(key, exclude=exclude).name == "a"


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 3_000)), max_size=60), st.integers(0, 8))
def test_overrides_never_exceed_their_bound_and_expired_ones_go_first(puts: list[tuple[int, float]], most: int) -> None:
    clock = HandClock()
    router = Router(clock=clock, most_overrides=most)
    for user, until_ms in puts:
        alive = {k for k, end_ms in router.overrides.held.ends_ms.items() if end_ms > clock.now_ms}
        router.overrides.put(f"{user:032x}", "uid-a", until_ms=until_ms)
        assert len(router.overrides) <= most
        if len(alive) < most:
            assert alive <= set(router.overrides.held.uids) == set(router.overrides.held.ends_ms)
        clock.now_ms += 10.0
    assert router.overrides.replace([override(f"{n:032x}", "uid-a", 1e9) for n in range(40)]) == min(most, 40)
    router.overrides.drop(f"{0:032x}")
    assert f"{0:032x}" not in router.overrides


def test_the_instance_of_an_earlier_answer_is_preferred_also_while_it_drains() -> None:
    router = router_of()
    key = key_in_slot_of("a", router)
    no_c = [owner % 2 for owner in even("abc")]
    router.accept(table(2, "abc", owners=no_c, states={"c": InstanceState.DRAINING}))
    assert router.pick(key, prefer="c").name == "c"
    assert router.pick(key, prefer="c", exclude=["c"]).name == "a"
    assert {router.pick(user_key(SECRET, f"u{n}")).name for n in range(50)} == {"a", "b"}


def test_the_instance_of_an_earlier_answer_is_preferred_while_it_serves() -> None:
    router = router_of()
    key = key_in_slot_of("a", router)
    assert router.pick(key, prefer="c").name == "c"
    assert router.pick(key, prefer="nobody").name == "a"
    assert router.pick(key, prefer="c", exclude=["c"]).name == "a"
    router.failed("uid-c")
    assert router.pick(key, prefer="c").name == "a"


def test_one_that_drains_and_fails_is_preferred_no_more_and_one_that_cannot_be_reached_never() -> None:
    router = router_of()
    key = key_in_slot_of("a", router)
    no_c = [owner % 2 for owner in even("abc")]
    router.accept(table(2, "abc", owners=no_c, states={"c": InstanceState.DRAINING}))
    assert router.failed("uid-c")
    assert router.pick(key, prefer="c").name == "a"
    router.accept(table(3, "abc", owners=no_c, states={"c": InstanceState.UNREACHABLE}))
    assert router.pick(key, prefer="c").name == "a"
    assert not router.failed("uid-c")


# ---------------------------------------------------------------- exclusions


def test_an_instance_that_failed_is_passed_over_longer_each_time_and_comes_back() -> None:
    clock = HandClock()
    router = router_of(clock=clock, base_ms=100.0, longest_ms=350.0)
    key = key_in_slot_of("a", router)
    for lasts_ms in (100.0, 200.0, 350.0, 350.0):
        assert router.failed("uid-a")
        assert router.pick(key).name != "a"
        assert router.status().excluded == ("a",)
        clock.now_ms += lasts_ms - 1.0
        assert router.pick(key).name != "a"
        clock.now_ms += 1.0
        assert router.pick(key).name == "a"
    router.succeeded("uid-a")
    router.failed("uid-a")
    clock.now_ms += 100.0
    assert router.pick(key).name == "a", "after an answer the next failure counts as the first"
    clock.now_ms += 100_000.0
    router.failed("uid-a")
    clock.now_ms += 100.0
    assert router.pick(key).name == "a", "and so it does after a long time"


def test_many_failures_at_once_are_one() -> None:
    clock = HandClock()
    router = router_of(clock=clock, base_ms=100.0)
    assert [router.failed("uid-a") for _ in range(50)] == [True] + [False] * 49
    clock.now_ms += 100.0
    assert router.status().excluded == ()


def test_users_return_little_by_little_to_an_instance_that_failed() -> None:
    clock = HandClock()
    router = router_of("ab", clock=clock, base_ms=100.0, ramp_ms=1_000.0)
    keys = [key for key in (user_key(SECRET, f"u{n}") for n in range(2_000)) if router.pick(key).name == "a"]
    router.failed("uid-a")
    clock.now_ms += 100.0
    shares = []
    for _ in range(5):
        shares.append(sum(router.pick(key).name == "a" for key in keys) / len(keys))
        router.succeeded("uid-a")
        clock.now_ms += 250.0
    assert shares == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0], abs=0.05)


def test_at_most_half_of_the_instances_are_excluded_and_never_the_only_one() -> None:
    router = router_of("abcd")
    assert [router.failed(f"uid-{name}") for name in "abcd"] == [True, True, False, False]
    assert {router.pick(user_key(SECRET, f"u{n}")).name for n in range(200)} == {"c", "d"}
    assert not router_of("a").failed("uid-a")
    assert not router.failed("uid-of-nobody")


def test_where_only_excluded_ones_are_left_one_of_them_is_better_than_nobody() -> None:
    router = router_of("ab")
    router.failed("uid-a")
    key = key_in_slot_of("a", router)
    assert router.pick(key).name == "b"
    assert router.pick(key, exclude=["b"]).name == "a"


def test_a_successor_of_the_same_name_starts_well() -> None:
    router = router_of("ab")
    router.failed("uid-a")
    router.accept(table(2, "ab", uid="later-{name}"))
    assert router.pick(key_in_slot_of("a", router)).uid == "later-a"
    assert router.status().excluded == ()


# ---------------------------------------------------------------- fences


def test_a_pool_made_anew_counts_from_one_and_its_predecessor_is_refused() -> None:
    router = Router()
    assert router.accept(table(50), incarnation="first")
    assert router.accept(table(1), incarnation="second")
    assert router.generation == 1
    assert not router.accept(table(51), incarnation="first")
    assert not router.accept(table(99), incarnation=""), "who the sender is must be known once it was"
    assert router.generation == 1


@given(st.lists(st.tuples(st.sampled_from(["one", "two", "three"]), st.integers(0, 5)), max_size=30))
def test_neither_generation_nor_incarnation_ever_goes_back(arrivals: list[tuple[str, int]]) -> None:
    router, taken = Router(), list[tuple[str, int]]()
    for incarnation, generation in arrivals:
        if router.accept(table(generation), incarnation=incarnation):
            taken.append((incarnation, generation))
    order = list(dict.fromkeys(incarnation for incarnation, _ in taken))
    assert [incarnation for incarnation, _ in taken] == sorted((i for i, _ in taken), key=order.index)
    for each in order:
        generations = [generation for incarnation, generation in taken if incarnation == each]
        assert generations == sorted(set(generations))


@pytest.mark.parametrize("generation", [0, 5, 6])
def test_a_tombstone_empties_whatever_its_generation_and_any_table_after_it_is_new(generation: int) -> None:
    router = Router()
    router.accept(table(5), incarnation="one")
    assert router.accept(tombstone(generation), incarnation="one")
    assert router.status().withdrawn
    with pytest.raises(NoInstance, match="withdrawn"):
        router.pick(KEY)
    assert not router.accept(tombstone(generation), incarnation="one"), "once is enough"
    assert router.accept(table(1), incarnation="one")
    assert router.pick(KEY).generation == 1
    assert router.accept(table(1), incarnation="two")
    assert not router.accept(tombstone(9), incarnation="one"), "of an object that was replaced nothing is heard any more"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
def test_between_two_tombstones_generations_only_rise(arrivals: list[tuple[bool, int]]) -> None:
    router, since = Router(), list[int]()
    for buried, generation in arrivals:
        if router.accept(tombstone(generation) if buried else table(generation)):
            since = [] if buried else [*since, generation]
        assert since == sorted(set(since))
        assert router.status().withdrawn == (router.generation >= 0 and not since)


def test_two_rows_of_one_name_or_one_uid_are_no_table() -> None:
    router = router_of()
    for broken in (table(2, "aab"), table(2, "abc", uid="same")):
        with pytest.raises(ProtocolViolation, match="two rows"):
            router.accept(broken)
    assert router.generation == 1


def test_a_table_never_expires_and_its_age_shows() -> None:
    clock = HandClock()
    router = router_of(clock=clock)
    assert router.status().contact_age_ms is None
    router.heard()
    clock.now_ms += 5 * 24 * 3_600_000.0
    assert router.pick(KEY).generation == 1
    status = router.status()
    assert status.table_age_ms == status.contact_age_ms == 5 * 24 * 3_600_000.0


# ---------------------------------------------------------------- threads


def test_threads_that_pick_while_tables_change_see_whole_tables_only() -> None:
    """Instances of even generations are even, of odd ones odd; every pick must be of one generation, and time goes forward."""
    router = Router(exclusion=ExclusionLimits(base_ms=0.01, ramp_ms=0.01))
    tables = [table(g, "abcd" if g % 2 else "efgh", uid=f"{g}-{{name}}") for g in range(1, 120)]
    router.accept(tables[0])
    keys, wrong, end = [user_key(SECRET, f"u{n}") for n in range(64)], list[str](), threading.Event()

    def picks(seed: int) -> None:
        rng, last = random.Random(seed), 0
        while not end.is_set():
            pick = router.pick(rng.choice(keys), exclude=["a"] if rng.random() < 0.2 else [])
            if pick.uid != f"{pick.generation}-{pick.name}" or pick.name not in ("abcd" if pick.generation % 2 else "efgh"):
                wrong.append(f"torn: {pick}")
            if pick.generation < last:
                wrong.append(f"back: {pick}")
            last = pick.generation
            if rng.random() < 0.1:
                router.failed(pick.uid)
            elif rng.random() < 0.1:
                router.succeeded(pick.uid)

    def overrides() -> None:
        rng = random.Random(0)
        while not end.is_set():
            router.overrides.put(rng.choice(keys), f"{router.generation}-c", until_ms=1e18)
            router.overrides.replace([override(key, f"{router.generation}-d", 1e18) for key in rng.sample(keys, 5)])

    def guarded(function: object, *arguments: object) -> None:
        try:
            function(*arguments)  # type: ignore[operator]  # one of the two above
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(picks, seed)) for seed in range(4)]
    threads.append(threading.Thread(target=guarded, args=(overrides,)))
    for thread in threads:
        thread.start()
    for each in tables[1:]:
        router.accept(each)
        router.status()
    end.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert router.generation == 119


def test_a_pick_waits_for_nobody() -> None:
    """It answers while every lock of the router is held, as by a writer that was stopped in the middle."""
    router = router_of()
    router.failed("uid-b")
    router.overrides.put(KEY, "uid-c", until_ms=1e9)
    locks = [router._lock, router._exclusions._lock, router.overrides._lock]
    for lock in locks:
        lock.acquire()
    try:
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.extend([router.pick(KEY).name, router.pick(KEY, exclude=["c"]).name]))
        thread.start()
        thread.join(10)
        assert len(answers) == 2
    finally:
        for lock in locks:
            lock.release()


def test_the_slot_of_a_key_is_the_contract_s() -> None:
    router = router_of()
    assert router.pick(KEY).name == "abc"[slot_of(KEY) % 3]


def test_the_table_bounds_overrides_and_names_the_header_unless_the_caller_bounds_them() -> None:
    clock = HandClock()
    limited = msgspec.structs.replace(table(1, "ab"), limits=TableLimits(hot_users_max=3, key_header="x-member"))
    by_table, by_caller = Router(clock=clock), Router(clock=clock, most_overrides=5)
    for router in (by_table, by_caller):
        router.overrides.replace([override(f"{n:032x}", "uid-a", 1e9) for n in range(9)])
        router.accept(limited)
        assert router.key_header == "x-member"
    assert (len(by_table.overrides), len(by_caller.overrides)) == (3, 5)
    by_table.overrides.put(f"{99:032x}", "uid-a", until_ms=1e9)
    assert len(by_table.overrides) <= 3
    by_table.accept(table(2, "ab"))  # of an operator that says nothing
    assert by_table.overrides.replace([override(f"{n:032x}", "uid-a", 1e9) for n in range(9)]) == 9
    assert by_table.key_header == "x-gr-user-key"
