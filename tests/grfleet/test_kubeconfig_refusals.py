"""Commands that cannot reach a cluster end in one line, whatever stands in the kubeconfig and whatever answers at the address."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubeconfigs import kubeconfig_of
from typer.testing import CliRunner

from grfleet.cli import app


@pytest.mark.parametrize(
    "answer",
    [
        "<html>welcome</html>",
        "[]",
        '{"items": 3}',
        '{"items": [1]}',
        "null",
        '{"metadata": {}}',
        pytest.param("[" * 99_999, id="deep"),
    ],
)
@pytest.mark.parametrize("command", [("top",), ("decisions", "ranker-a")])
def test_what_is_no_api_server_is_named_as_such(answer: str, command: tuple[str, ...], tmp_path: Path) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        path = kubeconfig_of(tmp_path, server=f"http://127.0.0.1:{server.server_port}")
        environment = {"KUBECONFIG": str(path), "no_proxy": "127.0.0.1"}
        shown = CliRunner().invoke(app, [*command], env=environment)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert shown.exit_code == 1
    assert isinstance(shown.exception, SystemExit)
    assert shown.stderr.startswith(f"{command[0]}: ")
    assert shown.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    [("-n", "../../v1/secrets"), ("-n", "A"), ("-n", "x" * 64), ("--request-timeout", "soon"), ("--request-timeout", "-1s")],
    ids=str,
)
def test_a_flag_that_cannot_be_meant_is_named(flags: tuple[str, str], tmp_path: Path) -> None:
    path = kubeconfig_of(tmp_path, server="https://127.0.0.1:1")
    shown = CliRunner().invoke(app, ["top", *flags], env={"KUBECONFIG": str(path)})
    assert (shown.exit_code, shown.stderr.count("\n")) == (1, 1)
    assert flags[1] in shown.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"certificate-authority-data": "aGVsbG8="},
        {"certificate-authority-data": "*"},
        {"certificate-authority": "/nowhere"},
        {"server": 7},
        {"server": "ftp://127.0.0.1"},
        {"server": "https://"},
        {"server": "nonsense"},
    ],
    ids=str,
)
def test_a_kubeconfig_that_cannot_work_ends_in_one_line(wrong: dict[str, Any], tmp_path: Path) -> None:
    path = kubeconfig_of(tmp_path, **{"server": "https://127.0.0.1:1", **wrong})
    shown = CliRunner().invoke(app, ["top"], env={"KUBECONFIG": str(path), "no_proxy": "127.0.0.1"})
    assert (shown.exit_code, shown.stderr.count("\n")) == (1, 1), shown.stderr
    assert isinstance(shown.exception, SystemExit), shown.exception
