"""`grfleet decisions` says in one line what went wrong and what to do; its table fits a terminal of ordinary width."""

import io
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from contract.agent import DecisionRecord
from grfleet.cli import app
from grfleet.decisions import _table

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: here, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: me, user: {{}}}}]
contexts: [{{name: now, context: {{cluster: here, user: me}}}}]
current-context: now
"""


class _NotFound(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = {"kind": "Status", "reason": "NotFound", "code": 404, "details": {"name": self.path.rsplit("/", 1)[-1]}}
        body = json.dumps(status).encode()
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def empty_api_server() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), _NotFound)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def run(*arguments: str, kubeconfig: Path) -> Result:
    environment = {"KUBECONFIG": str(kubeconfig), "no_proxy": "127.0.0.1", "KUBERNETES_SERVICE_HOST": None}
    return CliRunner().invoke(app, ["decisions", *arguments], env=environment)


def pointing_to(port: int, folder: Path) -> Path:
    path = folder / "kubeconfig"
    path.write_text(KUBECONFIG.format(port=port))
    return path


@pytest.mark.parametrize(
    "words", ["[/]", "[bold]x", "\x1b[2J\x1b]0;owned\x07", "a\nb\rc", "\u202egnp", "[link=file:///etc]y[/link]"]
)
def test_whatever_an_agent_says_is_printed_and_steers_nothing(words: str) -> None:
    record = DecisionRecord(
        sequence=1, clock_ms=1.0, strategy=words, layer=words, reason=words, clips=[words], from_emb_bytes=1, target_emb_bytes=1,
        applied=True, inputs={},
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=400, force_terminal=True, color_system="truecolor")
    console.print(_table(words, [record]))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    visible = "".join(each if each.isprintable() else " " for each in words)
    assert shown.count(visible) == 5
    assert "\x1b[2J" not in shown
    assert "\x1b]" not in shown
    assert not {"\x07", "\r", "\u202e"} & set(shown)


def test_an_instance_that_is_not_there_is_looked_for_in_the_other_namespaces(tmp_path: Path, empty_api_server: int) -> None:
    result = run("ranker-9", "-n", "feed", kubeconfig=pointing_to(empty_api_server, tmp_path))
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "decisions: no GRInstance ranker-9 in namespace feed; `kubectl get gri -A` lists all, -n chooses"
    ]


def test_an_api_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        port = taken.getsockname()[1]
        result = run("ranker-0", kubeconfig=pointing_to(port, tmp_path))
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"decisions: the API server at http://127.0.0.1:{port} does not answer (")
    assert "check KUBECONFIG" in line


def test_without_a_kubeconfig_it_says_what_to_set(tmp_path: Path) -> None:
    result = run("ranker-0", kubeconfig=tmp_path / "absent")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"decisions: there is no kubeconfig at {tmp_path}/absent; set KUBECONFIG")
    assert line.endswith("--agent URL does without the API server")


def test_an_agent_that_does_not_answer_is_named(tmp_path: Path) -> None:
    result = run("ranker-0", "--agent", f"unix:{tmp_path}/none", kubeconfig=tmp_path / "absent")
    assert result.exit_code == 1
    assert f"no agent answers at unix:{tmp_path}/none" in result.stderr


def test_an_address_that_is_none_is_refused_with_those_that_are(tmp_path: Path) -> None:
    result = run("ranker-0", "--agent", "ranker-0:9001", kubeconfig=tmp_path / "absent")
    assert result.exit_code == 1
    assert "use http://host:port, https://host:port or unix:/path/to/socket" in result.stderr


def test_the_table_shows_whole_words_in_eighty_columns() -> None:
    record = DecisionRecord(
        sequence=123,
        clock_ms=123_456.7,
        strategy="MissRatioCurve",
        layer="Anchor",
        reason="EstimateNotTrusted",
        clips=[],
        from_emb_bytes=2 << 30,
        target_emb_bytes=3 << 30,
        applied=True,
        inputs={},
    )
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(_table("ranker-0", [record]))
    text = console.export_text()
    for word in ("MissRatioCurve", "Anchor", "EstimateNotTrusted", "2.00", "3.00", "EMB in GiB"):
        assert word in text


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (
            {"observation": {"usable_bytes": 4 << 30}, "round": {"message": "load_trend is 3"}},
            "#7: EMB 75.0 points of usable HBM; load",
        ),
        ({"round": {"message": "the engine is silent"}}, "#7: the engine is silent"),
        *(
            ({"observation": {"usable_bytes": usable}, "round": 3}, None)
            for usable in (0, -1, float("nan"), float("inf"), "4", None)
        ),
        ({"observation": [], "round": {"message": 4}}, None),
    ],
)
def test_below_the_table_stands_why_in_more_than_a_word_where_the_record_says_it(
    inputs: dict[str, Any], said: str | None
) -> None:
    record = DecisionRecord(
        sequence=7, clock_ms=1.0, strategy="Learned", layer="Anchor", reason="OutOfDistribution", clips=[], from_emb_bytes=1,
        target_emb_bytes=3 << 30, applied=True, inputs=inputs,
    )  # fmt: skip
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(_table("ranker-0", [record]))
    text = console.export_text()
    assert ("#7" in text) is (said is not None)
    assert said is None or " ".join(said.split()) in " ".join(text.split())


@pytest.mark.parametrize("doubt", [{"type": "stale", "age_ms": 1000.0}, {"type": "missing"}, {"type": "nan"}])
def test_what_a_round_without_its_engine_did_not_see_is_no_zero(doubt: dict[str, Any]) -> None:
    record = DecisionRecord(
        sequence=9, clock_ms=0.0, strategy="Static", layer="Hold", reason="EngineUnreachable", clips=[], from_emb_bytes=0,
        target_emb_bytes=0, applied=False,
        inputs={"observation": {"usable_bytes": 4 << 30, "split": doubt}, "round": {"message": "the engine does not answer"}},
    )  # fmt: skip
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(_table("ranker-0", [record]))
    text = console.export_text()
    assert "the engine does not answer" in text
    assert "points" not in text
    assert "0.0" not in text
