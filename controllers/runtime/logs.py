"""JSON log lines that carry the object they are about.

The controller sets the context once per reconcile; every line logged below it, in whatever module, then has
``controller``, ``kind``, ``namespace``, ``name`` and ``reconcileID``. Text of HTTP client exceptions is never printed,
because theirs contains all headers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TextIO

from controllers.runtime.errors import ReconcileError

_context: ContextVar[Mapping[str, str]] = ContextVar("log_context", default=MappingProxyType({}))
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "settings"}
_UNSAFE_MODULES = ("kubernetes.", "aiohttp.", "httpx", "kopf.")


@contextlib.contextmanager
def log_context(**fields: str) -> Iterator[None]:
    """Add fields to each line logged inside, in this task and those it starts."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def describe_error(error: BaseException) -> str:
    """Words for a log line: full for our own errors, type and status for those of HTTP clients."""
    if isinstance(error, ReconcileError):
        return str(error)
    name = type(error).__name__
    if type(error).__module__.startswith(_UNSAFE_MODULES):
        status = getattr(error, "status", None)
        return f"{name} (status {status})" if status else name
    return f"{name}: {error}" if str(error) else name


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the context, and whatever came as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_context.get(),
        }
        line.update((key, value) for key, value in record.__dict__.items() if key not in _STANDARD and key[0] != "_")
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = describe_error(error)
            line["stack"] = "".join(traceback.format_tb(error.__traceback__))
        return json.dumps(line, default=str, ensure_ascii=False)


def configure_logging(*, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send every logger's lines as JSON to ``stream`` (standard error); the watch library speaks from WARNING up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("kopf", "aiohttp", "httpx", "httpcore", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))
