"""Whatever a file holds, it becomes a fleet or is refused in words; no other error comes out."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulate_inputs import hbm_policy, manifest, pool, pre_inference

from grfleet.simulate.choice import choice_of
from grfleet.simulate.errors import BadInput
from grfleet.simulate.manifests import read_manifests
from grfleet.simulate.translate import accelerator_of, fleet_of
from grfleet.simulate.wanted import wanted

A100 = accelerator_of("a100")
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["1Gi", "0", "-1Gi", "1e3", "999999Ti", "Static", "Learned", "default", "2026-01-31", "0.5"]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything in a document."""
    found = [path] if path else []
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found += places(value[key], (*path, key))
    return found


def put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


def judged(path: Path) -> None:
    """Go the way of the command, up to the simulation."""
    try:
        found = wanted(path)
        fleet = fleet_of(found, accelerator=A100, layers=None, width=None, instances=None)
        choice = choice_of(found, None)
    except BadInput:
        return
    assert fleet.config.instances == len(fleet.names) == len(set(fleet.names))
    assert set(fleet.owners) <= set(range(fleet.config.instances))
    assert 0 <= choice.first_percent <= 100


DOCUMENTS = (
    pool(),
    hbm_policy(strategy="HillClimb", bounds={"minEmbPercent": 5}, refill={"maxBytesPerSecond": "1G"}),
    pre_inference(),
)
PLACES = [(number, path) for number, document in enumerate(DOCUMENTS) for path in places(document)]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=VALUES)
def test_a_manifest_with_anything_anywhere_is_taken_or_refused_in_words(
    tmp_path: Path, place: tuple[int, tuple[Any, ...]], value: Any
) -> None:
    documents = copy.deepcopy(DOCUMENTS)
    put(documents[place[0]], place[1], value)
    try:
        path = manifest(tmp_path / "pool.yaml", *documents)
    except yaml.YAMLError:
        return
    judged(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200) | st.text(alphabet="&*[]{}:-?|>!%@`'\"#,~ab01\n\t <=", max_size=80).map(str.encode))
def test_a_file_with_any_bytes_is_read_or_refused_in_words(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "pool.yaml").write_bytes(data)
    with pytest.raises(BadInput):
        wanted(tmp_path / "pool.yaml")


def test_a_file_that_is_a_folder_or_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path, tmp_path / "loop", tmp_path / "missing"):
        with pytest.raises(BadInput, match="cannot be read"):
            read_manifests(path)
