"""Small logs and manifests for tests of `grfleet simulate` and `grfleet oracle`, and a way to run the two."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from typer.testing import CliRunner, Result

from grfleet.cli import app
from simulator.request_log import RequestLog, RowLaw
from simulator.traces import save_request_log

Visit = tuple[float, str, int, int]
USER = "ann.{}@example.com"


def pool(**changes: Any) -> dict[str, Any]:
    """A pool of two instances; a change replaces a group of its spec."""
    spec: dict[str, Any] = {
        "model": {"name": "ranker", "version": "7", "kvBytesPerToken": 16384, "embRowBytes": 512, "maxHistoryTokens": 4096},
        "instances": {
            "external": [
                {"name": name, "serviceURL": f"http://{name}.example:9000", "agentURL": f"http://{name}.example:9001"}
                for name in ("a", "b")
            ]
        },
        "memory": {"hbmBytes": "4Gi", "hbmReservedBytes": "2Gi"},
        "slo": {"p99Ms": 50, "goodPercent": "99.6"},
    }
    return _object("GRServingPool", "feed", spec | changes)


def hbm_policy(name: str = "default", **spec: Any) -> dict[str, Any]:
    return _object("HBMPolicy", name, spec)


def pre_inference(**spec: Any) -> dict[str, Any]:
    return _object("PreInferencePolicy", "default", spec)


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "grfleet.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def manifest(path: Path, *documents: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump_all(documents))
    return path


def strangers(count: int, *, every_ms: float = 20.0, history: int = 1024, candidates: int = 100) -> list[Visit]:
    """Requests far apart, each of somebody who never comes again."""
    return [(place * every_ms, USER.format(place), history, candidates) for place in range(count)]


def regulars(count: int, *, users: int, every_ms: float = 20.0, history: int = 1024, candidates: int = 100) -> list[Visit]:
    """Requests far apart of some users who come in turn."""
    return [(place * every_ms, USER.format(place % users), history, candidates) for place in range(count)]


def event_csv(path: Path, visits: list[Visit]) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time_ms", "user", "history_tokens", "candidates"])
        rows.writerows(visits)
    return path


def event_jsonl_gz(path: Path, visits: list[Visit]) -> Path:
    with gzip.open(path, "wt") as file:
        for time_ms, user, history, candidates in visits:
            event = {"time_ms": time_ms, "user": user, "history_tokens": history, "candidates": candidates}
            file.write(json.dumps(event) + "\n")
    return path


def requests_file(
    path: Path,
    *,
    seed: int = 5,
    count: int = 2600,
    seconds: float = 90.0,
    begins_ms: float = 0.0,
    lead_ms: float = 0.0,
    law: RowLaw | None = None,
) -> Path:
    """A converted log of users who return by chance, some more often than others."""
    rng = np.random.default_rng(seed)
    users = 400
    user = (rng.pareto(1.2, count) * 12).astype(np.int64) % users
    log = RequestLog(
        arrival_ms=begins_ms + np.sort(rng.uniform(0.0, seconds * 1e3, count)),
        user=user.astype(np.uint32),
        history_tokens=(512 + 4 * user).astype(np.int32),
        candidates=rng.integers(100, 300, count).astype(np.int32),
        signal_lead_ms=np.full(count, lead_ms, dtype=np.float32),
        law=np.zeros(count, dtype=np.uint8),
        user_slots=rng.integers(0, 4096, users).astype(np.uint16),
        laws=(law or RowLaw(exponent=0.9, catalog_rows=4_000_000),),
        rows_per_token=8,
    )
    save_request_log(path, log, {"regime": "test"})
    return path


@dataclass(frozen=True)
class Ran:
    """One run of a command, and what it left."""

    outcome: Result
    out: Path

    @property
    def code(self) -> int:
        return self.outcome.exit_code

    @property
    def said(self) -> str:
        return self.outcome.output

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "result.json").read_text())
        return found


def run(command: str, out: Path, *arguments: object) -> Ran:
    typed = [command, "--out", str(out), *(str(each) for each in arguments)]
    return Ran(CliRunner().invoke(app, typed, catch_exceptions=False), out)
