"""Which changes need canaries, who they are, and what leads from one phase to the next."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rollout.comparison import Change, student
from policies.rollout.groups import MOST_CANARIES, MOST_CONTROLS, Member, canary_count, choose
from policies.rollout.phases import GOING_ON, TRYING, Phase, Soak, next_phase
from policies.rollout.risk import Charge, charge_of, needs_canaries
from policies.rollout.verdict import FEWEST_AFTER, Evidence, Tolerance, Verdict, judge

LEARNED = Charge(strategy="Learned", model_sha256="a", clamp_percent=10)
CLIMB = Charge(strategy="HillClimb")
TOLERANCE = Tolerance(p99_percent=10, allowed_bad_percent=1.0)


@pytest.mark.parametrize(
    ("new", "old", "needed"),
    [
        (LEARNED, None, True),
        (CLIMB, None, True),
        (LEARNED, CLIMB, True),
        (CLIMB, LEARNED, True),
        (replace(LEARNED, model_sha256="b"), LEARNED, True),
        (replace(LEARNED, clamp_percent=11), LEARNED, True),
        (replace(LEARNED, residual_percent=1), LEARNED, True),
        (replace(LEARNED, clamp_percent=9), LEARNED, False),
        (LEARNED, replace(LEARNED, residual_percent=20), False),
        (LEARNED, LEARNED, False),
        (None, LEARNED, False),
        (None, None, False),
    ],
)
def test_what_gives_somebody_new_or_more_room_needs_canaries(new: Charge | None, old: Charge | None, needed: bool) -> None:
    assert needs_canaries(new, old) is needed


@pytest.mark.parametrize("strategy", ["Static", "MissRatioCurve", "HillClimb", "Learned"])
def test_in_shadow_nobody_is_in_charge(strategy: str) -> None:
    assert charge_of(strategy=strategy, shadow=True, model_sha256="a") is None


def test_learned_without_a_model_is_its_anchor() -> None:
    assert charge_of(strategy="Learned", shadow=False) is None
    assert charge_of(strategy="MissRatioCurve", shadow=False, model_sha256="a") is None
    assert charge_of(strategy="HillClimb", shadow=False, clamp_percent=10) == CLIMB


@given(st.integers(1, 2000), st.integers(1, 100))
def test_canaries_are_their_percent_rounded_up_and_at_least_one(total: int, percent: int) -> None:
    count = canary_count(total, percent)
    assert 1 <= count <= total
    assert count == min(MOST_CANARIES, math.ceil(total * percent / 100))


@given(st.lists(st.tuples(st.integers(0, 10_000), st.booleans()), min_size=1, max_size=60, unique_by=lambda x: x[0]))
def test_the_choice_depends_on_who_is_there_and_on_nothing_else(seen: list[tuple[int, bool]]) -> None:
    members = [Member(name=f"i{number}", uid=f"u{number}", ready=ready) for number, ready in seen]
    groups = choose(members, percent=10, revision="r")
    assert groups == choose(members[::-1], percent=10, revision="r")
    assert not set(groups.canaries) & set(groups.controls)
    assert len(groups.controls) <= MOST_CONTROLS
    ready = sum(member.ready for member in members)
    assert sum(member.ready for member in groups.canaries) == min(ready, len(groups.canaries)), "who is not ready goes last"


def test_a_member_that_leaves_does_not_move_the_others() -> None:
    members = [Member(name=f"i{number}", uid=f"u{number}") for number in range(40)]
    chosen = choose(members, percent=10, revision="r").canaries
    without = [member for member in members if member != chosen[0]]
    assert set(chosen[1:]) < set(choose(without, percent=10, revision="r").canaries)


def test_another_change_has_other_canaries() -> None:
    members = [Member(name=f"i{number}", uid=f"u{number}") for number in range(40)]
    assert len({choose(members, percent=10, revision=str(each)).canaries for each in range(10)}) > 5


def change(mean: float, half: float, *, windows: int = 30) -> Change:
    """A change known to within `half` at one look, and to twice that at all looks together."""
    return Change(
        mean=mean,
        surely=mean - 2 * half,
        likely=mean - half,
        at_most=mean + half,
        surely_at_most=mean + 2 * half,
        windows=windows,
    )


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (Evidence(), Verdict.OPEN),
        (Evidence(p99=change(0.5, 0.01, windows=FEWEST_AFTER - 1)), Verdict.OPEN),
        (Evidence(p99=change(0.5, 0.01)), Verdict.HARM),
        (Evidence(p99=change(0.5, 0.3)), Verdict.OPEN),
        (Evidence(p99=change(0.05, 0.01)), Verdict.SURELY_PASSES),  # worse without doubt, and less than what is tolerated
        (Evidence(p99=change(0.05, 0.03)), Verdict.PASSES),
        (Evidence(p99=change(0.05, 0.06)), Verdict.OPEN),
        (Evidence(p99=change(-0.3, 0.05), bad=change(0.5, 0.1)), Verdict.HARM),
        (Evidence(p99=change(-0.3, 0.05), bad=change(0.5, 0.3)), Verdict.OPEN),
        (Evidence(p99=change(-0.3, 0.05), bad=change(0.05, 0.01)), Verdict.SURELY_PASSES),
        (Evidence(p99=change(-0.3, 0.05), bad=change(-0.5, 0.01)), Verdict.SURELY_PASSES),
        (Evidence(p99=change(0.0, 0.01), alone=True), Verdict.OPEN),
        (Evidence(p99=change(0.0, 0.01), alone=True, load=0.1), Verdict.SURELY_PASSES),
        (Evidence(p99=change(0.0, 0.01), alone=True, load=0.4), Verdict.OPEN),
        (Evidence(p99=change(0.0, 0.01), alone=True, load=-0.4), Verdict.OPEN),
        (Evidence(p99=change(0.5, 0.01), alone=True, load=0.4), Verdict.HARM),  # it may be the load; the old policy is safe
    ],
)
def test_evidence_is_harm_a_pass_or_left_open_by_bounds_and_tolerance(evidence: Evidence, verdict: Verdict) -> None:
    assert judge(evidence, TOLERANCE) is verdict


def follow(phase: Phase, verdict: Verdict, *, seconds: float, alone: bool = False) -> Phase:
    return next_phase(phase, soak=Soak(seconds=seconds, wanted_seconds=300.0, alone=alone), verdict=verdict, measured=True)


@pytest.mark.parametrize(
    ("phase", "verdict", "seconds", "next_"),
    [
        (Phase.CANARY, Verdict.SURELY_PASSES, 299.0, Phase.CANARY),  # nothing passes early
        (Phase.CANARY, Verdict.PASSES, 300.0, Phase.COMPLETE),
        (Phase.CANARY, Verdict.OPEN, 300.0, Phase.EXTENDED),
        (Phase.CANARY, Verdict.HARM, 1.0, Phase.ROLLED_BACK),
        (Phase.EXTENDED, Verdict.PASSES, 400.0, Phase.EXTENDED),
        (Phase.EXTENDED, Verdict.PASSES, 600.0, Phase.COMPLETE),
        (Phase.EXTENDED, Verdict.OPEN, 600.0, Phase.INCONCLUSIVE),
        (Phase.EXTENDED, Verdict.HARM, 301.0, Phase.ROLLED_BACK),
        (Phase.INCONCLUSIVE, Verdict.PASSES, 900.0, Phase.INCONCLUSIVE),  # an unplanned look needs a bound for all looks
        (Phase.INCONCLUSIVE, Verdict.SURELY_PASSES, 900.0, Phase.COMPLETE),
        (Phase.INCONCLUSIVE, Verdict.HARM, 900.0, Phase.ROLLED_BACK),
    ],
)
def test_a_phase_ends_by_the_verdict_and_the_time_soaked(phase: Phase, verdict: Verdict, seconds: float, next_: Phase) -> None:
    assert follow(phase, verdict, seconds=seconds) is next_


def test_without_controls_the_soak_is_twice_as_long() -> None:
    assert follow(Phase.CANARY, Verdict.PASSES, seconds=300.0, alone=True) is Phase.CANARY
    assert follow(Phase.CANARY, Verdict.PASSES, seconds=600.0, alone=True) is Phase.COMPLETE


@given(st.sampled_from(Phase), st.sampled_from(Verdict), st.floats(0, 1e6), st.booleans(), st.booleans())
def test_what_has_ended_stays_and_nothing_passes_on_open_evidence(
    phase: Phase, verdict: Verdict, seconds: float, alone: bool, measured: bool
) -> None:
    soak = Soak(seconds=seconds, wanted_seconds=300.0, alone=alone)
    found = next_phase(phase, soak=soak, verdict=verdict, measured=measured)
    if phase not in GOING_ON:
        assert found is phase
    if found is Phase.COMPLETE and phase is not Phase.COMPLETE:
        assert verdict in (Verdict.PASSES, Verdict.SURELY_PASSES)
        assert seconds >= 300.0 or phase is Phase.INCONCLUSIVE  # which begins after two soaks
    if verdict is Verdict.HARM and phase in TRYING:
        assert found is Phase.ROLLED_BACK


@pytest.mark.parametrize(
    ("probability", "dof", "quantile"),
    [(0.95, 5, 2.015), (0.95, 30, 1.697), (0.985, 10, 2.527), (0.99, 4, 3.747), (0.99, 60, 2.390)],
)
def test_quantiles_of_student_are_those_of_the_tables(probability: float, dof: float, quantile: float) -> None:
    assert student(probability, dof) == pytest.approx(quantile, rel=0.01)
