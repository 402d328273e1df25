"""Messages in, answers out, without a transport: what each says, by parsing it, and what hostile ones do."""

import random
import re
from pathlib import Path

import msgspec
import pytest
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from contract.keys import SLOTS, user_key
from contract.table import InstanceState, RoutingTable, TableInstance, TableLimits, pack_slots
from dataplane.picker import messages
from dataplane.picker.chooser import PickLimits
from dataplane.picker.exchange import Edge, Exchange
from dataplane.picker.metrics import PickerMetrics
from dataplane.picker.picker import Picker

POOL_KEY = b"0123456789abcdef"
DUPLEX = ProcessingMode.FULL_DUPLEX_STREAMED


def picker(*, limits: PickLimits | None = None, **edge: object) -> Picker:
    made = Picker(
        Edge(pool_key=POOL_KEY, **edge),  # type: ignore[arg-type]  # names and types are the test's own
        limits=limits or PickLimits(),
        monotonic_s=lambda: 0.0,
        rng=random.Random(1),
    )
    rows = [
        TableInstance(name=n, uid=f"u{n}", address=f"10.0.0.{at}:80", weight_percent=100, state=InstanceState.READY)
        for at, n in enumerate("abc", 1)
    ]
    made.offer(RoutingTable(generation=1, instances=rows, slots=pack_slots([slot % 3 for slot in range(SLOTS)])))
    return made


def request(**headers: bytes) -> "ext_proc.ProcessingRequest":
    message = ext_proc.ProcessingRequest(request_headers=ext_proc.HttpHeaders())
    for name, value in headers.items():
        message.request_headers.headers.headers.add(key=name.replace("_", "-"), raw_value=value)
    return message


def answered(exchange: Exchange, message: object) -> "ext_proc.ProcessingResponse":
    raw = exchange.answer(message.SerializeToString())  # type: ignore[attr-defined]  # protobuf has no types
    assert raw is not None
    return ext_proc.ProcessingResponse.FromString(raw)


def test_header_and_metadata_name_the_same_endpoints() -> None:
    answer = answered(picker(key_id="k7").exchange(), request(x_user_id=b"ann", accept=b"*/*"))
    mutation = answer.request_headers.response.header_mutation
    headers = {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}
    named = answer.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]
    assert headers["x-gateway-destination-endpoint"] == named
    assert len(set(named.split(","))) == 3
    assert headers["x-gr-user-key"] == user_key(POOL_KEY, "ann")
    assert headers["x-gr-key-id"] == "k7"
    assert "x-user-id" in mutation.remove_headers
    assert all(each.append_action == each.OVERWRITE_IF_EXISTS_OR_ADD for each in mutation.set_headers)


@pytest.mark.parametrize(
    ("headers", "key_id", "goes_on"),
    [
        ({"x_user_id": b"ann"}, "", None),
        ({"x_user_id": b"ann", "x_gr_user_key": b"0" * 32}, "", None),
        ({}, "", None),
        ({"x_gr_user_key": b"0" * 32}, "", "theirs"),
        ({"x_user_id": b"ann"}, "ours", "ours"),
        ({}, "ours", None),
    ],
)
def test_a_callers_name_of_a_key_goes_on_with_the_callers_key_alone(
    headers: dict[str, bytes], key_id: str, goes_on: str | None
) -> None:
    answer = answered(picker(key_id=key_id).exchange(), request(x_gr_key_id=b"theirs", **headers))
    mutation = answer.request_headers.response.header_mutation
    kept = None if "x-gr-key-id" in mutation.remove_headers else "theirs"
    said = {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}
    assert said.get("x-gr-key-id", kept) == goes_on


def test_bytes_that_are_no_unicode_are_hashed_as_they_came() -> None:
    answer = answered(picker().exchange(), request(x_user_id=b"\xff\xfe\x80"))
    headers = {each.header.key: each.header.raw_value for each in answer.request_headers.response.header_mutation.set_headers}
    assert headers["x-gr-user-key"].decode() == user_key(POOL_KEY, b"\xff\xfe\x80")


