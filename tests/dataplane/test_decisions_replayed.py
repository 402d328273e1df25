"""What an agent recorded decides again to the same, in another process, from the line that `grfleet decisions --json` prints."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dataplane_world import World
from typer.testing import CliRunner

from contract.agent import DecisionRecord
from grfleet.cli import app
from grfleet.replay import decided_again
from policies.allocation.examples import example_model_arrays, example_model_header
from policies.allocation.model_file import digest_of, read_model, write_model

ROOT = Path(__file__).parents[2]
_REPLAY = """
import typer
from grfleet.replay import replay
app = typer.Typer()
app.command("replay")(replay)
app.callback()(lambda: None)
app()
"""
MODEL = write_model(example_model_arrays(seed=7), example_model_header(max_step_percent=4.0))


async def _records(*, strategy: str = "Learned", rounds: int = 70, **spec: Any) -> list[DecisionRecord]:
    """The records of an agent with a load that its estimators trust after a while."""
    world = World()
    model = {"modelRef": {"name": "m", "sha256": digest_of(MODEL)}} if strategy == "Learned" else {}
    world.intend(strategy=strategy, **model, **spec)
    if model:
        world.agent.offer_model(digest_of(MODEL), MODEL)
    for _ in range(rounds):
        world.touch_skewed_users()
        await world.rounds()
    return world.agent.decisions.after(0).decisions


def _written(records: list[DecisionRecord], folder: Path) -> Path:
    path = folder / "records.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return path


def _model_file(folder: Path) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(MODEL)
    return path


def _replay(*arguments: object, stdin: bytes | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", *map(str, arguments)], input=stdin)
    return result.exit_code, result.output


@pytest.mark.parametrize("strategy", ["Static", "HillClimb", "MissRatioCurve", "Learned"])
async def test_every_strategy_replays_to_the_same_from_the_recorded_line(strategy: str, tmp_path: Path) -> None:
    records = await _records(strategy=strategy)
    code, output = _replay(_written(records, tmp_path), "--model", _model_file(tmp_path), "--json")
    outcomes = [json.loads(line)["outcome"] for line in output.splitlines()]
    assert code == 0, output[:2000]
    assert outcomes.count("same") == len(records) == 70


async def test_the_learned_base_really_decided_in_what_was_replayed() -> None:
    layers = [record.layer for record in await _records()]
    assert layers.count("Base") > 5


def _replayed_by(python: str, file: Path, model: Path, **environment: str) -> list[dict[str, Any]]:
    """What another process says of each record."""
    command = [python, "-c", _REPLAY, "replay", str(file), "--model", str(model), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kernel", ["", "numpy"])
async def test_another_process_decides_the_same_whichever_kernel_evaluates(kernel: str, tmp_path: Path) -> None:
    file = _written(await _records(), tmp_path)
    results = await asyncio.to_thread(_replayed_by, sys.executable, file, _model_file(tmp_path), GRFLEET_KERNEL=kernel)
    assert len(results) == 70
    for result in results:
        for name, was in result["was"].items():
            # Another kernel may round the last digits differently, but never chooses another split.
            assert name in ("predictedP99Ms", "goalP99Ms", "guest"), (name, was, result["now"][name])
            numbers = (was, result["now"][name]) if name != "guest" else (was["embBytes"], result["now"][name]["embBytes"])
            assert numbers[0] == pytest.approx(numbers[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.12", "3.13"])
async def test_another_version_of_python_decides_the_same(version: str, tmp_path: Path) -> None:
    python = shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"no python{version} on this machine")
    made = subprocess.run
    if made([python, "-c", "import venv, sys; assert sys.version_info"], capture_output=True, check=False).returncode:
        pytest.skip(f"python{version} on this machine does not start")
    made([python, "-m", "venv", str(tmp_path / "venv")], check=True, capture_output=True)
    other = str(tmp_path / "venv" / "bin" / "python")
    packages = [f"{name}=={metadata.version(name)}" for name in ("numpy", "msgspec", "safetensors", "typer", "rich")]
    made([other, "-m", "pip", "install", "--quiet", *packages], check=True, capture_output=True)
    file = _written(await _records(), tmp_path)
    here = await asyncio.to_thread(_replayed_by, sys.executable, file, _model_file(tmp_path), GRFLEET_KERNEL="numpy")
    there = await asyncio.to_thread(_replayed_by, other, file, _model_file(tmp_path), GRFLEET_KERNEL="numpy")
    assert [result["outcome"] for result in there] == [result["outcome"] for result in here]
    assert [result["now"] for result in there] == [result["now"] for result in here]


async def test_a_change_of_what_a_decision_saw_shows_as_a_difference(tmp_path: Path) -> None:
    records = await _records(strategy="MissRatioCurve")
    bent = records[-1]
    bent = msgspec.structs.replace(bent, target_emb_bytes=bent.target_emb_bytes + 4096)
    code, output = _replay(_written([*records[:-1], bent], tmp_path))
    assert code == 1
    assert "69 same, 1 differs" in output
    assert "targetEmbBytes" in output


@pytest.mark.parametrize(("name", "other"), [("phase", "Burst"), ("refillLinkPercent", 5.0)])
async def test_what_a_round_let_its_refill_take_is_compared_too(name: str, other: object, tmp_path: Path) -> None:
    (record,) = (await _records(strategy="MissRatioCurve", rounds=1))[:1]
    inputs = {**record.inputs, "round": {**record.inputs["round"], name: other}}
    code, output = _replay(_written([msgspec.structs.replace(record, inputs=inputs)], tmp_path), "--json")
    assert code == 1
    assert json.loads(output)["was"] == {name: other}


async def test_rounds_before_the_bytes_of_the_model_came_replay_without_it(tmp_path: Path) -> None:
    world = World()
    world.intend(strategy="Learned", modelRef={"name": "m", "sha256": digest_of(MODEL)})
    for number in range(50):
        if number == 40:
            world.agent.offer_model(digest_of(MODEL), MODEL)
        world.touch_skewed_users()
        await world.rounds()
    records = world.agent.decisions.after(0).decisions
    assert {"ModelMissing", "LearnedTarget"} <= {record.reason for record in records}
    code, output = _replay(_written(records, tmp_path), "--model", _model_file(tmp_path))
    assert (code, output.strip()) == (0, "50 same")


async def test_without_the_model_of_a_record_it_is_asked_for_by_its_digest(tmp_path: Path) -> None:
    code, output = _replay(_written(await _records(), tmp_path))
    assert code == 1
    assert digest_of(MODEL) in output
    assert "--model FILE" in output


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "line 1: no record"),
        (b"\xff\xfe", "line 1: no record"),
        (b'{"sequence": 1}', "line 1: no record"),
        (b"[" * 5000, "line 1: no record"),
        (b"x" * (1 << 21), "line 1: longer than"),
    ],
    ids=["cut", "not text", "fields lacking", "deep", "long"],
)
def test_a_line_that_is_no_record_is_named(line: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(line + b"\n")
    code, output = _replay(path)
    assert code == 2
    assert says in output


async def test_inputs_of_another_release_are_refused_by_line_and_field(tmp_path: Path) -> None:
    (record,) = (await _records(rounds=1))[:1]
    inputs = dict(record.inputs)
    del inputs["view"]
    code, output = _replay(_written([msgspec.structs.replace(record, inputs=inputs)], tmp_path))
    assert (code, "line 1" in output, "lacks view" in output) == (2, True, True)
    inputs = dict(record.inputs) | {"nowMs": "noon", "now_ms": "noon"}
    code, output = _replay(_written([msgspec.structs.replace(record, inputs=inputs)], tmp_path))
    assert (code, "now_ms" in output) == (2, True)


def test_records_without_inputs_and_files_without_records_are_told_apart(tmp_path: Path) -> None:
    bare = DecisionRecord(
        sequence=1, clock_ms=0.0, strategy="Static", layer="Hold", reason="NoIntent", clips=[], from_emb_bytes=0,
        target_emb_bytes=0, applied=False, inputs={},
    )  # fmt: skip
    code, output = _replay(_written([bare], tmp_path))
    assert (code, output.strip()) == (0, "1 no inputs")
    code, output = _replay(_written([], tmp_path))
    assert (code, output.strip()) == (1, "no records")


def test_a_file_that_is_not_there_or_a_model_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    code, output = _replay(tmp_path / "none.jsonl")
    assert code == 2
    assert "none.jsonl" in output
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"PK")
    code, output = _replay(_written([], tmp_path), "--model", bad)
    assert code == 2
    assert "NotAModel" in output


async def test_records_come_from_standard_input_too(tmp_path: Path) -> None:
    data = _written(await _records(strategy="Static", rounds=3), tmp_path).read_bytes()
    code, output = _replay("-", stdin=data)
    assert (code, output.strip()) == (0, "3 same")


@pytest.mark.parametrize(
    ("where", "value", "code"),
    [
        (("round",), [], None),
        (("round",), "all", None),
        (("intent", "bounds", "max_emb_percent"), 1e300, 2),
        (("intent", "bounds", "min_emb_percent"), 96.0, 2),
        (("state", "burst"), {"quick": 1.0, "usual": 1.0, "variance": -1.0}, 2),
    ],
)
async def test_a_record_that_no_agent_wrote_is_compared_or_refused_by_its_line(
    where: tuple[str, ...], value: object, code: int | None, tmp_path: Path
) -> None:
    record = (await _records(strategy="MissRatioCurve"))[-1]
    inputs = json.loads(msgspec.json.encode(record.inputs))
    place = inputs
    for name in where[:-1]:
        place = place[name]
    place[where[-1]] = value
    exit_code, output = _replay(_written([msgspec.structs.replace(record, inputs=inputs)], tmp_path))
    if code is None:  # what it says of its round has nothing to be compared with
        assert (exit_code, "1 differs" in output) == (1, True), output
    else:
        assert (exit_code, "line 1: decision" in output) == (code, True), output


async def test_what_is_not_a_number_in_a_record_is_not_a_number_again(tmp_path: Path) -> None:
    record = (await _records())[-1]
    inputs = json.loads(msgspec.json.encode(record.inputs))
    inputs["view"]["costs"]["emb_rows_per_request"] = -1e300
    models = {digest_of(MODEL): read_model(MODEL)}
    decision, _ = decided_again(msgspec.structs.replace(record, inputs=inputs), models)
    assert decision.guest is not None
    assert math.isnan(decision.guest.action)
    inputs["round"] |= {
        "guest": msgspec.to_builtins(decision.guest),
        "policyReason": decision.reason.value,
        "goalEmbBytes": decision.goal_emb_bytes,
        "predictedP99Ms": decision.predicted_p99_ms,
        "goalP99Ms": decision.goal_p99_ms,
    }
    clips = [clip.value for clip in decision.clips]
    written = msgspec.structs.replace(record, inputs=inputs, clips=clips, target_emb_bytes=decision.target_emb_bytes)
    code, output = _replay(_written([written], tmp_path), "--model", _model_file(tmp_path))
    assert (code, output.strip()) == (0, "1 same")


@pytest.mark.parametrize("shown", [(), ("--json",)])
@pytest.mark.parametrize(
    "bent",
    [
        {"inputs": {"round": {"guest": {"\x1b[2J": "\x9b2J"}, "kernel": "\x1b]0;owned\x07", "policyReason": "\x1b[2J"}}},
        {"inputs": {"intent": {"strategy": "\x1b]0;owned\x07"}}},
        {"inputs": {"intent": {"learned": {"model_sha256": "\x1b[2J"}, "strategy": "Learned"}, "round": {"guest": "\x1b[2J"}}},
        {"reason": "\x1b[2J", "clips": ["\x1b[2J"]},
    ],
)
async def test_what_a_record_says_steers_no_terminal(bent: dict[str, Any], shown: tuple[str, ...], tmp_path: Path) -> None:
    record = json.loads(msgspec.json.encode((await _records(rounds=30))[-1]))
    inputs = record["inputs"]
    for name, value in bent.get("inputs", {}).items():
        inputs[name] = inputs[name] | value
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(record | bent | {"inputs": inputs}) + "\n")
    code, output = _replay(path, *shown)
    assert code in (1, 2)
    assert not {"\x1b", "\x07"} & set(output)


def test_a_record_that_is_nested_without_end_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(
        '{"sequence":1,"clockMs":0,"strategy":"S","layer":"H","reason":"R","clips":[],"fromEmbBytes":0,"targetEmbBytes":0,'
        '"applied":false,"inputs":{"round":' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}}\n"
    )
    code, output = _replay(path)
    assert (code, "line 1: no record" in output) == (2, True)
