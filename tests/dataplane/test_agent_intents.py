"""Which intents an agent accepts, refuses and forgets."""

from typing import Any

import pytest
from signed_intents import NOW, PUBLIC, STATIC, intent

from contract.agent import Intent, IntentStatus
from dataplane.agent.intent import CLOCK_SKEW_SECONDS, IntentBook


def book_holding(first: Intent, **options: Any) -> IntentBook:
    book = IntentBook(public_key=PUBLIC, **options)
    assert book.offer(first, now_s=NOW).status is IntentStatus.ACCEPTED
    return book


def test_a_signed_intent_is_accepted_and_typed() -> None:
    book = book_holding(intent())
    assert book.current is not None
    assert book.current.spec.bounds.fallback_emb_percent == 40


@pytest.mark.parametrize(
    ("offered", "status"),
    [
        (intent(generation=2), IntentStatus.STALE),
        (intent(generation=3), IntentStatus.UNCHANGED),
        (intent(generation=3, issued=NOW + 30), IntentStatus.UNCHANGED),
        (intent(generation=3, spec={"strategy": "HillClimb"}), IntentStatus.INVALID),
        (intent(generation=4), IntentStatus.ACCEPTED),
        (intent(uid="uid-b", generation=1, issued=NOW + 1), IntentStatus.ACCEPTED),
        (intent(uid="uid-b", generation=9, issued=NOW - 1), IntentStatus.STALE),
        (intent(uid="uid-b", generation=9, issued=NOW), IntentStatus.STALE),
        (intent(generation=4, issued=NOW - 1000, life=10), IntentStatus.EXPIRED),
        (intent(generation=4, issued=NOW + CLOCK_SKEW_SECONDS + 5), IntentStatus.INVALID),
        (intent(generation=4, issued=NOW + CLOCK_SKEW_SECONDS - 5), IntentStatus.ACCEPTED),
        (intent(generation=4, life=-5), IntentStatus.INVALID),
        (intent(generation=4, spec={"strategy": "Guess"}), IntentStatus.INVALID),
        (intent(generation=4, spec={"step": {"intervalMs": 0}}), IntentStatus.INVALID),
        (intent(generation=4, spec={"bounds": {"minEmbPercent": 60, "fallbackEmbPercent": 50}}), IntentStatus.INVALID),
        (intent(generation=4, spec={"bounds": {"minEmbPercent": True}}), IntentStatus.INVALID),
        (intent(generation=4, spec={"fromTheFuture": 1}), IntentStatus.ACCEPTED),
    ],
)
def test_each_offer_to_a_book_holding_generation_three_gets_its_verdict(offered: Intent, status: IntentStatus) -> None:
    book = book_holding(intent())
    answer = book.offer(offered, now_s=NOW)
    assert answer.status is status
    assert (answer.reason == "") == (status in (IntentStatus.ACCEPTED, IntentStatus.UNCHANGED))
    assert book.current is not None
    assert (answer.uid, answer.generation) == (book.current.uid, book.current.generation)
    if status is not IntentStatus.ACCEPTED:
        assert (book.current.uid, book.current.generation) == ("uid-a", 3)


@pytest.mark.parametrize("field", ["uid", "generation", "issued", "expires", "spec", "signature"])
def test_a_changed_field_makes_the_signature_worthless(field: str) -> None:
    honest = intent()
    values: dict[str, Any] = {name: getattr(honest, name) for name in honest.__struct_fields__}
    values[field] = {
        "uid": "uid-b", "generation": 9, "issued": NOW + 1, "expires": NOW + 10**6, "spec": {"strategy": "HillClimb"},
        "signature": honest.signature[:-8] + "AAAAAA==",
    }[field]  # fmt: skip
    book = IntentBook(public_key=PUBLIC)
    assert book.offer(Intent(**values), now_s=NOW).status is IntentStatus.FORGED
    assert book.current is None


def test_an_unsigned_intent_is_only_taken_when_that_was_asked_for() -> None:
    unsigned = Intent(uid="u", generation=1, issued=NOW, expires=NOW + 1, spec={})
    assert IntentBook(public_key=PUBLIC).offer(unsigned, now_s=NOW).status is IntentStatus.FORGED
    assert IntentBook(public_key=None).offer(unsigned, now_s=NOW).status is IntentStatus.ACCEPTED


def test_a_float_in_a_signed_spec_is_refused_and_not_a_crash() -> None:
    odd = Intent(uid="u", generation=1, issued=NOW, expires=NOW + 1, spec={"x": 1.5}, signature="AAAA")
    assert IntentBook(public_key=PUBLIC).offer(odd, now_s=NOW).status is IntentStatus.FORGED


def test_an_agent_bound_to_an_instance_refuses_the_intents_of_others() -> None:
    book = IntentBook(public_key=PUBLIC, instance_uid="uid-a")
    assert book.offer(intent(uid="uid-b"), now_s=NOW).status is IntentStatus.INVALID
    assert book.offer(intent(uid="uid-a"), now_s=NOW).status is IntentStatus.ACCEPTED


@pytest.mark.parametrize(
    ("audience", "status"),
    [
        ({"namespace": "feed", "podUid": "pod-1"}, IntentStatus.ACCEPTED),
        ({"namespace": "feed", "podUid": "pod-2"}, IntentStatus.INVALID),
        ({"namespace": "other", "podUid": "pod-1"}, IntentStatus.INVALID),
        ({"namespace": "feed"}, IntentStatus.INVALID),
        ({}, IntentStatus.INVALID),
        (None, IntentStatus.INVALID),
        ("feed", IntentStatus.INVALID),
        ({"namespace": None, "podUid": 7}, IntentStatus.INVALID),
    ],
)
def test_an_agent_that_knows_where_it_runs_refuses_what_was_signed_for_another_namespace_or_pod(
    audience: Any, status: IntentStatus
) -> None:
    """A tenant can have intents signed for a pool of its own, and send them to whatever agent it can reach."""
    book = IntentBook(public_key=PUBLIC, namespace="feed", pod_uid="pod-1")
    spec = STATIC if audience is None else {**STATIC, "audience": audience}
    answer = book.offer(intent(spec=spec), now_s=NOW)
    assert answer.status is status, answer.reason
    assert (book.current is not None) == (status is IntentStatus.ACCEPTED)


def test_an_audience_is_no_part_of_what_is_ordered() -> None:
    """An operator that has just learnt to name it must not contradict what its predecessor said under the same generation."""
    book = book_holding(intent())
    addressed = {**STATIC, "audience": {"namespace": "feed", "podUid": "pod-1"}}
    assert book.offer(intent(spec=addressed), now_s=NOW).status is IntentStatus.UNCHANGED


def test_an_accepted_intent_outlives_its_expiry() -> None:
    book = book_holding(intent(life=10))
    late = NOW + 10**7
    assert book.offer(intent(life=10), now_s=late).status is IntentStatus.UNCHANGED
    assert book.current is not None
    assert book.current.generation == 3


def test_a_replayed_intent_of_the_replaced_instance_does_not_come_back() -> None:
    old = intent(uid="uid-a", generation=50)
    book = book_holding(old)
    assert book.offer(intent(uid="uid-b", generation=1, issued=NOW + 5), now_s=NOW + 5).status is IntentStatus.ACCEPTED
    assert book.offer(old, now_s=NOW + 6).status is IntentStatus.STALE