def test_the_instance_that_really_served_is_named_and_holds_the_load() -> None:
    one = picker()
    exchange = one.exchange()
    first, second, _ = answered(exchange, request(x_user_id=b"ann")).dynamic_metadata["envoy.lb"][messages.DESTINATION].split(",")
    here, there = (one.chooser.fleet.by_address[each] for each in (first, second))
    assert (here.in_flight, there.in_flight) == (1, 0)
    served = ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders())
    served.metadata_context.filter_metadata["envoy.lb"].update({messages.SERVED: second})
    mutation = answered(exchange, served).response_headers.response.header_mutation
    assert [(each.header.key, each.header.raw_value.decode()) for each in mutation.set_headers] == [("x-gr-instance", there.name)]
    assert (here.in_flight, there.in_flight, one.counts.retried) == (0, 1, 1)
    exchange.close()
    assert (here.in_flight, there.in_flight, one.counts.streams) == (0, 0, 0)


def test_an_answer_of_the_first_that_was_named_is_no_retry_nor_is_one_to_a_request_that_was_not_told() -> None:
    one = picker()
    exchange = one.exchange()
    first, *_ = answered(exchange, request(x_user_id=b"ann")).dynamic_metadata["envoy.lb"][messages.DESTINATION].split(",")
    served = ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders())
    served.metadata_context.filter_metadata["envoy.lb"].update({messages.SERVED: first})
    answered(exchange, served)
    assert (one.chooser.fleet.by_address[first].in_flight, one.counts.retried) == (1, 0)
    late = one.exchange()
    mutation = answered(late, served).response_headers.response.header_mutation
    assert [each.header.key for each in mutation.set_headers] == ["x-gr-instance"]
    late.close()
    assert (one.chooser.fleet.by_address[first].in_flight, one.counts.retried) == (1, 0)


def test_an_instance_that_served_though_it_was_not_among_those_named_is_named_then() -> None:
    one = picker(limits=PickLimits(endpoints=1))
    exchange = one.exchange()
    here = one.chooser.fleet.by_address[
        answered(exchange, request(x_user_id=b"ann")).dynamic_metadata["envoy.lb"][messages.DESTINATION]
    ]
    there = next(each for each in one.chooser.fleet.members if each is not here)
    served = ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders())
    served.metadata_context.filter_metadata["envoy.lb"].update({messages.SERVED: there.address})
    mutation = answered(exchange, served).response_headers.response.header_mutation
    assert [each.header.raw_value.decode() for each in mutation.set_headers] == [there.name]
    assert (here.in_flight, there.in_flight, one.counts.retried) == (0, 1, 1)


def test_an_address_that_no_table_has_is_named_as_nobody() -> None:
    one = picker()
    exchange = one.exchange()
    answered(exchange, request(x_user_id=b"ann"))
    served = ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders())
    served.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "192.0.2.1:1"})
    assert not answered(exchange, served).response_headers.response.header_mutation.set_headers
    assert {each.in_flight for each in one.chooser.fleet.members} == {0}


@pytest.mark.parametrize("side", ["request_body", "response_body"])
def test_a_piece_of_a_body_comes_back_as_it_was_where_the_gateway_streams_it_and_is_let_pass_where_not(side: str) -> None:
    body = ext_proc.HttpBody(body=b"piece", end_of_stream=True)
    message = ext_proc.ProcessingRequest(**{side: body})
    streamed = getattr(answered(picker().exchange(), message), side).response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (b"piece", True)
    message.protocol_config.request_body_mode = message.protocol_config.response_body_mode = ProcessingMode.BUFFERED
    answer = answered(picker().exchange(), message)
    assert answer.WhichOneof("response") == side
    assert not getattr(answer, side).response.HasField("body_mutation")


@pytest.mark.parametrize("side", ["request_trailers", "response_trailers"])
def test_trailers_pass(side: str) -> None:
    message = ext_proc.ProcessingRequest(**{side: ext_proc.HttpTrailers()})
    assert answered(picker().exchange(), message).WhichOneof("response") == side


def test_a_gateway_that_only_observes_gets_no_answer() -> None:
    message = request(x_user_id=b"ann")
    message.observability_mode = True
    assert picker().exchange().answer(message.SerializeToString()) is None


