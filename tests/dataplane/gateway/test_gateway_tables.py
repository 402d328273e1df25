"""From held to wanted: whatever HAProxy holds and wherever a push breaks, the rounds converge, and the order keeps it safe."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from gateway_model import CONFIG, Model
from gateway_world import row, table
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ProtocolViolation
from contract.keys import SLOTS, user_key
from contract.table import NOBODY, InstanceState, RoutingTable, TableLimits, pack_slots
from dataplane.fence import Fence, lineage_of
from dataplane.gateway.agent import GatewayAgent
from dataplane.gateway.config import FILLED_KEY, ID_TABLE, USER_TABLE, mark_of
from dataplane.gateway.servers import server_id, servers_of
from dataplane.gateway.tables import EMPTY, Held, HotUsers, Step, Want, is_older, plan, want_of

KEYS = [user_key(b"0123456789abcdef", f"u{i}") for i in range(4)]


@st.composite
def wants(draw: st.DrawFn, generation: int) -> Want:
    names = draw(st.lists(st.sampled_from("abcde"), unique=True, max_size=5))
    rows = [
        row(
            name,
            draw(st.sampled_from((81, 82))),
            uid=name + draw(st.sampled_from("12")),
            state=draw(st.sampled_from(InstanceState)),
            weight_percent=draw(st.sampled_from((0, 50, 100))),
        )
        for name in names
    ]
    users = draw(st.dictionaries(st.sampled_from(KEYS), st.sampled_from([r.uid for r in rows] or ["nobody"])))
    step = draw(st.integers(1, 7))
    owners = [(slot // step) % len(rows) if rows else NOBODY for slot in range(SLOTS)]
    return want_of(RoutingTable(generation=generation, instances=rows, slots=pack_slots(owners)), HotUsers(users))


def run(model: Model, steps: tuple[Step, ...], *, at_most: int | None = None) -> int:
    done = 0
    for step in steps:
        for command in step.commands:
            if at_most is not None and done >= at_most:
                return done
            answer = model.run(command)
            done += 1
            if not step.optional:
                assert (step.success in answer) if step.success else not answer, f"{command}: {answer}"
            for owner in model.held().slots.values() if command.startswith("del server") else ():
                assert owner in model.servers or owner == 0, f"{command} left slots behind"
    return done


def settle(model: Model, want: Want) -> None:
    for _ in range(4):
        steps = plan(model.held(), want, config=CONFIG)
        if not steps:
            return
        run(model, steps)
    raise AssertionError(f"never settles: {plan(model.held(), want, config=CONFIG)}")


def agrees(held: Held, want: Want) -> None:
    assert {i for i, h in held.servers.items()} == {s.id for s in want.servers}
    for server in want.servers:
        there = held.servers[server.id]
        assert (there.address, there.weight) == (server.address, server.weight)
        assert there.draining is server.draining_only
        assert not there.in_maintenance
    assert {slot: owner for slot, owner in held.slots.items() if owner} == dict(want.slots)
    assert dict(held.users) == dict(want.users)
    assert (held.generation, held.lineage) == (want.generation, want.lineage)
    assert held.ids == {s.id for s in want.servers} | {FILLED_KEY}
    assert dict(held.names) == {s.label: s.name for s in want.servers}
    assert dict(held.echoes) == {s.name: s.label for s in want.servers}


@settings(max_examples=25)
@given(st.data())
def test_tables_that_follow_each_other_and_break_half_way_end_in_what_the_last_one_wants(data: st.DataObject) -> None:
    model = Model()
    for generation in (1, 2, 3):
        want = data.draw(wants(generation))
        steps = plan(model.held(), want, config=CONFIG)
        run(model, steps, at_most=data.draw(st.integers(0, sum(len(step.commands) for step in steps))))
    settle(model, want)
    agrees(model.held(), want)
    assert plan(model.held(), want, config=CONFIG) == ()
    settle(model, EMPTY)
    assert not model.servers
    assert not any(model.held().slots.values())


def test_a_server_in_use_is_drained_and_deleted_only_when_nothing_is_in_flight_or_it_is_overdue() -> None:
    model = Model()
    both, one = (want_of(table(n, [row(name, 81) for name in names])) for n, names in ((1, "ab"), (2, "a")))
    settle(model, both)
    leaving = server_id("b", "uid-b")
    model.servers[leaving] = replace(model.servers[leaving], in_use=1)
    for _ in range(3):
        run(model, plan(model.held(), one, config=CONFIG))
        assert model.servers[leaving].draining
    run(model, plan(model.held(), one, config=CONFIG, overdue=frozenset({leaving})))
    assert leaving not in model.servers


def test_slots_leave_a_server_before_it_drains_and_servers_come_before_their_slots() -> None:
    model = Model()
    settle(model, want_of(table(1, [row(name, 81) for name in "ab"])))
    names = [step.what for step in plan(model.held(), want_of(table(2, [row(name, 81) for name in "ac"])), config=CONFIG)]
    assert names.index("add servers") < names.index("open servers") < names.index("generation")
    assert names.index("generation") < names.index("slots") < names.index("drain")


def test_draining_one_of_thirty_two_writes_its_slots_alone() -> None:
    rows = [row(f"i{n}", 81) for n in range(32)]
    model = Model()
    settle(model, want_of(table(1, rows)))
    owners = [slot % 32 if slot % 32 != 5 else (slot // 32) % 31 + (1 if (slot // 32) % 31 >= 5 else 0) for slot in range(SLOTS)]
    two = want_of(table(2, [row("i5", 81, state=InstanceState.DRAINING) if r.name == "i5" else r for r in rows], owners=owners))
    slots = next(step for step in plan(model.held(), two, config=CONFIG) if step.what == "slots")
    assert len(slots.commands) == SLOTS // 32


def test_ids_lead_to_servers_before_slots_name_them_and_a_haproxy_without_such_a_table_is_written_all_else() -> None:
    model, want = Model(), want_of(table(1, [row(name, 81) for name in "ab"]))
    steps = {step.what: step for step in plan(model.held(), want, config=CONFIG)}
    names = list(steps)
    assert names.index("add servers") < names.index("find servers by id") < names.index("slots")
    assert steps["find servers by id"].commands[-1].startswith(f"set table {ID_TABLE} key {FILLED_KEY} ")
    outdated = plan(replace(model.held(), ids=None), want, config=CONFIG)
    assert [step for step in outdated if any(ID_TABLE in command for command in step.commands)] == []
    assert "slots" in {step.what for step in outdated}


def test_an_older_table_of_the_same_pool_writes_no_slot_and_one_of_another_pool_or_object_does() -> None:
    rows = [row(name, 81) for name in "ab"]
    held_by_two = Model()
    settle(held_by_two, want_of(table(2, rows), lineage=7))
    older = want_of(table(1, rows, owners=[0] * SLOTS), lineage=7)
    assert is_older(held_by_two.held(), older)
    assert plan(held_by_two.held(), older, config=CONFIG) == ()
    for other in (want_of(table(1, [row("x", 81)]), lineage=7), want_of(table(1, rows), lineage=8)):
        assert not is_older(held_by_two.held(), other)


def test_a_fence_lets_generations_rise_and_a_tombstone_begin_anew() -> None:
    fence, rows = Fence(), [row("a", 81)]
    assert [fence.admits(table(n, rows)) for n in (3, 3, 2, 4)] == [True, False, False, True]
    assert fence.admits(table(1, []))
    assert fence.admits(table(1, rows))
    assert fence.admits(table(1, rows), lineage=lineage_of("made-anew"))


def test_a_successor_has_another_id_and_every_replica_computes_the_same() -> None:
    assert server_id("a", "1") != server_id("a", "2")
    assert server_id("a", "1") == server_id("a", "1")
    assert all(1 <= server_id(f"n{i}", "u") < 2**31 for i in range(2000))


@pytest.mark.parametrize(
    "address",
    [
        "https://10.0.0.1:1",
        "http://host.example:80",
        "http://10.0.0.1:80/path",
        "",
        "10.0.0.1:0",
        "10.0.0.1:99999",
        "unix:/x",
        "10.0.0.1 :1",
    ],
)
def test_a_row_that_haproxy_could_not_hold_is_left_out_and_its_slots_fall_to_the_hash(address: str) -> None:
    bad, good = row("bad", 81), row("good", 82)
    bad = type(bad)(name="bad", uid="u", address=address, weight_percent=100, state=InstanceState.READY)
    want = want_of(table(1, [bad, good]))
    assert [r.name for r in want.refused] == ["bad"]
    assert [s.name for s in want.servers] == ["good"]
    assert set(want.slots.values()) == {server_id("good", "uid-good")}
    assert len(want.slots) == SLOTS // 2


@pytest.mark.parametrize("name", ["a b", "a;b", "a\nb", "-a", "", "a/b", "ü"])
def test_a_name_that_could_be_a_command_is_left_out(name: str) -> None:
    good = row("a", 81)
    bad = type(good)(name=name, uid="u", address=good.address, weight_percent=100, state=InstanceState.READY)
    _, servers, refused = servers_of([bad, good])
    assert ([s.name for s in servers], len(refused)) == (["a"], 1)


def test_addresses_of_both_families_are_taken_with_and_without_a_scheme() -> None:
    rows = [row(name, 81) for name in "abc"]
    given_ = ["http://[fd00::1]:8080", "10.0.0.1:8080", "http://10.0.0.1"]
    _, servers, refused = servers_of(
        type(r)(name=r.name, uid=r.uid, address=a, weight_percent=1, state=r.state) for r, a in zip(rows, given_, strict=True)
    )
    assert not refused
    assert {s.address for s in servers} == {"[fd00::1]:8080", "10.0.0.1:8080", "10.0.0.1:80"}


def test_a_hot_user_whose_instance_left_or_drains_has_no_entry() -> None:
    rows = [row("a", 81), row("b", 82, state=InstanceState.DRAINING)]
    want = want_of(table(1, rows), HotUsers({KEYS[0]: "uid-a", KEYS[1]: "uid-b", KEYS[2]: "uid-gone"}))
    assert list(want.users) == [KEYS[0]]


def test_a_tombstone_says_nothing_of_limits_and_leaves_those_in_force(tmp_path: Path) -> None:
    agent = GatewayAgent(replace(CONFIG, directory=tmp_path), monotonic_s=lambda: 0.0)
    said = TableLimits(bounded_load_percent=300, key_header="x-member")
    agent.offer(msgspec.structs.replace(table(1, [row("a", 81)]), limits=said))
    before = mark_of(agent.config)
    assert agent.offer(table(2, []))
    assert (agent.config.said, mark_of(agent.config)) == (said, before), "a deleted pool reloads nobody"


def test_a_user_is_nobodys_before_the_entry_goes_as_peers_do_not_hear_of_one_that_is_cleared() -> None:
    rows = [row("a", 81)]
    stays, goes, gone = KEYS[:3]
    want = want_of(table(1, rows), HotUsers({stays: "uid-a"}))
    number = want.servers[0].id
    steps = plan(Held(users={stays: number, goes: number, gone: 0}), want, config=CONFIG)
    commands = [command for step in steps for command in step.commands if USER_TABLE in command]
    assert commands == [
        f"set table gr_users key {goes} data.gpt0 0",
        f"clear table gr_users key {goes}",
        f"clear table gr_users key {gone}",
    ]


def test_slots_that_are_no_table_are_refused() -> None:
    with pytest.raises(ProtocolViolation):
        want_of(RoutingTable(generation=1, instances=[row("a", 81)], slots="AAAA"))


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.sampled_from(InstanceState), min_size=1), min_size=2, max_size=4))
@settings(max_examples=20)
def test_what_is_made_from_the_want_before_is_what_is_made_afresh_and_writes_the_same(
    fleets: list[dict[str, InstanceState]],
) -> None:
    users = HotUsers({user_key(b"0123456789abcdef", f"u{i}"): f"uid-{'abcd'[i % 4]}" for i in range(12)})
    tables = [table(n, [row(name, 81, state=s) for name, s in fleet.items()]) for n, fleet in enumerate(fleets, 1)]
    before, model = want_of(tables[0], users), Model()
    settle(model, before)
    for each in tables[1:]:
        since, afresh = want_of(each, users, before=before), want_of(each, users)
        assert since.users == afresh.users
        held = replace(model.held(), users=before.users)
        one, other = plan(held, since, config=CONFIG), plan(held, afresh, config=CONFIG)
        assert [(step.what, set(step.commands)) for step in one] == [(step.what, set(step.commands)) for step in other]
        settle(model, since)
        before = since


@pytest.mark.parametrize(("percent", "weight"), [(0, 0), (1, 1), (5, 1), (6, 2), (50, 10), (100, 20)])
def test_a_server_that_may_be_used_at_all_has_a_weight_and_none_has_more_than_twenty(percent: int, weight: int) -> None:
    assert servers_of([row("a", 81, weight_percent=percent)])[1][0].weight == weight
