"""`grfleet replay FILE`: decides recorded decisions again and compares. Exit codes: 0 all the same, 1 some differ, 2 wrong usage.

A record holds everything that its decision saw, and names the model by digest and the kernel that evaluated the path. The same
code, model and kernel give the same decision to the bit, on any machine; what differs is a change of code, and this shows what
it changes.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from contract.agent import DecisionRecord
from grfleet.access import Failed
from grfleet.inert import inert
from grfleet.model.file import read_file
from policies.allocation.model_file import TrainedModel
from policies.allocation.path import kernel
from policies.allocation.recovery import Phase
from policies.allocation.strategy import decide
from policies.allocation.types import Decision, DecisionInputs, Reason

MAX_LINE_BYTES = 1 << 20
_INPUTS = frozenset(DecisionInputs.__struct_fields__)


class Outcome(StrEnum):
    """What became of one record."""

    SAME = "same"
    DIFFERS = "differs"
    MODEL_LACKING = "model lacking"
    NO_INPUTS = "no inputs"


class Replayed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One record decided again: `was` and `now` hold what differs, by name."""

    line: int
    sequence: int
    outcome: Outcome
    kernel: str
    was: dict[str, Any] = {}
    now: dict[str, Any] = {}


class UnusableFile(ValueError):
    """A file that cannot be replayed; the text names it, the line, and what to do."""


def replay(
    file: Annotated[
        Path,
        typer.Argument(
            help="Records as `grfleet decisions INSTANCE --json` prints them; - reads standard input.", metavar="FILE"
        ),
    ],
    model: Annotated[
        list[Path] | None,
        typer.Option(help="File of an allocator model that the records name; may be given again.", metavar="FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a record instead of text.")] = False,
) -> None:
    """Decide recorded decisions again from what they saw, and say whether the same comes out.

    Use it before an upgrade: `same` for all means that the new version would have decided as the old one did.
    """
    try:
        models = _models(model or [])
        results = [_again(line, record, models) for line, record in _records(file)]
    except (UnusableFile, OSError) as error:
        typer.echo(f"replay: {inert(str(error)).plain}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        for result in results:
            typer.echo(msgspec.json.encode(result).decode())
    else:
        _print(results)
    if not results or any(result.outcome is not Outcome.SAME for result in results if result.outcome is not Outcome.NO_INPUTS):
        raise typer.Exit(1)


def decided_again(record: DecisionRecord, models: Mapping[str, TrainedModel]) -> tuple[Decision, str | None]:
    """Decide again from the inputs of a record.

    Returns
    -------
    (Decision, str or None)
        The decision, and the digest of the model that was not at hand (the anchor decided in its place), None otherwise.

    Raises
    ------
    UnusableFile
        If the record holds no inputs, or not those of a decision of this release.
    """
    given = {name: value for name, value in record.inputs.items() if name in _INPUTS}
    if set(given) != _INPUTS:
        raise UnusableFile(f"decision {record.sequence} lacks {', '.join(sorted(_INPUTS - set(given)))}")
    try:
        i = msgspec.convert(given, DecisionInputs)
    except msgspec.ValidationError as error:
        raise UnusableFile(f"decision {record.sequence} is not of this release: {error}") from error
    wanted = i.intent.learned.model_sha256 if i.intent is not None else None
    had = _policy_reason(record) != Reason.MODEL_MISSING  # else its bytes had not arrived yet, whatever is at hand today
    model = models.get(wanted) if wanted is not None and had else None
    try:
        decision, _ = decide(i.observation, i.view, i.intent, i.state, i.now_ms, model)
    except (ValueError, ArithmeticError) as error:
        raise UnusableFile(f"decision {record.sequence} has inputs that no agent decides from: {error}") from error
    ran = _facts(record).get("guest") is not None
    return decision, wanted if ran and model is None else None


def _facts(record: DecisionRecord) -> Mapping[str, Any]:
    """What the record tells of its round; nothing where it tells nothing, or not in this form."""
    facts = record.inputs.get("round")
    return facts if isinstance(facts, dict) else {}


def _policy_reason(record: DecisionRecord) -> object:
    """Why the policy decided so; the agent may hold the split for a reason of its own, which its policy was not asked about."""
    return _facts(record).get("policyReason", record.reason)


def _again(line: int, record: DecisionRecord, models: Mapping[str, TrainedModel]) -> Replayed:
    made_by = str(_facts(record).get("kernel", ""))
    result = Replayed(line=line, sequence=record.sequence, outcome=Outcome.SAME, kernel=made_by)
    if not _INPUTS & set(record.inputs):
        return msgspec.structs.replace(result, outcome=Outcome.NO_INPUTS)
    try:
        decision, lacking = decided_again(record, models)
    except UnusableFile as error:
        raise UnusableFile(f"line {line}: {error}") from error
    if lacking is not None:
        return msgspec.structs.replace(result, outcome=Outcome.MODEL_LACKING, was={"model": lacking})
    was, now = _said(record), _says(decision, record)
    differing = [name for name in was if was[name] != now[name]]
    if not differing:
        return result
    return msgspec.structs.replace(
        result,
        outcome=Outcome.DIFFERS,
        was={name: was[name] for name in differing},
        now={name: now[name] for name in differing},
    )


def _said(record: DecisionRecord) -> dict[str, Any]:
    """What the record says that the policy decided."""
    facts = _facts(record)
    return {
        "targetEmbBytes": record.target_emb_bytes,
        "clips": list(record.clips),
        "goalEmbBytes": facts.get("goalEmbBytes"),
        "predictedP99Ms": facts.get("predictedP99Ms"),
        "goalP99Ms": facts.get("goalP99Ms"),
        "guest": facts.get("guest"),
        "phase": facts.get("phase"),
        "refillLinkPercent": facts.get("refillLinkPercent"),
        "reason": _policy_reason(record),
    }


def _says(decision: Decision, record: DecisionRecord) -> dict[str, Any]:
    """What the policy says now, in the words of a record."""
    target = decision.target_emb_bytes
    says = {
        "targetEmbBytes": record.from_emb_bytes if target is None else target,
        "clips": [clip.value for clip in decision.clips],
        "goalEmbBytes": decision.goal_emb_bytes,
        "predictedP99Ms": decision.predicted_p99_ms,
        "goalP99Ms": decision.goal_p99_ms,
        "guest": msgspec.to_builtins(decision.guest) if decision.guest is not None else None,
        "phase": decision.phase.value if decision.phase is not Phase.CALM else None,
        "refillLinkPercent": decision.refill_link_percent,
        "reason": decision.reason.value,
    }
    said: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(says))  # a record has null for what is not a number
    return said


