"""HAProxy's runtime API over one persistent connection in prompt mode.

Commands are pipelined: up to a window of them is on its way while the answers are read in order, one prompt each. Every answer
is bounded, must arrive in time, and is checked by the caller's words, since HAProxy reports failures in plain text only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

_PROMPT = b"\n> "
_WINDOW = 64
_MAX_LINE_BYTES = 4096
_READ_BYTES = 262_144


class RuntimeUnavailable(Exception):
    """HAProxy does not answer on its runtime API: not running, restarting, stuck, or the connection broke."""


class CommandRefused(Exception):
    """HAProxy answered a command with something else than success; the message holds both."""


class RuntimeApi:
    """One connection; not for two tasks at once.

    Parameters
    ----------
    path
        Unix socket of `stats socket ... level admin`.
    timeout_s
        How long one answer may take.
    max_answer_bytes
        Longest answer that is read; a table of 100 000 users has about ten megabytes.
    """

    def __init__(self, path: Path, *, timeout_s: float = 5.0, max_answer_bytes: int = 64 * 2**20) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._rest = bytearray()

    @property
    def connected(self) -> bool:
        """Whether the last exchange left the connection usable."""
        return self._streams is not None

    async def connect(self) -> None:
        """Open the connection and enter prompt mode; nothing happens when it is open.

        Raises
        ------
        RuntimeUnavailable
            When nobody answers there.
        """
        if self._streams is not None:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                self._streams = await asyncio.open_unix_connection(str(self._path), limit=_READ_BYTES)
                self._rest = bytearray()
                self._streams[1].write(b"prompt\n")
                await self._answer(self._streams[0])
        except (OSError, EOFError, TimeoutError) as error:
            await self.close()
            raise RuntimeUnavailable(f"{self._path}: {type(error).__name__} {error}".rstrip()) from error

    async def close(self) -> None:
        """Close the connection, if one is open."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()

    async def ask(self, command: str) -> str:
        """Return the answer to one command, without the prompt.

        Raises
        ------
        RuntimeUnavailable
            When the connection broke or no answer came in time; the command may have been carried out.
        """
        return (await self.ask_all([command]))[0]

    async def ask_all(self, commands: Sequence[str]) -> list[str]:
        """Return the answers to commands, in order; a window of them is on its way at any time.

        Raises
        ------
        RuntimeUnavailable
            As `ask`; some commands may have been carried out, so what HAProxy holds must be read again.
        ValueError
            When a command is not one line, or holds a semicolon, which would be two.
        """
        lines = [_line(command) for command in commands]
        await self.connect()
        assert self._streams is not None
        reader, writer = self._streams
        answers: list[str] = []
        try:
            sent = 0
            while len(answers) < len(lines):
                if sent < len(lines) and sent - len(answers) <= _WINDOW // 2:
                    more = lines[sent : len(answers) + _WINDOW]
                    writer.write(b"".join(more))
                    sent += len(more)
                async with asyncio.timeout(self._timeout_s):
                    await writer.drain()
                    answers.append(await self._answer(reader))
        except (OSError, EOFError, TimeoutError) as error:
            await self.close()
            raise RuntimeUnavailable(
                f"{self._path}: {type(error).__name__} after {len(answers)} of {len(lines)} answers"
            ) from error
        except BaseException:  # cancelled half-way: the next answer would be another command's
            await self.close()
            raise
        return answers

    async def expect(self, commands: Sequence[str], *, success: str = "") -> None:
        """Send commands and hold each answer against `success` (a part of it; empty for no answer at all).

        Raises
        ------
        CommandRefused
            With the first answer that is not success; the others were sent as well.
        RuntimeUnavailable
            As `ask_all`.
        """
        for command, answer in zip(commands, await self.ask_all(commands), strict=True):
            if (success not in answer) if success else bool(answer):
                raise CommandRefused(f"{command!r}: {answer[:300]!r}")

    async def _answer(self, reader: asyncio.StreamReader) -> str:
        start = 0
        while (end := self._rest.find(_PROMPT, start)) < 0:
            start = max(0, len(self._rest) - len(_PROMPT))
            if len(self._rest) > self._max_answer_bytes:
                raise EOFError(f"an answer longer than {self._max_answer_bytes} bytes")
            chunk = await reader.read(_READ_BYTES)
            if not chunk:
                raise EOFError("closed")
            self._rest += chunk
        if end > self._max_answer_bytes:
            raise EOFError(f"an answer of {end} bytes")
        answer = bytes(self._rest[:end])
        del self._rest[: end + len(_PROMPT)]
        return answer.decode(errors="replace").strip()


def _line(command: str) -> bytes:
    line = command.encode()
    if b"\n" in line or b";" in line or len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"{command[:80]!r}: a command is one line of at most {_MAX_LINE_BYTES} bytes and holds no semicolon")
    return line + b"\n"
