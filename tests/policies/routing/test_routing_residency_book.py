"""The book of residency takes what the followed start of an instance says, and nothing else; silence makes nobody forgotten."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.routing.residency import BookRules, Outcome, ResidencyBook, Tokens
from policies.routing.score import confidence_at

STARTS = {"a": "a-1", "b": "b-1"}


def a_book(**rules: Any) -> ResidencyBook:
    book = ResidencyBook(BookRules(**rules))
    book.follow(STARTS)
    return book


def tell(book: ResidencyBook, *users: str, **changes: Any) -> Outcome:
    base: dict[str, Any] = {"uid": "a", "start_id": "a-1", "generation": 1, "now_ms": 0.0}
    return book.report(users=[Tokens(user_key=user, hbm=100) for user in users], **(base | changes))


def held(book: ResidencyBook, now_ms: float = 0.0) -> list[tuple[str, str, bool]]:
    return [(row.instance_uid, row.user_key, row.speculative) for row in book.rows(now_ms)]


def test_a_report_is_known_until_the_instance_starts_anew_or_goes() -> None:
    for later, expected in (
        (STARTS, [("a", "u", False)]),
        ({"a": "a-2", "b": "b-1"}, []),
        ({"b": "b-1"}, []),
    ):
        book = a_book()
        assert tell(book, "u") is Outcome.TAKEN
        book.follow(later)
        assert held(book) == expected


def test_a_report_of_another_start_or_of_nobody_is_fenced() -> None:
    book = a_book()
    assert tell(book, "u", start_id="a-0") is Outcome.FENCED
    assert tell(book, "u", uid="c") is Outcome.FENCED
    assert held(book) == []
    assert book.silent(0.0) == {"a", "b"}


def test_generations_never_go_back_and_a_new_one_begins_with_nothing() -> None:
    book = a_book()
    tell(book, "u", generation=2, cursor=5)
    assert tell(book, "v", generation=1, cursor=9) is Outcome.OLD
    assert tell(book, "v", generation=2, cursor=4) is Outcome.OLD
    assert held(book) == [("a", "u", False)]
    assert tell(book, "v", generation=2, cursor=6) is Outcome.TAKEN
    assert held(book) == [("a", "u", False), ("a", "v", False)]
    assert tell(book, "w", generation=3) is Outcome.TAKEN
    assert held(book) == [("a", "w", False)]


def test_a_cursor_that_was_told_too_high_holds_until_the_instance_begins_anew_and_a_generation_for_as_long_as_it_lives() -> None:
    book = a_book()
    tell(book, "u", generation=2, cursor=1 << 62)
    assert tell(book, "v", generation=2, cursor=7) is Outcome.OLD
    assert tell(book, "v", generation=1, cursor=7, whole=True) is Outcome.OLD
    assert tell(book, "v", generation=2, cursor=7, whole=True) is Outcome.TAKEN
    assert held(book) == [("a", "v", False)]
    assert tell(book, "w", generation=2, cursor=8) is Outcome.TAKEN
    assert held(book) == [("a", "v", False), ("a", "w", False)]


def test_state_that_is_gone_is_forgotten_at_once() -> None:
    book = a_book()
    tell(book, "u", "v", "w")
    tell(book, cursor=1, gone=["u"])
    book.report(uid="a", start_id="a-1", generation=1, cursor=2, users=[Tokens(user_key="v")], now_ms=1.0)
    assert held(book) == [("a", "w", False)]


def test_a_user_that_reports_no_longer_name_is_forgotten_and_one_of_a_silent_instance_is_not() -> None:
    book = a_book(forget_ms=1000.0)
    tell(book, "u")
    tell(book, "x", uid="b", start_id="b-1")
    for at_ms in (500.0, 1000.0, 1500.0):
        tell(book, "v", now_ms=at_ms)
    assert held(book, 1500.0) == [("a", "v", False), ("b", "x", False)]
    assert held(book, 1e9) == [("a", "v", False), ("b", "x", False)]
    assert book.silent(1500.0) == set()
    assert book.silent(10_500.0) == {"b"}
    assert book.silent(1e9) == {"a", "b"}


def test_a_routed_request_counts_for_a_moment_or_until_it_is_reported() -> None:
    book = a_book()
    book.routed("u", uid="a", tokens=500, now_ms=0.0)
    book.routed("u", uid="nobody", tokens=500, now_ms=0.0)
    book.routed("v", uid="a", tokens=0, now_ms=0.0)
    assert held(book, 2000.0) == [("a", "u", True)]
    assert book.rows(2000.0)[0].kv_tokens_hbm == 500
    tell(book, "u", now_ms=2000.0)
    assert held(book, 2000.0) == [("a", "u", False)]
    book.routed("w", uid="a", tokens=500, now_ms=2000.0)
    assert held(book, 4001.0) == [("a", "u", False)]


def test_an_instance_is_kept_within_its_bound_by_its_largest_states() -> None:
    book = a_book(most_per_instance=2)
    users = [Tokens(user_key=f"u{size}", hbm=size, host=1) for size in (1, 5, 3, 4)]
    book.report(uid="a", start_id="a-1", generation=1, users=users, now_ms=0.0)
    assert held(book) == [("a", "u4", False), ("a", "u5", False)]
    for number in range(5):
        book.routed(f"r{number}", uid="b", tokens=1, now_ms=float(number))
    assert held(book, 5.0) == [("a", "u4", False), ("a", "u5", False), ("b", "r0", True), ("b", "r1", True)]
    book.routed("r5", uid="b", tokens=1, now_ms=3000.0)
    assert held(book, 3000.0)[2:] == [("b", "r5", True)]


words = st.sampled_from(["u", "v", "w"])
reports = st.fixed_dictionaries(
    {
        "uid": st.sampled_from(["a", "b", "c"]),
        "start_id": st.sampled_from(["a-0", "a-1", "b-1"]),
        "generation": st.integers(0, 3),
        "cursor": st.integers(0, 3),
        "gone": st.lists(words, max_size=2),
        "now_ms": st.floats(0.0, 5000.0),
    }
)


@given(st.lists(st.tuples(reports, st.lists(words, max_size=3))))
def test_a_report_that_is_not_taken_changes_nothing(told: list[tuple[dict[str, Any], list[str]]]) -> None:
    book, sober = a_book(), a_book()
    for report, users in told:
        if tell(book, *users, **report) is Outcome.TAKEN:
            tell(sober, *users, **report)
    assert book.rows(5000.0) == sober.rows(5000.0)
    assert book.silent(20_000.0) == sober.silent(20_000.0)
    assert {row.start_id for row in book.rows(0.0)} <= {"a-1", "b-1"}


@pytest.mark.parametrize(
    ("age_ms", "expected"), [(-5.0, 1.0), (10.0, 1.0), (110.0, 0.5), (310.0, 0.125), (1e300, 0.0), (float("inf"), 0.0)]
)
def test_confidence_halves_with_age(age_ms: float, expected: float) -> None:
    assert confidence_at(age_ms, fresh_ms=10.0, half_life_ms=100.0) == pytest.approx(expected)
    assert confidence_at(20.0, fresh_ms=10.0, half_life_ms=0.0) == 0.0