def _records(file: Path) -> Iterator[tuple[int, DecisionRecord]]:
    lines = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    with lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                raise UnusableFile(f"{file}: line {number}: longer than {MAX_LINE_BYTES} bytes, so it is no record of a decision")
            if line.strip():
                try:
                    yield number, msgspec.json.decode(line, type=DecisionRecord)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise UnusableFile(f"{file}: line {number}: no record of `grfleet decisions --json`: {error}") from error


def _models(files: list[Path]) -> dict[str, TrainedModel]:
    try:
        models = [read_file(file)[1] for file in files]
    except Failed as error:
        raise UnusableFile(f"--model {error}") from error
    return {model.sha256: model for model in models}


def _print(results: list[Replayed]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    counts = Counter(result.outcome for result in results)
    if not results:
        console.print("no records")
        return
    console.print(", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome]))
    differing = [result for result in results if result.outcome is Outcome.DIFFERS]
    if differing:
        table = Table("line", "#", "what", "was", "now", box=None, pad_edge=False)
        for result in differing[:50]:
            for name, was in result.was.items():
                table.add_row(str(result.line), str(result.sequence), name, inert(str(was)), inert(str(result.now[name])))
        console.print(table)
        others = {result.kernel for result in differing} - {kernel(), ""}
        if others:
            console.print(
                f"Made by kernel {inert(', '.join(sorted(others)))}, decided again by {kernel()}; GRFLEET_KERNEL=numpy chooses."
            )
    for digest in sorted({result.was["model"] for result in results if result.outcome is Outcome.MODEL_LACKING}):
        console.print(f"Give the model {inert(digest)} with --model FILE.")
