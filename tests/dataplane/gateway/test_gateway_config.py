"""The rendered configuration: what real HAProxy says of it, and the values that are refused before HAProxy would misread them."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from gateway_world import row, table

from contract.table import TableLimits
from dataplane.edge import ConfigError
from dataplane.gateway.config import ID_TABLE, SLOT_TABLE, USER_TABLE, GatewayConfig, mark_of, render, render_maps
from dataplane.gateway.servers import servers_of
from testbed.debian import Tree

BASE = GatewayConfig(
    pool_key=b"0123456789abcdef", bind="127.0.0.1:1234", admin_socket=Path("/tmp/g/a.sock"), directory=Path("/tmp/g")
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"check_path": "/gr/v1/ready", "metrics_bind": "127.0.0.1:1235", "key_id": "k1"},
        {"peers": {"a": "127.0.0.1:1236", "b": "127.0.0.1:1237"}, "local_peer": "a"},
        {"honour_echo": False, "id_header": "X-Account", "threads": 2, "bind": "[::1]:1234"},
        {"id_header": "x-member", "said": TableLimits(key_header="x-member", bounded_load_percent=1000)},
    ],
    ids=["plain", "checked", "peers", "others", "said by the table"],
)
def test_haproxy_takes_the_file_without_a_warning(haproxy: Tree, short_folder: Path, changes: dict[str, object]) -> None:
    config = replace(BASE, directory=short_folder, admin_socket=short_folder / "a.sock", **changes)  # type: ignore[arg-type]  # see above
    _, servers, _ = servers_of(table(1, [row(f"i{n}", 81) for n in range(20 if changes else 1000)]).instances)
    (short_folder / "haproxy.cfg").write_text(render(config, servers))
    for path, text in zip(config.map_paths, render_maps(servers), strict=True):
        path.write_text(text)
    done = subprocess.run(
        [haproxy.program("haproxy"), "-c", "-f", short_folder / "haproxy.cfg"],
        env=haproxy.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"pool_key": b"short"},
        {"bind": "127.0.0.1:80\n  bind :81"},
        {"bind": "nowhere"},
        {"id_header": "x user"},
        {"id_header": "x-gr-user-key"},
        {"id_header": "Content-Length"},
        {"bind": "127.0.0.1:99999"},
        {"bind": ":0"},
        {"metrics_bind": "*:70000"},
        {"peers": {"a": "127.0.0.1:65536"}, "local_peer": "a"},
        {"key_id": "a b"},
        {"check_path": "ready"},
        {"check_path": "/a b"},
        {"directory": Path("/tmp/a b")},
        {"admin_socket": Path("/tmp/" + "a" * 95)},
        {"master_socket": Path("/tmp/a\nb")},
        {"local_peer": "a\nb"},
        {"peers": {"a": "127.0.0.1:1"}, "local_peer": "b"},
        {"peers": {"a": "x y"}, "local_peer": "a"},
        {"bounded_load_percent": 199},
        {"key_header": "a b"},
        {"key_header": "Host"},
        {"retriable_bytes": 100},
        {"threads": 0},
        {"drain_seconds": 0},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_value_that_could_be_more_than_one_word_or_is_out_of_range_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        render(replace(BASE, **changes))  # type: ignore[arg-type]  # values are the test's own


def test_the_pool_key_shows_in_the_file_alone_and_not_in_what_is_printed_of_a_configuration() -> None:
    assert "0123456789abcdef" not in repr(BASE)
    assert "MDEyMzQ1Njc4OWFiY2RlZg==" in render(BASE)


def test_a_name_that_a_draining_predecessor_shares_is_echoed_to_its_successor() -> None:
    from contract.table import InstanceState

    _, servers, _ = servers_of([row("a", 81, uid="1", state=InstanceState.DRAINING), row("a", 82, uid="2")])
    names, echoes = render_maps(servers)
    assert len(names.splitlines()) == 2
    assert echoes == f"a {next(s.label for s in servers if not s.draining_only)}\n"


@pytest.mark.parametrize("honour_echo", [True, False])
def test_the_choice_of_the_caller_comes_before_the_hot_user_and_that_before_the_slot_by_name_and_by_id(honour_echo: bool) -> None:
    text = render(replace(BASE, honour_echo=honour_echo))
    by_name = re.findall(r"^  use-server \S*%\[var\(txn\.(\w+)\)\]", text, re.MULTILINE)
    assert by_name == [*(["gr_echo"] if honour_echo else []), "gr_user", "gr_slot"]
    by_id = re.findall(rf"^  stick match .*table_gpt0\((\w+)\) table {ID_TABLE}$", text, re.MULTILINE)
    assert by_id == [USER_TABLE, SLOT_TABLE]
    assert text.index("  use-server") < text.index("  stick match")


@pytest.mark.parametrize("changes", [{"pool_key": b"another key of 16 bytes"}, {"id_header": "x-a"}, {"check_interval_ms": 700}])
def test_the_mark_of_a_configuration_changes_with_it_and_not_with_the_servers(changes: dict[str, object]) -> None:
    assert mark_of(replace(BASE, **changes)) != mark_of(BASE)  # type: ignore[arg-type]  # values are the test's own
    _, servers, _ = servers_of([row("a", 81)])
    assert f"  description {mark_of(BASE)}\n" in render(BASE, servers)


@pytest.mark.parametrize(
    ("flag", "said", "percent"), [(None, None, 200), (None, 125, 200), (None, 300, 300), (250, 300, 250), (None, 1000, 1000)]
)
def test_the_bound_of_the_fallback_is_the_flag_or_what_the_table_says_but_never_below_200(
    flag: int | None, said: int | None, percent: int
) -> None:
    config = replace(BASE, bounded_load_percent=flag, said=TableLimits(bounded_load_percent=said))
    assert f"  hash-balance-factor {percent}\n" in render(config)
    assert (mark_of(config) == mark_of(BASE)) == (percent == 200)


@pytest.mark.parametrize(
    ("flag", "said", "header"),
    [
        (None, "x-member", "x-member"),
        ("x-flag", "x-member", "x-flag"),
        (None, "host", "x-gr-user-key"),
        (None, None, "x-gr-user-key"),
    ],
)
def test_the_user_key_travels_in_one_header_and_no_other_comes_through(flag: str | None, said: str | None, header: str) -> None:
    text = render(replace(BASE, key_header=flag, said=TableLimits(key_header=said)))
    assert f"  http-request set-header {header} %[var(txn.gr_key)]" in text
    assert text.count("set-header x-") == 2, "the key, and the instance of the answer"
    for gone in (header, "x-gr-user-key", BASE.id_header):
        assert f"  http-request del-header {gone}\n" in text
