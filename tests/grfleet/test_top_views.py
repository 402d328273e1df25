"""`grfleet top` never says zero for missing, marks what is stale, has the worst on top, and cuts no word on a narrow terminal."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from top_objects import condition, instance, instance_status, pool, pool_status, split, table, unreachable_status

from controllers.runtime.clock import FakeClock
from grfleet.access import Failed, flags_after_command
from grfleet.cli import program_name
from grfleet.top.columns import duration, instance_columns, pool_columns
from grfleet.top.follow import follow
from grfleet.top.order import worst_first, worst_instances_first
from grfleet.top.render import Frame, Seen, as_json, as_table, plain
from grfleet.top.view import InstanceView, PoolView, pools_of

NOW = datetime(2026, 1, 1, 3, 0, 20, tzinfo=UTC)


def seen_pool(item: dict[str, Any], *instances: dict[str, Any], tables: tuple[dict[str, Any], ...] = ()) -> PoolView:
    (view,) = pools_of([item], instances, tables, now=NOW)
    return view


def pool_cells(view: PoolView) -> dict[str, str]:
    return {column.title: column.cell(view) for column in pool_columns(namespaces=True)}


def instance_cells(view: InstanceView) -> dict[str, str]:
    return {column.title: column.cell(view) for column in instance_columns()}


def test_a_generation_of_millions_is_said_whole() -> None:
    assert pool_cells(seen_pool(pool(), tables=(table(generation=1_234_567),)))["TABLE"] == "1234567"


@pytest.mark.parametrize("copy_last", [True, False])
def test_only_the_table_of_the_pools_own_name_is_the_one_that_is_followed(copy_last: bool) -> None:
    own, copied = table(generation=17), table(generation=400, members=())
    copied["metadata"]["name"] = "ranker-copy"
    view = seen_pool(pool(), instance(), tables=(own, copied) if copy_last else (copied, own))
    assert view.table_generation == 17
    assert (view.instances or ())[0].in_table is True


class TestMissingIsNotZero:
    def test_of_a_pool_that_nobody_has_looked_at_nothing_is_known(self) -> None:
        cells = pool_cells(seen_pool(pool()))
        unknown = {title for title, cell in cells.items() if cell == "-"}
        assert unknown >= {"READY", "EMB%", "KV-HIT", "EMB-HIT", "P99", "SLO%", "STRATEGY", "REASON", "SLOTS", "TABLE", "MOVED%"}

    def test_of_an_instance_that_nobody_has_looked_at_nothing_is_known(self) -> None:
        (only,) = seen_pool(pool(), instance()).instances or ()
        cells = instance_cells(only)
        assert {cells[title] for title in ("READY", "EMB%", "KV-HIT", "EMB-HIT", "P99", "SLO%", "REASON", "SLOTS", "TABLE")} == {
            "-"
        }

    def test_zero_is_shown_as_zero(self) -> None:
        status = instance_status(split=split(0, 0, 0), caches={"kvHitPercent": 0, "embHitPercent": 0}, p99Ms="0", sloPercent="0")
        (only,) = seen_pool(pool(), instance(status=status, preInfer={"slots": 0, "bytes": 0})).instances or ()
        cells = instance_cells(only)
        assert [cells[title] for title in ("EMB%", "KV-HIT", "EMB-HIT", "P99", "SLO%", "SLOTS")] == [
            "0/0/0",
            "0",
            "0",
            "0",
            "0",
            "0",
        ]

    def test_a_part_of_a_split_may_be_missing(self) -> None:
        (only,) = seen_pool(pool(), instance(status=instance_status(split=split(62, 55)))).instances or ()
        assert instance_cells(only)["EMB%"] == "62/55/-"

    def test_a_mean_counts_only_what_was_measured(self) -> None:
        silent = instance("ranker-b", status=unreachable_status())
        view = seen_pool(pool(status=pool_status()), instance(status=instance_status()), silent)
        assert pool_cells(view)["KV-HIT"] == "74"

    def test_slots_that_only_some_instances_have_are_no_sum(self) -> None:
        some = instance(preInfer={"slots": 8, "bytes": 1}), instance("ranker-b")
        assert seen_pool(pool(), *some).slots is None
        both = instance(preInfer={"slots": 8, "bytes": 1}), instance("ranker-b", preInfer={"slots": 4, "bytes": 1})
        assert seen_pool(pool(), *both).slots == 12

    def test_instances_and_tables_that_could_not_be_read_are_missing(self) -> None:
        (view,) = pools_of([pool(status=pool_status())], None, None, now=NOW)
        cells = pool_cells(view)
        assert (cells["DRAIN"], cells["TABLE"], cells["EMB%"], cells["READY"]) == ("-", "-", "-/61/-", "2/2")

    @pytest.mark.parametrize("value", ["NaN", "inf", "-Infinity", "many", None, True, [], {}])
    def test_what_is_no_number_is_missing(self, value: Any) -> None:
        assert pool_cells(seen_pool(pool(status=pool_status(p99Ms=value))))["P99"] == "-"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mangled(draw: st.DrawFn, whole: dict[str, Any]) -> dict[str, Any]:
    """The object with the value at some path replaced by anything."""
    copy: dict[str, Any] = json.loads(json.dumps(whole))
    at: Any = copy
    while True:
        keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        key = draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or draw(st.booleans()):
            if at is not copy or key != "metadata":
                at[key] = draw(json_values)
            return copy
        at = at[key]


@given(
    mangled(pool(status=pool_status(preInference={"slots": 4, "demandSlots": 2}))),
    mangled(
        instance(
            status=instance_status(preInfer={"slots": 3}),
            preInfer={"slots": 4, "bytes": 1},
            drain={"reason": "ScaleDown", "startedAt": "2026-01-01T03:00:00Z", "deadlineSeconds": 60},
        )
    ),
    mangled(table()),
)
def test_whatever_the_objects_hold_there_is_a_table_and_json(a_pool: Any, an_instance: Any, a_table: Any) -> None:
    views = pools_of([a_pool], [an_instance], [a_table], now=NOW)
    seen = Seen(pools=views, now=NOW, namespace="feed", pool="ranker")
    assert "POOL" in plain(as_table(seen, Frame(wide=True)))
    assert json.loads(as_json(seen, indent=0))["pools"]


class TestStaleIsMarked:
    def test_the_split_of_a_silent_agent_is_the_last_known(self) -> None:
        view = seen_pool(pool(status=pool_status(ready=1)), instance(status=unreachable_status()))
        (only,) = view.instances or ()
        cells = instance_cells(only)
        assert (cells["EMB%"], cells["STRATEGY"], cells["REASON"]) == ("62/62/62*", "MissRatioCurve*", "AgentUnreachable")
        assert pool_cells(view)["EMB%"] == "62/62/62*"

    def test_a_status_of_an_older_spec_is_marked(self) -> None:
        item = pool(status=pool_status(observedGeneration=3))
        item["metadata"]["generation"] = 4
        assert pool_cells(seen_pool(item))["REASON"] == "AllInstancesReady*"
        item["metadata"]["generation"] = 3
        assert pool_cells(seen_pool(item))["REASON"] == "AllInstancesReady"

    def test_a_table_that_cannot_be_published_is_marked(self) -> None:
        held = table(conditions=[condition("TablePublished", "False", "PolicyNotFound")])
        assert pool_cells(seen_pool(pool(), tables=(held,)))["TABLE"] == "17*"
        assert pool_cells(seen_pool(pool(), tables=(table(),)))["TABLE"] == "17"


class TestWhatAnInstanceIsDoing:
    def test_a_drain_shows_its_reason_and_what_is_left_of_its_time(self) -> None:
        drain = {"reason": "ScaleDown", "startedAt": "2026-01-01T03:00:00Z", "deadlineSeconds": 60}
        view = seen_pool(pool(), instance(status=instance_status(), drain=drain))
        (only,) = view.instances or ()
        assert instance_cells(only)["DRAIN"] == "ScaleDown 40s"
        assert pool_cells(view)["DRAIN"] == "1"

    def test_a_drain_past_its_deadline_says_so(self) -> None:
        drain = {"reason": "Terminating", "startedAt": "2026-01-01T02:00:00Z", "deadlineSeconds": 60}
        (only,) = seen_pool(pool(), instance(drain=drain)).instances or ()
        assert instance_cells(only)["DRAIN"] == "Terminating overdue"

    def test_a_drain_with_nothing_in_flight_is_done(self) -> None:
        drain = {"reason": "ScaleDown", "startedAt": "2026-01-01T02:00:00Z", "deadlineSeconds": 60}
        status = instance_status()
        status["conditions"].append(condition("Drained"))
        (only,) = seen_pool(pool(), instance(drain=drain, status=status)).instances or ()
        assert instance_cells(only)["DRAIN"] == "ScaleDown done"

    def test_a_pool_shows_why_its_capacity_is_what_it_is(self) -> None:
        status = pool_status(preInference={"slots": 96, "demandSlots": 12, "desiredReplicas": 5, "hitBeforeRankPercent": 97})
        status["conditions"] += [
            condition("PreInferenceScaled", "Unknown", "HoldingStale"),
            condition("MetricsFresh", "False", "Stale"),
        ]
        cells = pool_cells(seen_pool(pool(status=status)))
        shown = [cells[title] for title in ("SLOTS", "DEMAND", "SCALER", "PRE-HIT", "CAPACITY", "METRICS")]
        assert shown == ["96", "12", "5", "97", "HoldingStale", "Stale"]

    @pytest.mark.parametrize(
        ("step", "shown"),
        [
            *((step, step) for step in ("Measuring", "CanarySoaking", "SoakExtended", "Inconclusive")),
            *((step, "AllInstancesReady") for step in ("Complete", "RolledBack", "Withdrawn")),
        ],
    )
    def test_a_pool_whose_policy_is_on_trial_says_how_far_the_trial_is(self, step: str, shown: str) -> None:
        status = pool_status()
        status["conditions"] += [condition("RolloutProgressing", "True", step, "Learned waits")]
        assert pool_cells(seen_pool(pool(status=status)))["REASON"] == shown
        status["conditions"][0] |= {"status": "False", "reason": "ModelMissing"}
        assert pool_cells(seen_pool(pool(status=status)))["REASON"] == "ModelMissing"

    def test_the_count_of_the_pool_loop_is_believed(self) -> None:
        status = pool_status()
        status["instances"] |= {"draining": 2, "updated": 1}
        cells = pool_cells(seen_pool(pool(status=status)))
        assert (cells["DRAIN"], cells["UPDATED"]) == ("2", "1/2")

    def test_slots_show_both_numbers_until_the_engine_has_taken_them_up(self) -> None:
        wanted = {"slots": 8, "bytes": 1}
        same, other = (instance(status=instance_status(preInfer={"slots": n}), preInfer=wanted) for n in (8, 6))
        cells = [instance_cells(each)["SLOTS"] for each in (*(seen_pool(pool(), same).instances or ()),)]
        cells += [instance_cells(each)["SLOTS"] for each in (*(seen_pool(pool(), other).instances or ()),)]
        assert cells == ["8", "8/6"]

    @pytest.mark.parametrize(
        ("entry", "cell"),
        [
            ({"weightPercent": 100, "state": "Ready"}, "100%"),
            ({"weightPercent": 40, "state": "Warming"}, "40% Warming"),
            ({"uid": "of-a-predecessor"}, "out"),
        ],
    )
    def test_its_place_in_the_table_is_that_of_its_uid(self, entry: dict[str, Any], cell: str) -> None:
        published = table()
        published["status"]["instances"][0].update(entry)
        (only,) = seen_pool(pool(), instance(), tables=(published,)).instances or ()
        assert instance_cells(only)["TABLE"] == cell

    def test_a_strategy_that_only_watches_says_so(self) -> None:
        status = pool_status()
        status["instances"]["shadow"] = 1
        view = seen_pool(pool(status=status), instance(status=instance_status(), intent={"enforcement": "Shadow"}))
        (only,) = view.instances or ()
        assert instance_cells(only)["STRATEGY"] == pool_cells(view)["STRATEGY"] == "MissRatioCurve (shadow)"


class TestWorstFirst:
    def test_pools_are_ordered_by_what_is_wrong_and_then_by_how_wrong_it_is(self) -> None:
        silent = pool_status(ready=0)
        silent["conditions"][1]["reason"] = "NoInstanceReady"
        pools = [
            pool("a-well", status=pool_status()),
            pool("b-not-measured", status={k: v for k, v in pool_status().items() if k not in ("p99Ms", "sloPercent")}),
            pool("c-misses-a-little", status=pool_status(sloPercent="98.2")),
            pool("d-misses-much", status=pool_status(sloPercent="71")),
            pool("e-policy", status=pool_status(healthy="False")),
            pool("f-one-of-four", status=pool_status(ready=3, total=4)),
            pool("g-half", status=pool_status(ready=2, total=4)),
            pool("h-down", status=silent),
            pool("i-moving", status=pool_status(instances={"total": 2, "ready": 2, "settled": 1, "unreachable": 0})),
        ]
        names = [view.name for view in worst_first(pools_of(pools, [], [], now=NOW))]
        assert names == [
            "h-down",
            "g-half",
            "f-one-of-four",
            "e-policy",
            "d-misses-much",
            "c-misses-a-little",
            "b-not-measured",
            "i-moving",
            "a-well",
        ]

    def test_instances_are_ordered_by_the_objective_of_their_pool(self) -> None:
        drain = {"reason": "ScaleDown", "startedAt": "2026-01-01T03:00:00Z", "deadlineSeconds": 60}
        view = seen_pool(
            pool(status=pool_status()),
            instance("a-well", status=instance_status()),
            instance("b-slow", status=instance_status(sloPercent="90", p99Ms="80")),
            instance("c-slower", status=instance_status(sloPercent="90", p99Ms="95")),
            instance("d-leaving", status=instance_status(ready="False", reason="Draining"), drain=drain),
            instance("e-silent", status=unreachable_status()),
            instance("f-new"),
        )
        names = [each.name for each in worst_instances_first(view)]
        assert names == ["e-silent", "f-new", "c-slower", "b-slow", "d-leaving", "a-well"]


def shown(width: int | None, *, one_pool: str = "", wide: bool = False) -> str:
    view = seen_pool(
        pool("ranker", status=pool_status(ready=1)),
        instance("ranker-a", status=instance_status()),
        instance("ranker-b", status=unreachable_status()),
        tables=(table(),),
    )
    seen = Seen(pools=[view], now=NOW, namespace="feed", pool=one_pool)
    if width is None:
        return plain(as_table(seen, Frame(wide=wide)))
    console = Console(width=width, file=io.StringIO(), record=True, highlight=False)
    console.print(as_table(seen, Frame(wide=wide, width=width)))
    return console.export_text()


class TestTheScreen:
    @pytest.mark.parametrize("wide", [False, True])
    @pytest.mark.parametrize("width", [60, 80, 100, 132, 200, 260])
    def test_a_terminal_of_any_width_shows_whole_words_and_names_what_it_leaves_out(self, width: int, wide: bool) -> None:
        text = shown(width, one_pool="ranker", wide=wide)
        assert all(len(line) <= width for line in text.splitlines())
        for word in ("ranker-a", "ranker-b", "62/62/62*", "SomeInstancesNotReady", "AgentUnreachable"):
            assert word in text
        assert "…" not in text
        left_out = " ".join(text.split("too narrow: ", 1)[1].split()) if "too narrow" in text else ""
        for column in pool_columns(namespaces=False):
            assert (column.wide and not wide) or column.title in text or column.title in left_out

    def test_a_pipe_gets_every_column_and_no_blanks_at_the_ends(self) -> None:
        text = shown(None, one_pool="ranker", wide=True)
        titles = [c.title for c in pool_columns(namespaces=False)] + [c.title for c in instance_columns()]
        assert all(title in text for title in titles)
        assert "too narrow" not in text
        assert not any(line.endswith(" ") for line in text.splitlines())

    def test_a_low_terminal_shows_the_worst_and_counts_the_others(self) -> None:
        members = [instance(f"ranker-{n}", status=instance_status(sloPercent=str(99 - n))) for n in range(9)]
        seen = Seen(pools=[seen_pool(pool(status=pool_status()), *members)], now=NOW, namespace="feed", pool="ranker")
        text = plain(as_table(seen, Frame(rows=3)))
        assert [name for name in (f"ranker-{n}" for n in range(9)) if name in text] == ["ranker-6", "ranker-7", "ranker-8"]
        assert "and 6 more, none of them worse" in text

    def test_markup_in_a_value_stays_text(self) -> None:
        view = seen_pool(pool(status=pool_status(strategyInForce="[red]x[/red]")))
        assert "[red]x[/red]" in plain(as_table(Seen(pools=[view], now=NOW, namespace="feed"), Frame()))

    def test_what_an_agent_says_cannot_steer_the_terminal(self) -> None:
        evil = "gone\x1b[2J\nready\u202e\x07"
        status = pool_status(ready=0, strategyInForce=evil)
        status["conditions"][1]["message"] = evil
        text = plain(as_table(Seen(pools=[seen_pool(pool(status=status))], now=NOW, namespace="feed"), Frame()))
        assert "gone" in text
        assert all(line.isprintable() for line in text.splitlines())
        assert len(text.splitlines()) == 3


class _Enough(Exception):
    """Ends a loop that has no end."""


class TestTheLoop:
    async def test_a_look_that_fails_leaves_the_last_one_standing_and_says_why(self) -> None:
        clock, calls = FakeClock(NOW), 0
        drawn: list[tuple[Seen, str]] = []

        class Screen:
            def show(self, seen: Seen, *, problem: str) -> None:
                drawn.append((seen, problem))

        async def look() -> Seen:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise Failed("the API server does not answer")
            if calls == 4:
                raise _Enough
            return Seen(pools=[], now=clock.now(), namespace="feed")

        async def drive() -> None:
            for _ in range(3):
                await clock.advance(2.0)

        driver = asyncio.ensure_future(drive())
        with pytest.raises(_Enough):
            await follow(look, Screen(), clock, interval_seconds=2.0)
        driver.cancel()
        assert [problem for _, problem in drawn] == ["", "the API server does not answer", ""]
        assert drawn[0][0] is drawn[1][0]
        assert drawn[2][0].now > drawn[1][0].now

    async def test_the_first_look_must_succeed(self) -> None:
        async def look() -> Seen:
            raise Failed("there is no namespace x")

        class Screen:
            def show(self, seen: Seen, *, problem: str) -> None:
                raise AssertionError

        with pytest.raises(Failed, match="no namespace x"):
            await follow(look, Screen(), FakeClock(), interval_seconds=1.0)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["-n", "feed", "top", "x"], ["top", "-n", "feed", "x"]),
        (["--context=c", "--as", "me", "top"], ["top", "--context=c", "--as", "me"]),
        (["top", "-n", "feed"], ["top", "-n", "feed"]),
        (["--help"], ["--help"]),
        (["-n", "feed", "--help"], ["-n", "feed", "--help"]),
        (["-n", "feed"], ["-n", "feed"]),
        (["-n"], ["-n"]),
        ([], []),
    ],
)
def test_flags_before_the_command_belong_to_it(typed: list[str], meant: list[str]) -> None:
    assert flags_after_command(typed) == meant


@pytest.mark.parametrize(
    ("invoked", "name"),
    [("/usr/bin/kubectl-grfleet", "kubectl grfleet"), ("kubectl-grfleet.exe", "kubectl grfleet"), ("/x/bin/grfleet", "grfleet")],
)
def test_the_program_is_named_as_it_was_invoked(invoked: str, name: str) -> None:
    assert program_name(invoked) == name


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.4, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")]
)
def test_ages_read_as_in_kubectl(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
