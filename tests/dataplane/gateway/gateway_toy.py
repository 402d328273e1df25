"""A toy instance: answers every request with its name and the user key it was given. Program: `gateway_toy.py NAME PORT`."""

import asyncio
import contextlib
import json
import ssl
import sys


class Toy:
    """One HTTP/1.1 server on loopback, with a delay, and a hard end that cuts every connection."""

    def __init__(self, name: str, *, delay_s: float = 0.0) -> None:
        self.name = name
        self.delay_s = delay_s
        self.port = 0
        self.served = 0
        self.attempts: list[str] = []
        self.drop_first_byte = False
        self.tls: ssl.SSLContext | None = None
        self.half_body = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> "Toy":
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", port or self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def kill(self) -> None:
        """End as a killed process does: nothing listens, every connection is reset."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                headers = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
                }
                await reader.readexactly(int(headers.get("content-length", 0)))
                self.attempts.append(headers.get("x-request", ""))
                if self.drop_first_byte:
                    break
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                self.served += 1
                body = json.dumps({"me": self.name, "headers": headers}).encode()
                answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
                writer.write(answer[: -len(body) // 2] if self.half_body else answer)
                await writer.drain()
                if self.half_body:
                    break
        self._writers.discard(writer)
        self._tasks.discard(task)
        writer.close()


async def _main() -> None:
    toy = await Toy(sys.argv[1]).start(int(sys.argv[2]))
    sys.stdout.write(f"{toy.port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
