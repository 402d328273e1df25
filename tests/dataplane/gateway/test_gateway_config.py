"""The rendered configuration: what real HAProxy says of it, and the values that are refused before HAProxy would misread them."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from gateway_world import row, table

from dataplane.gateway.config import ConfigError, GatewayConfig, mark_of, render, render_maps
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
    ],
    ids=["plain", "checked", "peers", "others"],
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


@pytest.mark.parametrize("changes", [{"pool_key": b"another key of 16 bytes"}, {"id_header": "x-a"}, {"check_interval_ms": 700}])
def test_the_mark_of_a_configuration_changes_with_it_and_not_with_the_servers(changes: dict[str, object]) -> None:
    assert mark_of(replace(BASE, **changes)) != mark_of(BASE)  # type: ignore[arg-type]  # values are the test's own
    _, servers, _ = servers_of([row("a", 81)])
    assert f"  description {mark_of(BASE)}\n" in render(BASE, servers)
