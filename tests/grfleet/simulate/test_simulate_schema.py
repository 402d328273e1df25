"""`result.json` has the fields that docs/simulator.md lists, of the types that the schema says, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from documented import read
from simulate_inputs import event_csv, manifest, pool, regulars, requests_file, run

from crds.types import camel
from grfleet.simulate import schema

PAGE = "docs/simulator.md"


def fields_of(struct: type[msgspec.Struct], path: str = "") -> Iterator[str]:
    """Paths of all fields; `[]` marks a list."""
    for name, hint in get_type_hints(struct).items():
        wire = path + camel(name)
        yield wire
        inner = next(
            (each for each in get_args(hint) or (hint,) if isinstance(each, type) and issubclass(each, msgspec.Struct)), None
        )
        if inner is not None:
            yield from fields_of(inner, f"{wire}{'[]' if get_origin(hint) is list else ''}.")


def documented_fields(title: str) -> set[str]:
    """The first cells of a table; `run`, `baseline` in one cell share what follows, and a nested field continues its parent."""
    section = read(PAGE).split(f"### {title}\n", 1)[1].split("\n##", 1)[0]
    return {name for row in section.splitlines() if row.startswith("| `") for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def expanded(names: set[str], **groups: str) -> set[str]:
    return names | {f"{path}.{name}" for title, path in groups.items() for name in documented_fields(title)}


@pytest.mark.parametrize(
    ("struct", "titles"),
    [
        (schema.Simulated, {"Both results": "", "`grfleet simulate`": ""}),
        (schema.OracleFound, {"Both results": "", "`grfleet oracle`": ""}),
        (schema.Figures, {"Figures": ""}),
    ],
    ids=["simulate", "oracle", "figures"],
)
def test_the_tables_of_the_page_list_exactly_the_fields(struct: type[msgspec.Struct], titles: dict[str, str]) -> None:
    listed = set().union(*(documented_fields(title) for title in titles))

    known = {each for each in fields_of(struct) if not re.match(r"(run|baseline|baselinePolicy)\.", each)}

    assert listed - known == set()
    assert known - listed == set()


def same_shape(stored: Any, made: Any) -> bool:
    """Whether JSON and what was decoded of it have the same keys everywhere: decoding ignores what it does not know."""
    if isinstance(stored, dict) and isinstance(made, dict):
        return set(stored) == set(made) and all(same_shape(stored[key], made[key]) for key in stored)
    if isinstance(stored, list) and isinstance(made, list):
        return len(stored) == len(made) and all(map(same_shape, stored, made))
    return bool(stored == made)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(("command", "struct"), [("simulate", schema.Simulated), ("oracle", schema.OracleFound)])
def test_a_result_is_of_the_schema_also_where_it_is_not_to_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, struct: type[Any], trusted: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    manifests = manifest(tmp_path / "pool.yaml", pool())
    log = requests_file(tmp_path / "day.grlog") if trusted else event_csv(tmp_path / "log.csv", regulars(3, users=2))

    ran = run(
        command, tmp_path / "out", "--trace", log, "--pool", manifests, *(("--workers", "1") if command == "oracle" else ())
    )
    made = msgspec.json.decode((ran.out / "result.json").read_bytes(), type=struct)

    assert ran.code == (0 if trusted else 3), ran.said
    assert made.trusted is trusted
    assert made.schema_version == schema.SCHEMA_VERSION
    assert same_shape(ran.result, msgspec.to_builtins(made))
