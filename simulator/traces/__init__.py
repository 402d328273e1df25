"""Recorded traffic as typed events: public traces, and one documented format for a team's own.

Every loader treats its file as hostile: sizes, counts and ranges are bounded, and the first bad value raises a `TraceError` that
names file, line and field. What a trace can and cannot stand for in recommendation traffic is written down in traces/README.md.
"""

from simulator.traces.azure import load_azure
from simulator.traces.events import TraceError, TraceEvent, load_events
from simulator.traces.mooncake import MooncakeRecord, load_mooncake, user_events

__all__ = ["MooncakeRecord", "TraceError", "TraceEvent", "load_azure", "load_events", "load_mooncake", "user_events"]
