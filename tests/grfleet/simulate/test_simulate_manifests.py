"""Manifests are read as the API server reads them with strict validation: what the models know, nothing else, of every kind."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from documented import EXAMPLES
from simulate_inputs import hbm_policy, manifest, pool

from controllers.pool.observe import instance_name
from crds.registry import KINDS
from grfleet.simulate.errors import BadInput
from grfleet.simulate.manifests import read_manifests
from grfleet.simulate.translate import accelerator_of, fleet_of
from grfleet.simulate.wanted import wanted
from policies.routing.rendezvous import place
from simulator.physics.accelerator import known_accelerators

WRITTEN = [kind for kind in KINDS if kind.example]


def example(kind: Any) -> dict[str, Any]:
    return {
        "apiVersion": "grfleet.dev/v1alpha1",
        "kind": kind.name,
        "metadata": {"name": "x", "labels": {"a": "b"}, "managedFields": [{"manager": "kubectl"}]},
        "spec": copy.deepcopy(kind.example),
    }


def groups(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping of an object with its path, apart from those that may hold anything."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            if key not in ("template", "matchLabels"):
                yield from groups(inner, f"{path}.{key}")
    if isinstance(value, list):
        for place, inner in enumerate(value):
            yield from groups(inner, f"{path}[{place}]")


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.name)
def test_the_example_of_every_kind_is_taken_and_an_unknown_field_anywhere_in_it_is_refused(tmp_path: Path, kind: Any) -> None:
    read_manifests(manifest(tmp_path / "good.yaml", example(kind)))
    paths = [path for path, _ in groups(example(kind)["spec"], "spec")]
    assert paths

    for path in paths:
        document = example(kind)
        dict(groups(document["spec"], "spec"))[path]["notThere"] = 1
        with pytest.raises(BadInput, match=re.escape(f"field {path}.notThere: ")):
            read_manifests(manifest(tmp_path / "bad.yaml", document))


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(EXAMPLES.glob("*.yaml")) if "kind: GRServingPool\n" in path.read_text()],
    ids=lambda path: path.name,
)
def test_every_documented_pool_becomes_a_fleet(path: Path) -> None:
    fleet = fleet_of(wanted(path), accelerator=accelerator_of("a100"), layers=None, width=None, instances=4)

    assert fleet.config.instances == 4
    assert fleet.config.service.kv_bytes_per_token == wanted(path).pool.spec.model.kv_bytes_per_token


@pytest.mark.parametrize("kv_bytes", [4, 1024, 4096, 5000, 16_384, 32_768, 114_688, 131_072])
@pytest.mark.parametrize("accelerator", known_accelerators())
def test_state_takes_the_bytes_that_the_manifest_says_whatever_shape_is_assumed(
    tmp_path: Path, kv_bytes: int, accelerator: str
) -> None:
    model = {"name": "m", "version": "1", "kvBytesPerToken": kv_bytes, "embRowBytes": 256, "maxHistoryTokens": 100}
    path = manifest(tmp_path / "pool.yaml", pool(model=model))

    fleet = fleet_of(wanted(path), accelerator=accelerator_of(accelerator), layers=None, width=None, instances=None)

    assert fleet.config.service.kv_bytes_per_token == kv_bytes
    assert fleet.config.service.row_bytes == 256
    assert any(note.startswith("model: ") for note in fleet.assumptions)


def test_users_are_on_the_instances_that_the_routing_loop_gives_them(tmp_path: Path) -> None:
    path = manifest(tmp_path / "pool.yaml", pool())
    a100 = accelerator_of("a100")

    named = fleet_of(wanted(path), accelerator=a100, layers=None, width=None, instances=None)
    more = fleet_of(wanted(path), accelerator=a100, layers=None, width=None, instances=3)

    assert named.names == tuple(instance_name("feed", entry) for entry in ("a", "b"))
    assert named.owners == place(list(named.names), [1.0, 1.0]).tolist()
    assert more.names == ("feed-0", "feed-1", "feed-2")


def test_layers_and_width_of_the_command_line_shape_the_model(tmp_path: Path) -> None:
    path = manifest(tmp_path / "pool.yaml", pool())

    fleet = fleet_of(wanted(path), accelerator=accelerator_of("h100"), layers=4, width=2048, instances=None)

    assert (fleet.shape.layers, fleet.shape.width, fleet.shape.attention_width) == (4, 2048, 1024)


def test_what_else_stands_in_a_file_is_left_alone_and_named(tmp_path: Path) -> None:
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "engines"}, "spec": {"any": ["thing"]}}
    path = manifest(tmp_path / "all.yaml", deployment, pool(), hbm_policy())

    found = read_manifests(path)

    assert found.others == ("Deployment engines",)
    assert [type(each).__name__ for each in found.objects] == ["GRServingPool", "HBMPolicy"]
    assert "all.yaml: not simulated: Deployment engines" in wanted(path).notes


def test_what_kubectl_get_prints_can_be_rehearsed(tmp_path: Path) -> None:
    seen = pool()
    seen["metadata"] |= {"uid": "u", "resourceVersion": "5", "generation": 3, "creationTimestamp": "2026-01-31T19:00:00Z"}
    seen["status"] = {"replicas": 2, "conditions": "whatever the cluster wrote"}
    path = tmp_path / "list.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [seen, hbm_policy()]}))

    assert wanted(path).pool.metadata.name == "feed"


def test_the_lower_cap_of_a_refill_holds(tmp_path: Path) -> None:
    a100 = accelerator_of("a100")
    tenth = a100.to_device_bytes_per_second // 10
    capped = {"maxLinkPercent": 40, "maxBytesPerSecond": str(tenth)}
    path = manifest(tmp_path / "pool.yaml", pool(), hbm_policy(refill=capped))

    fleet = fleet_of(wanted(path), accelerator=a100, layers=None, width=None, instances=None)

    assert fleet.config.refill_link_percent in (9, 10)
    assert fleet.config.refill_bytes_per_second <= tenth


def test_an_accelerator_of_a_teams_own_is_a_file(tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[3] / "simulator" / "physics" / "data" / "accelerators" / "l20.toml"
    own = tmp_path / "ours.toml"
    own.write_text(source.read_text())

    assert accelerator_of(str(own)).name == "ours"
    own.write_text("peak = 1\n")
    with pytest.raises(BadInput, match=r"ours.toml"):
        accelerator_of(str(own))
