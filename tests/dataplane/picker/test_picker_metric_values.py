"""Every number that a picker shows is the one that its name says, in a state in which no two of a kind are alike."""

import random

import msgspec
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from picker_world import POOL_KEY, row, table

from contract.errors import ProtocolViolation
from dataplane.picker.chooser import PickLimits
from dataplane.picker.exchange import Edge, Exchange
from dataplane.picker.metrics import PickerMetrics
from dataplane.picker.picker import Picker


class Scene:
    """A picker with two instances, whose requests stay open until they are closed; each may have three."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.picker = Picker(
            Edge(pool_key=POOL_KEY),
            limits=PickLimits(most_in_flight=3),
            monotonic_s=lambda: self.now_s,
            rng=random.Random(1),
        )
        self.picker.offer(table(7, [row("a", 81), row("b", 82)]))

    def ask(self, name: str = "") -> Exchange:
        """Open a request for the instance of this name."""
        exchange = self.picker.exchange()
        message = ext_proc.ProcessingRequest(request_headers=ext_proc.HttpHeaders())
        message.request_headers.headers.headers.add(key="x-user-id", raw_value=b"ann")
        message.request_headers.headers.headers.add(key="x-gr-instance", raw_value=name.encode())
        exchange.answer(message.SerializeToString())
        return exchange

    def shown(self) -> dict[str, float]:
        """Value by series, without the part of the name that all share."""
        text = PickerMetrics().text(self.picker).decode()
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name.removeprefix("grfleet_picker_"): float(value) for name, value in pairs}


def test_a_request_that_is_over_is_open_no_more_and_the_fullest_instance_is_shown_and_not_their_sum() -> None:
    scene = Scene()
    exchanges = [scene.ask(name) for name in ("a", "a", "b", "a")]
    series = scene.shown()
    assert (series["open_requests"], series["most_in_flight"], series["instances"]) == (4.0, 3.0, 2.0)
    for exchange in exchanges:
        exchange.close()
    series = scene.shown()
    assert (series["open_requests"], series["most_in_flight"]) == (0.0, 0.0)
    assert series['picks_total{by="choice"}'] == 4.0


def test_who_is_shed_for_load_is_not_counted_among_those_that_found_nobody() -> None:
    scene = Scene()
    for name in ("a", "a", "a", "b", "b", "b", "a", "b"):
        scene.ask(name)
    series = scene.shown()
    assert (series['refused_total{reason="shed"}'], series['refused_total{reason="no-endpoint"}']) == (2.0, 0.0)
    scene.picker.offer(table(8, []))
    scene.ask()
    series = scene.shown()
    assert (series['refused_total{reason="shed"}'], series['refused_total{reason="no-endpoint"}']) == (2.0, 1.0)


def test_tables_rows_and_users_are_each_counted_as_what_they_are() -> None:
    scene = Scene()
    scene.picker.tables.heard()
    scene.now_s = 5.0
    nowhere = msgspec.structs.replace(row("c", 83), address="gopher://nowhere")
    scene.picker.offer(table(9, [row("a", 81), row("b", 82), nowhere]))
    scene.picker.offer(table(8, [row("a", 81)]))
    scene.picker.offer(table(9, [row("a", 81)]))
    for _ in range(3):
        with pytest.raises(ProtocolViolation):
            scene.picker.offer(msgspec.structs.replace(table(10, [row("a", 81)]), slots="AAAA"))
    scene.picker.set_users({f"{number:032x}": "uid-a" for number in range(4)})
    scene.now_s = 12.0
    series = scene.shown()
    wanted = {"generation": 9.0, "table_age_seconds": 7.0, "source_age_seconds": 12.0, "hot_users": 4.0}
    wanted |= {"instances": 2.0, "refused_rows": 1.0}
    wanted |= {f'tables_total{{verdict="{verdict}"}}': 2.0 for verdict in ("taken", "stale")}
    wanted |= {'tables_total{verdict="broken"}': 3.0}
    assert {name: series[name] for name in wanted} == wanted
