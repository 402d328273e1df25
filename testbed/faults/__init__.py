"""Faults between a client and the API server: an HTTPS proxy that a test tells what to break, where and how often.

It stands in front of the real server, so everything that is not broken on purpose is the real thing. See
:class:`FaultProxy` for its use, and `rules` for what can be matched and what can be done to it.
"""

from testbed.faults.proxy import Exchange, FaultProxy
from testbed.faults.rules import (
    Action,
    Answer,
    Call,
    Cut,
    Drop,
    Duplicate,
    Freeze,
    Hold,
    Latency,
    Match,
    Page,
    Reorder,
    ResetAfter,
    ResetBefore,
    Rule,
    StreamError,
    continuations,
    lists,
    writes,
)

__all__ = [
    "Action",
    "Answer",
    "Call",
    "Cut",
    "Drop",
    "Duplicate",
    "Exchange",
    "FaultProxy",
    "Freeze",
    "Hold",
    "Latency",
    "Match",
    "Page",
    "Reorder",
    "ResetAfter",
    "ResetBefore",
    "Rule",
    "StreamError",
    "continuations",
    "lists",
    "writes",
]
