"""HAProxy's runtime API over one persistent connection in prompt mode.

Commands are pipelined: a block of them is on its way while the answers of the one before are read, in order, one prompt each.
Every answer is bounded, must arrive in time, and is checked by the caller's words, since HAProxy reports failures in plain text
only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

_PROMPT = b"\n> "
_BLOCK = 512
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
        How long HAProxy may be silent while answers are due.
    max_answer_bytes
        Longest answer that is read; a table of 100 000 users has about ten megabytes.
    """

    def __init__(self, path: Path, *, timeout_s: float = 5.0, max_answer_bytes: int = 64 * 2**20) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._rest = bytearray()
        self._came = 0

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
                await self._answers(self._streams[0], 1)
        except (OSError, EOFError, TimeoutError) as error:
            self._abort()
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
        """Return the answers to commands, in order; one or two blocks of them are on their way at any time.

        Raises
        ------
        RuntimeUnavailable
            As `ask`; some commands may have been carried out, so what HAProxy holds must be read again.
        ValueError
            When a command is not one line, or holds a semicolon, which would be two.
        """
        blocks = [_lines(commands[start : start + _BLOCK]) for start in range(0, len(commands), _BLOCK)]
        await self.connect()
        assert self._streams is not None
        reader, writer = self._streams
        answers: list[str] = []
        try:
            for number, block in enumerate(blocks):
                writer.write(block)
                answers += await self._answers(reader, number * _BLOCK - len(answers))
            answers += await self._answers(reader, len(commands) - len(answers))
            if len(answers) > len(commands):
                raise EOFError("an answer that nobody asked for")
        except (OSError, EOFError, TimeoutError) as error:
            self._abort()
            raise RuntimeUnavailable(
                f"{self._path}: {type(error).__name__} after {len(answers) + self._came} of {len(commands)} answers"
            ) from error
        except BaseException:  # cancelled half-way: the next answer would be another command's
            self._abort()
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
        answers = await self.ask_all(commands)
        if not success and not any(answers):
            return
        for command, answer in zip(commands, answers, strict=True):
            if (success not in answer) if success else bool(answer):
                raise CommandRefused(f"{command!r}: {answer[:300]!r}")

    async def _answers(self, reader: asyncio.StreamReader, count: int) -> list[str]:
        """The next `count` answers or more; some must come within the time limit, again and again."""
        rest = self._rest
        last = self._came = 0  # where the answer that is not whole yet begins, and how many are
        seen = 0
        while True:
            if found := rest.count(_PROMPT, seen):
                self._came += found
                last = rest.rfind(_PROMPT) + len(_PROMPT)
            if len(rest) - last > self._max_answer_bytes:
                raise EOFError(f"an answer longer than {self._max_answer_bytes} bytes")
            if self._came >= count:
                break
            seen = max(last, len(rest) - len(_PROMPT) + 1)
            async with asyncio.timeout(self._timeout_s):
                chunk = await reader.read(_READ_BYTES)
            if not chunk:
                raise EOFError("closed")
            rest += chunk
        whole = bytes(rest[:last]).split(_PROMPT)[:-1]
        del rest[:last]
        if max(map(len, whole), default=0) > self._max_answer_bytes:
            raise EOFError(f"an answer longer than {self._max_answer_bytes} bytes")
        self._came = 0
        return [answer.decode(errors="replace").strip() if answer else "" for answer in whole]

    def _abort(self) -> None:
        """Hang up at once: what is not sent yet must not arrive behind the back of the next connection."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()


def _lines(commands: Sequence[str]) -> bytes:
    """A block of commands as it is sent; the checks are those of one command, made for all at once."""
    text = "\n".join(commands)
    wrong = ";" in text or text.count("\n") != len(commands) - 1
    if wrong or max(map(len, commands)) > _MAX_LINE_BYTES or not text.isascii():
        return b"".join(map(_line, commands))
    return text.encode() + b"\n"


def _line(command: str) -> bytes:
    line = command.encode()
    if b"\n" in line or b";" in line or len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"{command[:80]!r}: a command is one line of at most {_MAX_LINE_BYTES} bytes and holds no semicolon")
    return line + b"\n"


async def process_of(api: RuntimeApi) -> str:
    """Return the id of the process that answers.

    Raises
    ------
    RuntimeUnavailable
        When none does, or it does not say.
    """
    for line in (await api.ask("show info")).splitlines():
        if line.startswith("Pid: ") and line[5:].strip().isdigit():
            return line[5:].strip()
    raise RuntimeUnavailable("the process that answers does not say its id")


async def reload_haproxy(master_socket: Path, *, timeout_s: float = 5.0) -> None:
    """Ask HAProxy's master to start a new process on the files as they are now; what came of it is seen in the runtime API.

    Raises
    ------
    RuntimeUnavailable
        When the master does not take the command.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(str(master_socket))
            try:
                writer.write(b"reload\n")
                await writer.drain()
                await reader.read(_MAX_LINE_BYTES)  # 2.6 hangs up, 2.8 says how it went
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise RuntimeUnavailable(f"{master_socket}: {type(error).__name__} {error}".rstrip()) from error
