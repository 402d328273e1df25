"""An option that would do nothing is refused: a typing error, or a wrong idea of what the log is, would go unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulate_inputs import event_csv, manifest, pool, regulars, requests_file, run

OF_EVENT_LOGS = [("--skip-bad",), ("--candidates", "3"), ("--user-key-file", "pool.key")]
OF_REGIMES = [("--duration", "5m"), ("--rate", "80"), ("--traces", "folder")]


@pytest.mark.parametrize("command", ["simulate", "oracle"])
@pytest.mark.parametrize(
    ("trace", "option"),
    [
        *(("requests", option) for option in OF_EVENT_LOGS + OF_REGIMES),
        *(("events", option) for option in OF_REGIMES),
        *(("steady", option) for option in OF_EVENT_LOGS),
    ],
)
def test_an_option_that_the_kind_of_trace_has_no_use_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, trace: str, option: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool.key").write_bytes(bytes(range(32)))
    manifests = manifest(tmp_path / "pool.yaml", pool())
    named: str | Path = trace
    if trace == "requests":
        named = requests_file(tmp_path / "day.grlog")
    elif trace == "events":
        named = event_csv(tmp_path / "log.csv", regulars(20, users=2))

    ran = run(command, tmp_path / "out", "--trace", named, "--pool", manifests, *option)

    assert ran.code == 2
    assert option[0] in ran.outcome.stderr
    assert "does nothing" in ran.outcome.stderr
    assert not (tmp_path / "out").exists()


def test_a_refusal_names_its_place_once(tmp_path: Path) -> None:
    manifests = manifest(tmp_path / "pool.yaml", pool(instances={"adopted": {"matchLabels": {"app": "gr"}}}))

    ran = run(
        "simulate", tmp_path / "out", "--trace", event_csv(tmp_path / "log.csv", regulars(20, users=2)), "--pool", manifests
    )

    assert ran.outcome.stderr.count("field ") == ran.outcome.stderr.count(str(manifests)) == 1
