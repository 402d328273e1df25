"""What a verified model file says of itself, as facts for programs and as lines for people."""

from typing import Any

from policies.allocation.model_file import read_model


def described(data: bytes) -> dict[str, Any]:
    """The facts of a model file that has been verified: digest, layout, step, what made it, its scores."""
    model = read_model(data)
    header = model.header
    return {
        "sha256": model.sha256,
        "bytes": len(data),
        "format": header.format,
        "featureSpec": header.feature_spec,
        "maxStepPercent": header.max_step_percent,
        "refillModes": list(header.refill_modes),
        "training": header.training,
        "scores": [{"name": score.name, "value": score.value, "unit": score.unit} for score in model.scores],
    }


def as_lines(facts: dict[str, Any]) -> list[str]:
    """The facts for people, one a line."""
    lines = [
        f"sha256       {facts['sha256']}",
        f"bytes        {facts['bytes']}",
        f"features     {facts['featureSpec']} (format {facts['format']})",
        f"largest step {facts['maxStepPercent']:g} points of usable HBM",
    ]
    if facts["refillModes"]:
        lines.append(f"trained for  refill {', '.join(str(mode) for mode in facts['refillModes'])}")
    lines += [f"training     {name} {_inline(value)}" for name, value in facts["training"].items()]
    width = max((len(score["name"]) for score in facts["scores"]), default=0)
    lines += [f"score        {score['name']:{width}} {score['value']:8g} {score['unit']}".rstrip() for score in facts["scores"]]
    return [_plain(line) for line in lines]


def _inline(value: object) -> str:
    """A value of the header as words: `seed 1, steps 2` for an object, `1, 2` for a list."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_inline(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_inline, value))
    return str(value)


def _plain(line: str) -> str:
    """A file may come from anywhere: nothing in it may steer a terminal."""
    return "".join(each if each.isprintable() else " " for each in line)
