"""docs/picker.md: its walk is run as one session with a real Envoy, its flags and its manifest are what they say they are."""

import os

import pytest
import yaml
from documented import ROOT, blocks, elsewhere, flags_in_table, flags_of, moved, short_folder, walk

from dataplane.picker.main import _parser
from testbed.envoy import ensure_envoy
from testbed.wheels import WheelError

PAGE = "docs/picker.md"
PAGES = (PAGE, "docs/pools.md")
CONFIG = "docs/examples/picker-envoy.yaml"
PORTS = ("9100", "9101", "9102", "9103", "9002", "9901")
# On a busy machine half a second is not long, and an answer that took longer would come from another server.
PATIENT = {"message_timeout: 0.5s": "message_timeout: 10s", "connect_timeout: 0.5s": "connect_timeout: 5s"}


def test_the_walk_ends_with_every_user_on_the_server_that_is_left() -> None:
    try:
        envoy = ensure_envoy()
    except WheelError as error:
        pytest.skip(f"no Envoy here, so the walk of the picker is NOT run: {error}")
    with short_folder() as toys:
        places = elsewhere(toys, PORTS, {"grfleet-picker": "dataplane.picker.main"})
        config = toys / "envoy.yaml"
        config.write_text(moved((ROOT / CONFIG).read_text(), places | PATIENT))
        first = {"$(.venv/bin/python -m testbed.envoy)": str(envoy), CONFIG: str(config)}
        walk(PAGE, first | places, within=os.environ, logs=[toys / "picker.log", toys / "envoy.log"])


def test_the_table_of_flags_is_that_of_the_command() -> None:
    assert flags_in_table(PAGE) == flags_of(_parser())


def test_the_inference_pool_of_the_page_names_what_its_kind_has() -> None:
    (text,) = (each for each in blocks(PAGE, "yaml") if "kind: InferencePool" in each)
    pool = yaml.safe_load(text)
    assert (pool["apiVersion"], pool["kind"]) == ("inference.networking.k8s.io/v1", "InferencePool")
    assert set(pool["spec"]) == {"selector", "targetPorts", "endpointPickerRef"}
    assert set(pool["spec"]["endpointPickerRef"]) == {"kind", "name", "port", "failureMode"}


def test_the_inference_pool_of_the_page_is_that_of_the_page_about_pools() -> None:
    here, there = (yaml.safe_load(next(each for each in blocks(page, "yaml") if "kind: InferencePool" in each)) for page in PAGES)
    both = [here["spec"], there["spec"]]
    assert both[0]["selector"] == both[1]["selector"]
    assert both[0]["targetPorts"] == both[1]["targetPorts"]
    assert both[0]["endpointPickerRef"] == both[1]["endpointPickerRef"] | {"kind": "Service", "failureMode": "FailOpen"}
