"""The model card: what a trained allocator is, how it was made, what it reached and what it was never shown, in Markdown."""

import textwrap

import numpy as np

from policies.allocation.features import FEATURE_SPEC, FEATURES
from policies.allocation.model_file import TrainedModel
from training.export import RANGE_MARGIN
from training.report import HELD_OUT_SEED, Report, Table

_LIMITS = (
    "Simulated throughout: no accelerator has been seen.",
    "LRU caches; users return by renewal, rows are drawn independently; one server per instance, no batching, no lower tiers.",
    "Decisions once a second under a deadband of 0 to 2 points and a slew of 0.5 to 4 points a second. Other paces: not seen.",
    "Queues do not carry over from one second to the next: overload is a line, as in the anchor's formula.",
    "Errors of the estimate are log-normal and wander for 1 to 30 s; other kinds of error were not trained.",
    "Unguarded it may fail outside the ranges below: run it inside the guards.",
)


def card(
    model: TrainedModel,
    *,
    name: str,
    size_bytes: int,
    report: Report,
    requests: Table | None,
    asked_requests: bool,
    validation: tuple[int, int],
) -> str:
    """Return the model card.

    Parameters
    ----------
    name, size_bytes
        Of the model file.
    requests, asked_requests
        Table of the request level; None where the recordings are missing, or where nobody asked.
    validation
        Number of worlds that seeds were chosen by, and their seed.
    """
    history = model.header.training
    plan = history["plan"]
    versions = ", ".join(f"{package} {version}" for package, version in sorted(history["versions"].items()))
    parts = [
        f"# {name}: a trained allocator of the split",
        _text(
            f"Written by `{history['command']}`; do not edit. The file is `{name}.safetensors`, {size_bytes} bytes, sha256 "
            f"`{model.sha256}`."
        ),
        _text(
            f"Features `{FEATURE_SPEC}` ({len(FEATURES)}), two layers of 64 tanh, one answer in -1..1; 1 asks for "
            f"{model.max_step_percent:g} points more EMB than the smoothed anchor. It is meant to run inside the guards "
            "of strategy `Learned`: a clamp around the smoothed anchor that widens with the volatility of the curves, and the "
            "anchor where a feature lies outside the ranges below."
        ),
        "## How it was made",
        _text(
            f"PPO (stable-baselines3), {_begun(plan['warm_start_rounds'])}, over {plan['instances']} instances at once at "
            f"the simulator's reduced level; {history['steps']} steps up to the network that "
            f"validated best, of at most {plan['steps']} a seed. Reward: minus the logarithm of P99 over the best that any "
            "split could reach under the laws of the moment (compressed beyond small values), minus the way moved. Only a "
            "simulation knows it; the network does not see it."
        ),
        f"Seeds and their mean validation reward a second ({validation[0]} worlds, seed {validation[1]}):",
        "\n".join(f"- seed {seed}: {reward:.5f}" for seed, reward in history["validation"].items()),
        _text(
            f"Chosen: seed {history['seed']}. Same command, seed, machine type and versions give the same digest: "
            f"{history['machine']}, {versions}, one torch thread."
        ),
        _text(
            "**Data.** Generated worlds only, drawn over wide ranges (docs/training.md); no recording was used, so no user of "
            "one is in the model. The validation part of the recordings serves the last evaluation below; their test part was "
            "not touched."
        ),
        "## Held-out evaluation, reduced level",
        _text(
            f"Worlds of seed {HELD_OUT_SEED}, drawn for this only. Truth and anchor share one formula of P99 here, which favours "
            "the anchor: with good estimates there is little left to gain."
        ),
        verdict(report),
        *(table.markdown().rstrip() for table in report.tables),
        "## Request level",
    ]
    if requests is not None:
        parts.append(requests.markdown().split("\n", 2)[2].rstrip())
    else:
        parts.append("Not measured: the recordings were not there." if asked_requests else "Not measured in this run.")
    parts += ["## Limits", "\n".join(f"- {limit}" for limit in _LIMITS), "## Ranges", _ranges(model)]
    return "\n\n".join(parts) + "\n"


def verdict(report: Report) -> str:
    """Say where the guarded model stands to the smoothed anchor, a line a case."""
    values = {score.name: score.value for score in report.scores}
    lines = []
    for case in dict.fromkeys(name.split(",")[0] for name in values):
        sides = []
        for regime in ("Steady", "Trend", "Burst"):
            gap = values[f"{case}, {regime}, model, guarded"] - values[f"{case}, {regime}, anchor, smoothed"]
            word = "level" if abs(gap) < 0.05 else f"{'better' if gap < 0 else 'worse'} by {abs(gap):.2f} points"
            sides.append(f"{regime} {word}")
        lines.append(f"- {case}: {', '.join(sides)}")
    return "Guarded model against smoothed anchor (median regret in P99):\n\n" + "\n".join(lines)


def _begun(rounds: int) -> str:
    return f"after {rounds} rounds of imitating the way to the best split" if rounds else "from the smoothed anchor on"


def _ranges(model: TrainedModel) -> str:
    note = f"What training saw, {100 * RANGE_MARGIN:g} % wider; outside, the anchor decides."
    rows = [
        f"| {name} | {float(low):.4g} | {float(high):.4g} |"
        for name, low, high in zip(FEATURES, np.asarray(model.low), np.asarray(model.high), strict=True)
    ]
    return "\n".join([note, "", "| feature | low | high |", "|---|---|---|", *rows])


def _text(paragraph: str) -> str:
    return textwrap.fill(paragraph, 130, break_long_words=False, break_on_hyphens=False)
