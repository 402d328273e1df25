"""The messages of external processing: what of a request matters to a pick, and the answers, ready as bytes.

An answer is made of templates that protobuf itself wrote: two serialised messages one after the other are one message with the
fields of both, so what is the same for every request to an endpoint, and what is the same for every user but the key, are written
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.type.v3 import http_status_pb2
from google.protobuf import struct_pb2

from contract.table import INSTANCE_HEADER, KEY_ID_HEADER, USER_KEY_HEADER

DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
CHOICE_NAMESPACE, SUBSET_NAMESPACE = "envoy.lb", "envoy.lb.subset_hint"
FULL_DUPLEX = 4
_ADDRESS_ATTRIBUTE = "upstream.address"
_ANY_KEY = "0" * 32

parse = ext_proc.ProcessingRequest.FromString
"""Bytes to `ProcessingRequest`; raises google.protobuf.message.DecodeError."""


@lru_cache(maxsize=8192)
def destination(addresses: str) -> bytes:
    """Return the part of an answer to request headers that names the endpoints, `ip:port,ip:port`, in header and metadata."""
    inner = struct_pb2.Struct()
    inner.update({DESTINATION: addresses})
    metadata = struct_pb2.Struct()
    metadata.fields[CHOICE_NAMESPACE].struct_value.CopyFrom(inner)
    return _serialised(ext_proc.ProcessingResponse(request_headers=_headers({DESTINATION: addresses}), dynamic_metadata=metadata))


class UserHeaders:
    """The part of an answer to request headers that hands on who the user is: the key, never the id.

    Parameters
    ----------
    id_header
        Header with the raw id; it goes no further.
    key_header
        Header that carries the key.
    """

    def __init__(self, *, id_header: str, key_id: str, key_header: str = USER_KEY_HEADER) -> None:
        names = {KEY_ID_HEADER: key_id} if key_id else {}
        gone = [name for name in dict.fromkeys((id_header, INSTANCE_HEADER, USER_KEY_HEADER)) if name != key_header]
        unnamed = [] if key_id else [KEY_ID_HEADER]
        self._of_id = _around_key({key_header: _ANY_KEY, **names}, [*gone, *unnamed])
        self._of_caller = _around_key({key_header: _ANY_KEY, **names}, gone)
        self._without = _serialised(ext_proc.ProcessingResponse(request_headers=_headers({}, [*gone, key_header, KEY_ID_HEADER])))

    def of(self, user_key: str, *, of_id: bool) -> bytes:
        """Return the part for one user, empty for a request without.

        What a caller says of the key's name goes on only beside a key of the caller's own, not `of_id`.
        """
        if not user_key:
            return self._without
        before, after = self._of_id if of_id else self._of_caller
        return before + user_key.encode() + after


def _around_key(headers: dict[str, str], gone: list[str]) -> tuple[bytes, bytes]:
    before, after = _serialised(ext_proc.ProcessingResponse(request_headers=_headers(headers, gone))).split(_ANY_KEY.encode())
    return before, after


@lru_cache(maxsize=8192)
def served_by(name: str) -> bytes:
    """Return the answer to response headers: the name of the instance goes back to the caller."""
    return _serialised(ext_proc.ProcessingResponse(response_headers=_headers({INSTANCE_HEADER: name} if name else {})))


def refusal(status: int, why: str) -> bytes:
    """Return the answer that ends a request."""
    immediate = ext_proc.ImmediateResponse(
        status=http_status_pb2.HttpStatus(code=status),
        headers=_mutation({"content-type": "text/plain", **({"retry-after": "1"} if status == 429 else {})}),
        body=f"{why}\n".encode(),
        details=f"grfleet_picker_{status}",
    )
    return _serialised(ext_proc.ProcessingResponse(immediate_response=immediate))


def body_unchanged(body: Any, *, response: bool, streamed: bool) -> bytes:
    """Return the answer to a piece of a body: the piece itself where the gateway sends what it gets back, else 'go on'."""
    common = None
    if streamed:
        piece = ext_proc.StreamedBodyResponse(body=body.body, end_of_stream=body.end_of_stream)
        common = ext_proc.CommonResponse(body_mutation=ext_proc.BodyMutation(streamed_response=piece))
    answer = ext_proc.BodyResponse(response=common)
    if response:
        return _serialised(ext_proc.ProcessingResponse(response_body=answer))
    return _serialised(ext_proc.ProcessingResponse(request_body=answer))


REQUEST_TRAILERS = ext_proc.ProcessingResponse(request_trailers=ext_proc.TrailersResponse()).SerializeToString()
RESPONSE_TRAILERS = ext_proc.ProcessingResponse(response_trailers=ext_proc.TrailersResponse()).SerializeToString()


def header_values(message: Any) -> dict[str, bytes]:
    """Return the headers of an `HttpHeaders`; of one that comes more than once the last."""
    return {each.key: each.raw_value or each.value.encode() for each in message.headers.headers}


def subset_of(message: Any) -> frozenset[str] | None:
    """Return the addresses that a `ProcessingRequest` lets choose from, None where it says nothing of them.

    A list of strings by the protocol; a string with commas, as some gateways send, means the same.
    """
    hints = message.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in hints:
        return None
    fields = hints[SUBSET_NAMESPACE].fields
    if SUBSET not in fields:
        return None
    value = fields[SUBSET]
    if value.WhichOneof("kind") == "string_value":
        return frozenset(filter(None, (each.strip() for each in value.string_value.split(","))))
    return frozenset(each.string_value for each in value.list_value.values if each.string_value)


def served_address(message: Any) -> str:
    """Return the address that served, as a `ProcessingRequest` with response headers says; empty where it does not."""
    metadata = message.metadata_context.filter_metadata
    if CHOICE_NAMESPACE in metadata and SERVED in metadata[CHOICE_NAMESPACE].fields:
        return str(metadata[CHOICE_NAMESPACE].fields[SERVED].string_value)
    for attributes in message.attributes.values():
        if _ADDRESS_ATTRIBUTE in attributes.fields:
            return str(attributes.fields[_ADDRESS_ATTRIBUTE].string_value)
    return ""


def _headers(values: dict[str, str], removed: Sequence[str] = ()) -> Any:
    return ext_proc.HeadersResponse(response=ext_proc.CommonResponse(header_mutation=_mutation(values, removed)))


def _mutation(values: dict[str, str], removed: Sequence[str] = ()) -> Any:
    overwrite = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    options = [
        base_pb2.HeaderValueOption(header=base_pb2.HeaderValue(key=name, raw_value=value.encode()), append_action=overwrite)
        for name, value in values.items()
    ]
    return ext_proc.HeaderMutation(set_headers=options, remove_headers=removed)


def _serialised(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))
