"""Who decides in an evaluation: the anchor, its smoothed course, fixed splits, the truth, a trained model, free or guarded."""

from collections.abc import Callable

import numpy as np

from policies.allocation.base import act, clamp_points, out_of_distribution
from policies.allocation.features import Situation, features
from policies.allocation.model_file import Origin, TrainedModel
from policies.allocation.types import Learned
from training.curves import Floats
from training.dynamics import HIGHEST, LOWEST, Instances, Outcome

Controller = Callable[[Instances, Situation], Outcome]
CLAMP_PERCENT = Learned().clamp_percent
"""Points of usable to either side of the anchor, of a policy that says nothing else."""


def anchor(instances: Instances, s: Situation) -> Outcome:
    """Go to the split with the least predicted P99 of this moment."""
    return instances.step_towards(s.anchor_share)


def smoothed_anchor(instances: Instances, s: Situation) -> Outcome:
    """Go to the smoothed anchor, as the strategy MissRatioCurve does."""
    return instances.step_towards(s.smoothed_anchor_share)


def truth(instances: Instances, s: Situation) -> Outcome:
    """Go to the split that is best in the long run under the laws of the moment, which no agent knows."""
    return instances.step_towards(instances.best_share())


def fixed(share: float | Floats) -> Controller:
    """Stay at a split."""
    return lambda instances, s: instances.step_towards(np.broadcast_to(np.asarray(share, dtype=np.float64), len(instances)))


def free(model: TrainedModel) -> Controller:
    """Do what the model says, unguarded."""

    def decide(instances: Instances, s: Situation) -> Outcome:
        action = act(model, features(s))
        return instances.step_wanting(_asked(model, s, action), action)

    return decide


def guarded(model: TrainedModel, *, clamp_percent: float = CLAMP_PERCENT) -> Controller:
    """Do what the model says inside the clamp around the smoothed anchor, and what the anchor says outside what training saw."""

    def decide(instances: Instances, s: Situation) -> Outcome:
        x = features(s)
        action = act(model, x)
        wanted = np.clip(_asked(model, s, action), LOWEST, HIGHEST)
        volatility = np.maximum(s.emb_volatility, s.kv_volatility)
        width = clamp_points(np.full(len(action), clamp_percent), volatility) / 100.0
        wanted = np.clip(wanted, s.smoothed_anchor_share - width, s.smoothed_anchor_share + width)
        wanted = np.where(out_of_distribution(model, x) >= 0, s.smoothed_anchor_share, wanted)
        return instances.step_wanting(wanted, action)

    return decide


def _asked(model: TrainedModel, s: Situation, action: Floats) -> Floats:
    """The split that the model asks for, as a share."""
    origin = s.emb_share if model.header.origin is Origin.SPLIT else s.smoothed_anchor_share
    return np.asarray(origin + action * model.max_step_percent / 100.0)
