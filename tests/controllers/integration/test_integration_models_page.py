"""docs/models.md says what is so: its commands run, its policy is accepted, its reasons are all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from documented import EXAMPLES, blocks, commands, named_in_first_cells, read
from example_models import model_bytes
from integration_fleet import Fleet
from runtime_operator import OperatorProcess

from contract.agent import MAX_MODEL_BYTES
from controllers.models.observe import BROKEN_RECHECK_SECONDS, RECHECK_SECONDS
from crds import HBMPolicy
from crds.reasons import reasons_of
from policies.allocation.model_file import MAX_FILE_BYTES
from testbed.binaries import Binaries

NAME = "docs/models.md"


def test_every_reason_of_verified_has_its_remedy_on_the_page() -> None:
    named = named_in_first_cells(NAME, head="| reason | what to do |")
    assert named == {reason.name for reason in reasons_of("Verified")} - {"Verified"}


def test_the_paces_on_the_page_are_those_of_the_loop() -> None:
    assert (RECHECK_SECONDS, BROKEN_RECHECK_SECONDS) == (60.0, 10.0)
    assert "reads it again each minute, after ten seconds while" in read(NAME)


def test_an_agent_takes_every_file_that_is_a_model_by_its_size() -> None:
    assert MAX_MODEL_BYTES == MAX_FILE_BYTES


@pytest.mark.slow
def test_the_commands_on_the_page_bring_a_model_in_and_its_policy_names_it(
    fleet: Fleet, operator: OperatorProcess, testbed_binaries: Binaries, tmp_path: Path
) -> None:
    (tmp_path / "split-1.safetensors").write_bytes(model_bytes(1))
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_bytes(Path(fleet.plane.kubeconfig).read_bytes())
    programs = [str(Path(sys.executable).parent), str(Path(testbed_binaries["kubectl"]).parent)]
    within = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": ":".join([*programs, os.environ["PATH"]])}
    within.pop("KUBERNETES_SERVICE_HOST", None)

    def shell(command: str, given: str = "") -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=within,
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    shell(f"kubectl config set-context --current --namespace {fleet.namespace}")
    (policy,) = blocks(NAME, "yaml")
    assert HBMPolicy.parse(yaml.safe_load(policy)).spec.learned.model == "split-1"
    shell("kubectl apply --server-side -f -", policy)
    pool = yaml.safe_load((EXAMPLES / "pool.yaml").read_text())
    shell("kubectl apply --server-side -f -", yaml.safe_dump({**pool, "metadata": {"name": "ranker"}}))
    said = {command: shell(command) for command in commands(NAME)}
    assert list(said) == [
        "grfleet model verify split-1.safetensors",
        "grfleet model push split-1.safetensors",
        "kubectl wait --for=condition=Verified amod/split-1",
        "grfleet model list",
        """kubectl patch grp/ranker --type=merge --patch '{"spec":{"policies":{"hbm":"learned"}}}'""",
        """kubectl patch hbmp/learned --type=merge --patch '{"spec":{"strategy":"MissRatioCurve"}}'""",
        'kubectl annotate amod/split-1 grfleet.dev/read-again="$(date +%s)" --overwrite',
    ]
    assert "split-features-1" in said["grfleet model verify split-1.safetensors"]
    assert said["grfleet model list"].splitlines()[1].split()[:4] == ["split-1", "True", "Verified", "False"]
