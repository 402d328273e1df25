"""What a picker keeps for all its peers together, bounded for the process: what is unread, unsent, and the streams themselves.

Each connection has bounds of its own, but a thousand of them may be open. Where all together keep too much, whoever keeps most
gives way, not whoever happens to come last.
"""

from __future__ import annotations

from collections.abc import Callable

MOST = 192 << 20
STREAM_BYTES = 1024
"""What an open stream costs, whatever it does."""


class Account:
    """Bytes kept for all connections together; `relieve` is called when they are more than `MOST`, and frees some."""

    def __init__(self) -> None:
        self.total = 0
        self.relieve: Callable[[], None] = lambda: None

    def add(self, more: int) -> None:
        """Keep so many bytes more, or less."""
        self.total += more
        if more > 0 and self.total > MOST:
            self.relieve()
