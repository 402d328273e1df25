"""docs/picker.md: its walk is run as one session with a real Envoy, its flags and its manifest are what they say they are."""

import os
import re
import socket
import sys
from pathlib import Path

import pytest
import yaml
from documented import ROOT, blocks, read, run

from dataplane.picker.main import _parser
from testbed.envoy import ensure_envoy
from testbed.wheels import WheelError

PAGE = "docs/picker.md"
CONFIG = "docs/examples/picker-envoy.yaml"
PORTS = ("9100", "9101", "9102", "9103", "9002", "9901")


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def test_the_walk_ends_with_every_user_on_the_server_that_is_left(tmp_path: Path) -> None:
    try:
        envoy = ensure_envoy()
    except WheelError as error:
        pytest.skip(f"no Envoy here, so the walk of the picker is NOT run: {error}")
    session = "\n".join(["set -eu", *blocks(PAGE, "sh"), "wait"]).replace("$(.venv/bin/python -m testbed.envoy)", str(envoy))
    config = (ROOT / CONFIG).read_text()
    for old, new in zip(PORTS, free_ports(len(PORTS)), strict=True):
        session, config = session.replace(old, str(new)), config.replace(old, str(new))
    # On a busy machine half a second is not long, and an answer that took longer would come from another server.
    config = config.replace("message_timeout: 0.5s", "message_timeout: 10s").replace(
        "connect_timeout: 0.5s", "connect_timeout: 5s"
    )
    (tmp_path / "envoy.yaml").write_text(config.replace("/tmp/toys", str(tmp_path)))
    session = session.replace(CONFIG, str(tmp_path / "envoy.yaml")).replace("/tmp/toys", str(tmp_path))
    session = session.replace(".venv/bin/python", sys.executable)
    session = session.replace(".venv/bin/grfleet-picker", f"{sys.executable} -m dataplane.picker.main")
    done = run(session, within={**os.environ, "PYTHONPATH": str(ROOT)})
    said, named = re.findall(r"I am (\w)", done.stdout), re.findall(r"x-gr-instance: (\w)", done.stdout)
    logs = "".join((tmp_path / name).read_text() for name in ("picker.log", "envoy.log"))
    assert len(said) == 15, done.stdout + done.stderr + logs
    first, without_b, without_c = said[:5], said[5:10], said[10:]
    assert named == first
    assert [after for before, after in zip(first, without_b, strict=True) if before != "b" and before != after] == []
    assert "b" not in without_b
    assert set(without_c) == {"a"}


def test_the_table_of_flags_is_that_of_the_command() -> None:
    flags = {option for action in _parser()._actions for option in action.option_strings if option.startswith("--")} - {"--help"}
    assert set(re.findall(r"^\| `(--[a-z-]+)", read(PAGE), re.M)) == flags


def test_the_inference_pool_of_the_page_names_what_its_kind_has() -> None:
    (text,) = blocks(PAGE, "yaml")
    pool = yaml.safe_load(text)
    assert (pool["apiVersion"], pool["kind"]) == ("inference.networking.k8s.io/v1", "InferencePool")
    assert set(pool["spec"]) == {"selector", "targetPorts", "endpointPickerRef"}
    assert set(pool["spec"]["endpointPickerRef"]) == {"kind", "name", "portNumber", "failureMode"}
