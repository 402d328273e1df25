"""Recorded traffic: public traces, one documented format for a team's own log, and the file in which requests are kept.

Every loader treats its file as hostile: sizes, counts and ranges are bounded, and the first bad value raises a `TraceError` that
names file, line and field. What a trace can and cannot stand for in recommendation traffic is written down in docs/traces.md.
"""

from simulator.traces.azure import load_azure
from simulator.traces.event_log import DEFAULT_LAW, LogOptions, OnBad, read_event_log
from simulator.traces.events import TraceError, TraceEvent, load_events
from simulator.traces.log_file import is_request_log, load_request_log, save_request_log
from simulator.traces.mooncake import MooncakeRecord, load_mooncake, user_events
from simulator.traces.report import LoadReport

__all__ = [
    "DEFAULT_LAW",
    "LoadReport",
    "LogOptions",
    "MooncakeRecord",
    "OnBad",
    "TraceError",
    "TraceEvent",
    "is_request_log",
    "load_azure",
    "load_events",
    "load_mooncake",
    "load_request_log",
    "read_event_log",
    "save_request_log",
    "user_events",
]