@pytest.mark.parametrize("form", [["10.0.0.2:80"], "10.0.0.2:80", " 10.0.0.2:80 ,10.9.9.9:1"])
def test_a_subset_is_a_list_or_a_string_with_commas(form: object) -> None:
    message = request(x_user_id=b"ann")
    message.metadata_context.filter_metadata[messages.SUBSET_NAMESPACE].update({messages.SUBSET: form})
    answer = answered(picker().exchange(), message)
    assert answer.dynamic_metadata["envoy.lb"][messages.DESTINATION] == "10.0.0.2:80"


def test_an_empty_subset_is_503_and_other_metadata_says_nothing() -> None:
    message = request(x_user_id=b"ann")
    message.metadata_context.filter_metadata[messages.SUBSET_NAMESPACE].update({"other": 1})
    assert answered(picker().exchange(), message).WhichOneof("response") == "request_headers"
    message.metadata_context.filter_metadata[messages.SUBSET_NAMESPACE].update({messages.SUBSET: []})
    assert answered(picker().exchange(), message).immediate_response.status.code == 503


def test_choices_are_not_honoured_where_that_is_turned_off() -> None:
    def first(one: Picker) -> str:
        answer = answered(one.exchange(), request(x_user_id=b"ann", x_gr_instance=b"c"))
        return str(answer.dynamic_metadata["envoy.lb"][messages.DESTINATION].split(",")[0])

    assert first(picker()) == "10.0.0.3:80"
    owner = first(picker(honour_echo=False))
    assert owner == answered(picker().exchange(), request(x_user_id=b"ann")).dynamic_metadata["envoy.lb"][
        messages.DESTINATION
    ].split(",")[0]  # fmt: skip


@given(st.binary(max_size=200))
def test_whatever_comes_is_answered_or_refused_and_leaves_nothing_in_flight(raw: bytes) -> None:
    one = SHARED
    exchange = one.exchange()
    try:
        exchange.answer(raw)
    except DecodeError:
        pass
    finally:
        exchange.close()
    assert {each.in_flight for each in one.chooser.fleet.members} == {0}


SHARED = picker()


def test_metrics_count_picks_by_what_chose_and_hold_no_user() -> None:
    one = picker()
    one.set_users({user_key(POOL_KEY, "hot"): "ub"})
    for headers in ({"x_user_id": b"ann"}, {"x_user_id": b"hot"}, {"x_user_id": b"ann", "x_gr_instance": b"c"}, {}):
        one.exchange().answer(request(**headers).SerializeToString())
    text = PickerMetrics().text(one).decode()
    for by in ("slot", "hot", "choice", "anywhere"):
        assert f'grfleet_picker_picks_total{{by="{by}"}} 1' in text
    assert user_key(POOL_KEY, "ann") not in text


def test_nothing_but_the_picker_imports_what_grpc_needs() -> None:
    root = Path(__file__).resolve().parents[3]
    foreign = re.compile(r"^\s*(?:from|import) (grpc|grpc_health|envoy|hpack|google\.protobuf|dataplane\.picker)\b", re.M)
    rooms = ("contract", "policies", "crds", "controllers", "dataplane", "engines", "simulator", "training", "grfleet", "charts")
    files = [path for room in rooms for path in (root / room).rglob("*.py") if "picker" not in path.parts]
    assert len(files) > 100
    assert [path for path in files if foreign.search(path.read_text())] == []
    processor = root / "dataplane" / "picker"
    assert not [path for path in processor.glob("*.py") if re.search(r"^import grpc\b", path.read_text(), re.M)]


def test_the_key_comes_and_goes_in_the_header_that_the_table_names_unless_a_flag_names_one() -> None:
    key = user_key(POOL_KEY, "ann")
    for edge, header in (({}, "x-member"), ({"key_header": "x-flag"}, "x-flag")):
        one = picker(**edge)
        table = one.table
        assert table is not None
        one.offer(msgspec.structs.replace(table, generation=2, limits=TableLimits(key_header="x-member")))
        for headers in ({"x_user_id": b"ann"}, {header.replace("-", "_"): key.encode()}):
            mutation = answered(one.exchange(), request(**headers)).request_headers.response.header_mutation
            assert {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}[header] == key
            assert "x-gr-user-key" in mutation.remove_headers
        nobody = answered(one.exchange(), request(x_gr_user_key=key.encode())).request_headers.response.header_mutation
        assert header in nobody.remove_headers, "a key in another header is nobody's"
