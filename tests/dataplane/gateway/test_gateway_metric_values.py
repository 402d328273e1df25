"""Every number that a gateway's agent shows is the one that its name says: views in which no two numbers are alike."""

import dataclasses
from collections import Counter as Tally
from collections.abc import Mapping

import pytest
from gateway_world import row, table

from contract.table import RoutingTable
from dataplane.gateway.metrics import RESULTS, SERVER_STATES, WRITES, GatewayMetrics, GatewayView
from dataplane.gateway.tables import Held, HeldServer
from dataplane.hot_users.metrics import OUTCOMES, ResidencyMetrics
from dataplane.hot_users.residents import ResidentsView
from dataplane.tables_seen import TablesSeen

MAINTENANCE, DRAIN = 0x01, 0x08


def shown(text: bytes) -> dict[str, float]:
    """Value by series, without the part of the name that all share."""
    lines = (line for line in text.decode().splitlines() if not line.startswith("#"))
    pairs = (line.rsplit(" ", 1) for line in lines)
    return {name.removeprefix("grfleet_gateway_"): float(value) for name, value in pairs}


def labelled(name: str, label: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f'{name}{{{label}="{key}"}}': value for key, value in values.items()}


def test_each_number_of_the_hot_users_is_its_own() -> None:
    reports = {result: 100 + at for at, result in enumerate(OUTCOMES)}
    view = ResidentsView(
        overrides=3,
        users_known=9,
        moved=4,
        refused=5,
        refusals=6,
        most=7,
        silent=1,
        round_s=0.25,
        age_s={"a": 1.5, "b": 8.0, "c": 2.0},
        reports=reports,
    )
    assert all(getattr(view, each.name) for each in dataclasses.fields(view)), "a new number needs a line here"
    assert shown(ResidencyMetrics().text(view)) == {
        "overrides": 3.0,
        "resident_users": 9.0,
        "user_moves_total": 4.0,
        "overrides_refused": 5.0,
        "bound_breaches_total": 6.0,
        "overrides_limit": 7.0,
        "silent_instances": 1.0,
        "residency_round_seconds": 0.25,
        "oldest_report_seconds": 8.0,
        "youngest_report_seconds": 1.5,
        **labelled("reports_total", "result", reports),
    }


def server(number: int, *, admin_state: int = 0, up: bool = True) -> HeldServer:
    return HeldServer(id=number, address="10.0.0.1:80", weight=100, admin_state=admin_state, in_use=0, up=up)


def held() -> Held:
    """Ten servers: four ready, three down, two that drain and one in maintenance; three slots with an owner."""
    each = [server(n) for n in range(4)] + [server(n, up=False) for n in range(4, 7)]
    each += [server(n, admin_state=DRAIN) for n in (7, 8)] + [server(9, admin_state=MAINTENANCE)]
    return Held(servers={one.id: one for one in each}, slots={0: 1, 1: 2, 2: 3, 3: 0, 4: 0}, users={"u": 1}, generation=41)


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def seen_by(clock: Clock) -> TablesSeen:
    """Generation 42 in force for 61 seconds, a source that answered 7 seconds ago; three taken, two stale, one broken."""
    seen = TablesSeen(clock)

    def offered(generation: int) -> RoutingTable:
        return table(generation, [row("a", 80)])

    assert [seen.take(offered(generation)) for generation in (40, 41, 42, 42, 41)] == [True, True, True, False, False]
    seen.broken += 1
    clock.now_s = 54.0
    seen.heard()
    clock.now_s = 61.0
    return seen


def view_of(**changes: object) -> GatewayView:
    view = GatewayView(
        tables=seen_by(Clock()),
        held=held(),
        hot_users=17,
        haproxy_answers=True,
        refused_rows=13,
        haproxy_starts=24,
        haproxy_outdated=False,
        reloads=25,
        results=Tally({result: 300 + at for at, result in enumerate(RESULTS)}),
        writes=Tally({kind: 400 + at for at, kind in enumerate(WRITES)}),
    )
    return dataclasses.replace(view, **changes)  # type: ignore[arg-type]  # names and types are the test's own


def test_each_number_of_a_gateway_is_its_own() -> None:
    view = view_of()
    assert shown(GatewayMetrics().text(view)) == {
        "generation": 42.0,
        "held_generation": 41.0,
        "table_age_seconds": 61.0,
        "source_age_seconds": 7.0,
        **labelled("tables_total", "verdict", {"taken": 3.0, "stale": 2.0, "broken": 1.0}),
        "refused_rows": 13.0,
        "haproxy_up": 1.0,
        "haproxy_restarts_total": 24.0,
        "haproxy_outdated": 0.0,
        "reloads_total": 25.0,
        **labelled("servers", "state", {"ready": 4.0, "down": 3.0, "draining": 2.0, "maintenance": 1.0}),
        "slots": 3.0,
        "hot_users": 17.0,
        **labelled("reconciles_total", "result", view.results),
        **labelled("writes_total", "kind", view.writes),
    }


@pytest.mark.parametrize(("flag", "series"), [("haproxy_answers", "haproxy_up"), ("haproxy_outdated", "haproxy_outdated")])
def test_a_yes_and_a_no_are_shown_as_such(flag: str, series: str) -> None:
    assert [shown(GatewayMetrics().text(view_of(**{flag: value})))[series] for value in (False, True)] == [0.0, 1.0]


def test_what_is_not_known_is_no_number() -> None:
    series = shown(GatewayMetrics().text(view_of(held=None, tables=TablesSeen(Clock()))))
    unknown = {"held_generation", "table_age_seconds", "source_age_seconds", "slots"}
    unknown |= {f'servers{{state="{state}"}}' for state in SERVER_STATES}
    assert {name for name, value in series.items() if value != value} == unknown
