"""Who leaves first when a pool gets smaller."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.scaling.victims import Candidate, choose_victims, order_of_leaving


def names(*candidates: Candidate) -> list[str]:
    return [each.name for each in order_of_leaving(candidates)]


def test_whoever_does_not_serve_goes_before_whoever_does_however_much_it_holds() -> None:
    assert names(
        Candidate(name="empty", ready=True, resident_bytes=0), Candidate(name="broken", ready=False, resident_bytes=1 << 40)
    ) == ["broken", "empty"]


def test_an_old_model_version_goes_before_the_wanted_one() -> None:
    old = Candidate(name="old", ready=True, wanted_version=False, resident_bytes=9)
    assert names(Candidate(name="new", ready=True, resident_bytes=1), old) == ["old", "new"]


def test_among_ready_ones_the_least_resident_value_goes_and_what_nobody_measured_goes_last() -> None:
    assert names(
        Candidate(name="unknown", ready=True),
        Candidate(name="much", ready=True, resident_bytes=9),
        Candidate(name="little", ready=True, resident_bytes=1),
        Candidate(name="nothing", ready=True, resident_bytes=0),
    ) == ["nothing", "little", "much", "unknown"]


def test_of_equals_the_younger_goes() -> None:
    assert names(
        Candidate(name="a", ready=True, resident_bytes=1, age_seconds=100.0),
        Candidate(name="b", ready=True, resident_bytes=1, age_seconds=5.0),
    ) == ["b", "a"]


candidates = st.lists(
    st.builds(
        Candidate,
        name=st.text("abcdef", min_size=1, max_size=4),
        ready=st.booleans(),
        wanted_version=st.booleans(),
        resident_bytes=st.none() | st.integers(0, 5),
        age_seconds=st.floats(0, 10),
    ),
    unique_by=lambda each: each.name,
)


@given(found=candidates, count=st.integers(-2, 12), data=st.data())
def test_the_choice_does_not_depend_on_the_order_of_the_input_and_takes_as_many_as_asked(
    found: list[Candidate], count: int, data: st.DataObject
) -> None:
    chosen = choose_victims(found, count)
    assert len(chosen) == max(0, min(count, len(found)))
    assert chosen == choose_victims(data.draw(st.permutations(found)), count)
    assert chosen == order_of_leaving(found)[: len(chosen)]
