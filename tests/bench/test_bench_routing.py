"""The benchmark of routing: its load notices what it is there to notice, and each figure has its baseline of the same run."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench import routing_site
from bench.report import Result, single
from bench.routing import QUICK, measure, notes_of
from bench.routing_agent import config_of
from bench.routing_cost import SMALLER
from bench.routing_page import page
from bench.routing_rig import proxy
from bench.routing_site import AFTER, BEFORE, RoutingSiteError, compiled, free_port, haproxy, instances, load
from bench.routing_variants import FLOORS, KEYED, LACKS, NAMED, OVERRIDES, PLAIN, WHOLE, Part, _without, variant
from bench.routing_world import ANYBODY, WHOEVER_IS_FIRST, Tables, crowd_of, name_of, owners, uid_of
from dataplane.gateway.tables import want_of

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here, so the load is NOT tested")


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    child, ports = instances(tmp_path_factory.mktemp("toys"), 0, 3)
    with child:
        yield ports


def users(folder: Path, *rows: str) -> tuple[Path, Path]:
    """Files of users, each asked in turn."""
    (folder / "users").write_text("\n".join(rows) + "\n")
    np.arange(len(rows), dtype="<u4").tofile(folder / "order")
    return folder / "users", folder / "order"


def test_an_answer_of_another_instance_than_expected_is_counted_as_wrong(toys: list[int], tmp_path: Path) -> None:
    with load(tmp_path, toys[1], *users(tmp_path, "ann - 1 1", "bob - 2 2"), connections=2) as asking:
        asking.window("run")
        time.sleep(0.05)
        seen = asking.end()["run"]
    assert seen.wrong > 0
    assert abs(seen.wrong - seen.ok) <= 2
    assert (seen.failed, seen.first_wrong > 0) == (0, True)


def test_a_user_key_that_the_instance_was_not_handed_is_wrong(toys: list[int], tmp_path: Path) -> None:
    key = "0123456789abcdef" * 2
    files = users(tmp_path, f"{key} {key} 0 0")
    for header, right in (("x-gr-user-key", True), ("x-user-id", False)):
        with load(tmp_path, toys[0], *files, connections=1, header=header) as asking:
            asking.window("run")
            time.sleep(0.03)
            seen = asking.end()["run"]
        assert (seen.ok > 0, seen.wrong > 0) == (right, not right)


def test_a_window_is_right_by_the_table_before_or_after_and_whoever_was_first_stays_right(
    toys: list[int], tmp_path: Path
) -> None:
    rows = ("moved - 1 0", f"anybody - {ANYBODY} {ANYBODY}", f"first - {WHOEVER_IS_FIRST} {WHOEVER_IS_FIRST}")
    with load(tmp_path, toys[0], *users(tmp_path, *rows), connections=1) as asking:
        asking.window("before", right=BEFORE, watched=0)
        time.sleep(0.03)
        turned = asking.window("after", right=AFTER)
        time.sleep(0.03)
        seen = asking.end()
    assert seen["before"].wrong > 0
    assert seen["before"].seen > 0
    assert seen["before"].last_seen < turned
    assert (seen["after"].wrong, seen["after"].failed) == (0, 0)


def test_nobody_who_listens_is_a_failure_and_an_open_loop_asks_at_its_rate_all_the_same(toys: list[int], tmp_path: Path) -> None:
    with load(tmp_path, free_port(), *users(tmp_path, "ann - 0 0"), connections=4, rate=1000) as asking:
        asking.window("run")
        time.sleep(0.1)
        seen = asking.end()["run"]
    assert seen.sent == seen.failed > 30
    assert seen.ok == 0


def test_the_latency_of_an_open_loop_begins_when_a_request_was_due(tmp_path: Path) -> None:
    """An instance that stands still for a while is felt by all that were due meanwhile, not only by those in flight."""
    child, (port,) = instances(tmp_path, 0, 1)
    with child, load(tmp_path, port, *users(tmp_path, "ann - 0 0"), connections=1, rate=500) as asking:
        asking.window("run")
        subprocess.run(["kill", "-STOP", str(child.pid)], check=True)
        time.sleep(0.2)
        subprocess.run(["kill", "-CONT", str(child.pid)], check=True)
        time.sleep(0.05)
        seen = asking.end()["run"]
    assert seen.p50_us > 20_000
    assert seen.slowest_us > seen.p50_us


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(routing_site, "cache_directory", lambda: tmp_path / "bin")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RoutingSiteError, match=r"no C compiler here .* apt-get install"):
        compiled("load")


def test_each_variant_lacks_just_its_parts_and_a_part_that_is_no_longer_there_is_an_error(tmp_path: Path) -> None:
    tables = Tables({0: 8001, 1: 8002})
    servers = want_of(tables.next()).servers
    texts = {name: variant(name, config_of(tmp_path, 9000), servers) for name in LACKS}
    assert len(set(texts.values())) == len(LACKS)
    assert "gr_key" not in texts[PLAIN].split("frontend gr_in")[1]
    assert "balance hash req.fhdr(x-user-id)" in texts[PLAIN]
    for variant_, searches in ((WHOLE, 2), (OVERRIDES, 1), (KEYED, 0)):
        assert texts[variant_].count("\n  stick match ") == texts[variant_].count("\n  use-server s%[") == searches
    assert "gr_bare" not in texts[KEYED]
    with pytest.raises(ValueError, match="no line of it"):
        _without(Part("another", "no such line"), texts[WHOLE].splitlines())


def test_a_floor_asks_for_nothing_that_the_whole_does_without_and_routes_by_plain_hash(tmp_path: Path) -> None:
    servers = want_of(Tables({0: 8001, 1: 8002}).next()).servers
    whole = variant(WHOLE, config_of(tmp_path, 9000), servers)
    for floor, least in zip(FLOORS, (NAMED, KEYED, NAMED), strict=True):
        base = variant(least, config_of(tmp_path, 9000), servers).splitlines()
        more = [line for line in variant(floor, config_of(tmp_path, 9000), servers).splitlines() if line not in base]
        assert more
        for line in more:
            rule, _, asked = line.partition(") ")
            assert rule.startswith("  http-request set-var(")
            assert asked.split(" if ")[0] in whole


def test_a_table_without_an_instance_moves_its_users_alone(tmp_path: Path) -> None:
    crowd = crowd_of(tmp_path, hot=200, cold=100, instances=4, rng=np.random.default_rng(1))
    tables = Tables({number: 8000 + number for number in range(4)})
    before, after = (owners(crowd, tables.next(without=number)) for number in (-1, 2))
    assert {old for old, new in zip(before, after, strict=True) if old != new} == {2}
    assert 2 not in after
    assert before[: crowd.hot] == list(crowd.at)
    assert set(crowd.overrides().values()) <= {uid_of(number) for number in range(4)}
    assert name_of(2) == "i-2"


def test_the_page_begins_with_the_goals_that_are_missed() -> None:
    rows = [
        single("slow", 3.0, "ms", goal=2.0),
        single("fine", 0.0, "", goal=0),
        single("share", 0.7, "share", goal=0.85, at_least=True),
        Result(name="bare", value=1.0, unit="us", min=0.5, max=2.0, runs=3),
    ]
    text = page(rows, notes_of(QUICK, "2.6.12"))
    assert "1 of 3 met. Missed:" in text
    assert "- **slow**: 3 ms, goal 2" in text
    assert "- **share**: 0.7 share, goal at least 0.85" in text
    assert text.index("Missed") < text.index("| fine |") < text.index("| bare | 1 | 0.5 | 2 | us | 3 |")


def test_a_whole_gateway_answers_by_its_tables_under_the_load(toys: list[int], tmp_path: Path) -> None:
    try:
        program = haproxy()
    except RoutingSiteError as error:
        pytest.skip(f"no HAProxy here, so the rig is NOT tested: {error}")
    crowd = crowd_of(tmp_path, hot=300, cold=300, instances=3, rng=np.random.default_rng(2))
    tables = Tables(dict(enumerate(toys)))
    table = tables.next()
    expected = crowd.expect("whole", owners(crowd, table))
    with (
        proxy(program, tmp_path / "g", crowd, table, fill=True) as running,
        load(tmp_path, running.port, expected, crowd.order, connections=8) as asking,
    ):
        asking.window("run")
        before = running.cpu_ns()
        time.sleep(0.2)
        assert running.cpu_ns() > before
        seen = asking.end()["run"]
    assert seen.ok > 0
    assert (seen.wrong, seen.failed) == (0, 0)


@pytest.mark.slow
def test_every_part_has_its_cost_and_every_event_its_counts() -> None:
    found = {result.name: result for result in measure(QUICK, seed=1)}
    costs = [result for name, result in found.items() if name.startswith("CPU of HAProxy a request: ")]
    assert len(costs) == len(LACKS) + 2 + len(SMALLER) + len(FLOORS)
    assert [each.baseline is None for each in costs].count(True) == 1
    for event in ("update", "drain", "add", "kill -9", "restart of the agent"):
        counts = [each for name, each in found.items() if name.startswith(event) and each.goal == 0]
        assert len(counts) == 2
        assert [each.value for each in counts] == [0, 0], event
    for result in found.values():
        assert result.min <= result.value <= result.max, result.name
