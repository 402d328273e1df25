"""Turns what the API server or the network answered into Transient, Conflict or Terminal.

The status code alone is not enough: a 409 has three meanings, and server-side apply answers an unknown field with
HTTP 500, which a plain "retry all 5xx" would repeat for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from controllers.runtime.errors import (
    AlreadyExists,
    Conflict,
    Expired,
    FieldManagerConflict,
    Forbidden,
    Gone,
    KindMissing,
    ReconcileError,
    SchemaMismatch,
    Terminal,
    Transient,
)

NAMESPACE_TERMINATING = "NamespaceTerminating"
BAD_ANSWER = "BadAnswer"
"""Reason of an answer that says that all went well and is none of an API server."""
_LONGEST_MESSAGE = 400
_SCHEMA_HINTS = ("field not declared in schema", "failed to create typed patch object", "duplicate entries for key")
_TRANSIENT = {401: "Unauthorized", 408: "RequestTimeout", 429: "TooManyRequests"}


def classify(status: int, body: str, headers: Mapping[str, str], *, call: str) -> ReconcileError:
    """The exception for an answer of 400 or above.

    Parameters
    ----------
    status, body, headers
        The answer; of the headers only Retry-After is read, and none is ever put into a message.
    call
        "VERB resource namespace/name", for the message.
    """
    answer = _parse(body)
    reason = str(answer.get("reason") or "")
    message = f"{call}: {_shorten(str(answer.get('message') or body or status))}"
    if status == 409:
        return _conflict(reason, message, answer)
    if status == 404:
        return _not_found(message, answer)
    if status == 403:
        return _forbidden(message, answer)
    if status == 410:
        return Expired("Expired", message)
    if status in _TRANSIENT or status >= 500:
        if status == 500 and any(hint in message for hint in _SCHEMA_HINTS):
            return SchemaMismatch("SchemaMismatch", message)
        name = _TRANSIENT.get(status) or reason or f"Http{status}"
        return Transient(name, message, retry_after=_retry_after(headers, answer))
    return Terminal(reason or f"Http{status}", message)


def decoded(text: str, *, call: str) -> dict[str, Any]:
    """The object in an answer below 400.

    Raises
    ------
    Transient
        When there is none: whatever stands between us and the API server may say "OK" and something else.
    """
    try:
        answer = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Transient(BAD_ANSWER, f"{call}: the answer is no object of an API server")
    return answer


def from_network(error: Exception, *, call: str) -> Transient:
    """The exception for a request that got no answer; aiohttp's and the builtin TimeoutError are expected here."""
    if isinstance(error, TimeoutError):
        return Transient("Timeout", f"{call}: no answer in time")
    if isinstance(error, aiohttp.ClientConnectorError):
        return Transient("ConnectFailed", f"{call}: {_shorten(str(error.os_error))}")
    return Transient("ConnectionLost", f"{call}: {type(error).__name__}")


def _conflict(reason: str, message: str, answer: Mapping[str, Any]) -> Conflict:
    causes = (answer.get("details") or {}).get("causes") or ()
    fields = tuple(str(cause.get("field", "")) for cause in causes if cause.get("reason") == "FieldManagerConflict")
    if fields:
        return FieldManagerConflict(message, fields)
    if reason == "AlreadyExists":
        return AlreadyExists(reason, message)
    return Conflict(reason or "Conflict", message)


def _forbidden(message: str, answer: Mapping[str, Any]) -> ReconcileError:
    """A namespace that is being deleted takes nothing new: no role is missing, and its objects are on their way out."""
    causes = (answer.get("details") or {}).get("causes") or ()
    if any(cause.get("reason") == NAMESPACE_TERMINATING for cause in causes):
        return Gone(NAMESPACE_TERMINATING, message)
    return Forbidden("Forbidden", message)


def _not_found(message: str, answer: Mapping[str, Any]) -> ReconcileError:
    details = answer.get("details") or {}
    if details.get("name"):
        return Gone("NotFound", message)
    return KindMissing("KindMissing", message)


def _retry_after(headers: Mapping[str, str], answer: Mapping[str, Any]) -> float | None:
    value = headers.get("Retry-After") or (answer.get("details") or {}).get("retryAfterSeconds")
    try:
        return max(0.0, float(value)) if value is not None else None
    except (TypeError, ValueError):
        return None  # an HTTP date: nobody sends one here, and our own back-off is good enough


def _parse(body: str) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"
