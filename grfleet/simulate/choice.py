"""Which strategy chooses the splits of a run: that of the manifests, or what `--policy` says instead."""

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contract.agent import Enforcement, Strategy
from crds.hbm_policy import HBMPolicySpec
from grfleet.simulate.errors import BadInput
from grfleet.simulate.wanted import Wanted, hbm_policy_of
from policies.allocation import types as allocation
from policies.allocation.model_file import TrainedModel
from policies.allocation.recovery import Recovery
from policies.allocation.residual import Residual

_STATIC = re.compile(r"static:(\d{1,3})", re.IGNORECASE)
_NAMES = {str(each).lower(): each for each in Strategy}


class NoSuchPolicy(ValueError):
    """A `--policy` that is neither a name nor a file: wrong usage."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The strategy of one run.

    Attributes
    ----------
    spec : HBMPolicySpec
        Guards, and the strategy unless it was replaced.
    strategy : Strategy
    source : str
        Where it comes from, for people.
    first_percent : int
        Split at the start, in points of usable HBM.
    holds : bool
        Nothing moves: a static split, a paused pool, or a policy that only watches.
    model : TrainedModel, optional
        What strategy Learned runs.
    notes : tuple of str
    """

    spec: HBMPolicySpec
    strategy: Strategy
    source: str
    first_percent: int
    holds: bool
    model: TrainedModel | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called beside another one: `static:50`, or the strategy."""
        return f"static:{self.first_percent}" if self.holds else str(self.strategy)

    def intent(self) -> allocation.AllocationIntent:
        """Return the policy as an agent has it, in force."""
        spec = self.spec
        return allocation.AllocationIntent(
            strategy=allocation.Strategy(self.strategy.value),
            bounds=msgspec.convert(spec.bounds.model_dump(), allocation.Bounds),
            step=msgspec.convert(spec.step.model_dump(), allocation.Step),
            learned=allocation.Learned(
                model_sha256=self.model.sha256 if self.model is not None else None,
                clamp_percent=float(spec.learned.clamp_percent),
                residual=msgspec.convert(spec.learned.residual.model_dump(), Residual),
            ),
            recovery=msgspec.convert(spec.recovery.model_dump(), Recovery),
            freeze_on_backlog=False,
        )


def choice_of(wanted: Wanted, policy: str | None, model: TrainedModel | None = None) -> Choice:
    """Return the strategy that chooses.

    Parameters
    ----------
    policy : str, optional
        `static:PERCENT`, the name of a strategy, or a file with an HBMPolicy; the manifests' own when absent.
    model : TrainedModel, optional
        For strategy Learned; others leave it alone.

    Raises
    ------
    BadInput
        When the manifests cannot be followed.
    NoSuchPolicy
        When `policy` is neither a name nor a file.
    """
    if policy is None:
        return _written(wanted, wanted.hbm, wanted.hbm_from, model)
    static = _STATIC.fullmatch(policy)
    if static is not None:
        percent = int(static[1])
        if percent > 100:
            raise NoSuchPolicy(f"static:{percent} is not within 0..100 points of usable HBM")
        return _held(wanted.hbm, f"--policy static:{percent}", percent)
    if policy.lower() in _NAMES:
        strategy = _NAMES[policy.lower()]
        if strategy is Strategy.STATIC:
            return _held(wanted.hbm, "--policy Static", wanted.hbm.bounds.fallback_emb_percent)
        return _moving(wanted.hbm, strategy, f"--policy {strategy}, guards of {wanted.hbm_from}", model)
    if not Path(policy).exists():
        known = ", ".join(("static:PERCENT", *(str(each) for each in _NAMES.values())))
        raise NoSuchPolicy(f"{policy} is neither a file nor one of {known}")
    spec, source = hbm_policy_of(Path(policy), wanted.pool)
    return _written(wanted, spec, source, model)


def fallback_of(choice: Choice) -> Choice:
    """Return the policy that holds the fallback split of another, which is what a fleet has that nobody steers."""
    return _held(choice.spec, "the fallback of the policy", choice.spec.bounds.fallback_emb_percent)


def _held(spec: HBMPolicySpec, source: str, percent: int, notes: tuple[str, ...] = ()) -> Choice:
    return Choice(spec=spec, strategy=Strategy.STATIC, source=source, first_percent=percent, holds=True, notes=notes)


def _moving(spec: HBMPolicySpec, strategy: Strategy, source: str, model: TrainedModel | None) -> Choice:
    """The strategy in force, with its model where it has one."""
    first = spec.bounds.fallback_emb_percent
    if strategy is not Strategy.LEARNED:
        return Choice(spec=spec, strategy=strategy, source=source, first_percent=first, holds=False)
    if model is None:
        raise BadInput(
            source,
            "strategy Learned needs its model, which no manifest holds",
            then="give --model FILE, or --policy MissRatioCurve, which agents without a model follow",
        )
    source = f"{source}, model {model.sha256}"
    return Choice(spec=spec, strategy=strategy, source=source, first_percent=first, holds=False, model=model)


def _written(wanted: Wanted, spec: HBMPolicySpec, source: str, model: TrainedModel | None) -> Choice:
    """The policy as the cluster would follow it."""
    fallback = spec.bounds.fallback_emb_percent
    if wanted.pool.spec.paused:
        return _held(spec, source, fallback, ("spec.paused is true: nothing moves",))
    if spec.strategy is Strategy.STATIC:
        return _held(spec, source, fallback)
    if spec.effective_enforcement() is Enforcement.SHADOW:
        note = f"enforcement Shadow: {spec.strategy} only watches; give --policy {spec.strategy} to see it act"
        return _held(spec, source, fallback, (note,))
    return _moving(spec, spec.strategy, source, model)
