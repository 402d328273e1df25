"""One agent process: reads its files, opens its socket, starts the loop, says where it listens, and ends promptly on SIGTERM."""

import asyncio
import base64
import binascii
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contract.sockets import CannotListen
from dataplane import logs, memory
from dataplane.agent.engine_link import EngineLink
from dataplane.agent.intent import IntentBook
from dataplane.agent.loop import Agent
from dataplane.agent.server import route_of
from dataplane.http.server import serving
from dataplane.quiet_loop import QuietLoop

KEY_BYTES = 32
log = logging.getLogger("grfleet.agent")


class ConfigurationError(Exception):
    """A flag or a file it names cannot be used; the message names the flag."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line said; paths are read by `run`."""

    engine: str
    listen: str
    intent_key_file: str | None = None
    instance_uid: str | None = None
    namespace: str | None = None
    pod_uid: str | None = None
    engine_token_file: str | None = None
    log_level: str = "info"
    memory_seconds: float = 60.0


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT and return the exit code.

    Raises
    ------
    ConfigurationError
        Before anything is started.
    """
    key = read_public_key(settings.intent_key_file) if settings.intent_key_file is not None else None
    token = _read(settings.engine_token_file, "--engine-token-file").decode().strip() if settings.engine_token_file else None
    logs.configure(settings.log_level)
    if key is None:
        log.warning("intents are accepted without a signature")
    with asyncio.Runner(loop_factory=QuietLoop) as runner:
        return runner.run(_serve(settings, key=key, token=token))


async def _serve(settings: Settings, *, key: bytes | None, token: str | None) -> int:
    try:
        engine = EngineLink(settings.engine, token=token)
    except ValueError as error:
        raise ConfigurationError(f"--engine {error}") from error
    agent = Agent(
        engine=engine,
        intents=IntentBook(
            public_key=key,
            instance_uid=settings.instance_uid,
            namespace=settings.namespace,
            pod_uid=settings.pod_uid,
            renewed_key=partial(_renewed_key, settings.intent_key_file),
        ),
        start_id=f"{os.getpid()}-{time.time_ns():x}",
        wall_s=time.time,
        monotonic_s=time.monotonic,
        memory_ms=settings.memory_seconds * 1000.0,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with engine, serving(route_of(agent), settings.listen) as address:
            memory.settle()
            sys.stdout.write(json.dumps({"listen": address, "pid": os.getpid()}) + "\n")
            sys.stdout.flush()
            log.info("started", extra={"listen": address, "engine": settings.engine})
            rounds = asyncio.create_task(agent.run())
            await asyncio.wait({rounds, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
            rounds.cancel()
            log.info("stopping", extra={"decisions": agent.decisions.last_sequence})
    except CannotListen as error:
        raise ConfigurationError(f"--listen {error}") from error
    return 0


def _renewed_key(path: str | None) -> bytes | None:
    """The key as the file has it now; None, with a line in the log, when it holds none."""
    if path is None:
        return None
    try:
        return read_public_key(path)
    except ConfigurationError as error:
        log.warning("the key cannot be read anew: %s", error)
        return None


def read_public_key(path: str) -> bytes:
    """Return the 32 bytes of a key file written raw, in base64 or in hexadecimal.

    Raises
    ------
    ConfigurationError
        When the file cannot be read or is none of the three.
    """
    raw = _read(path, "--intent-key")
    if len(raw) == KEY_BYTES:
        return raw
    text = raw.strip()
    for decode in (bytes.fromhex, lambda line: base64.b64decode(line, validate=True)):
        try:
            key = decode(text.decode("ascii"))
        except (ValueError, binascii.Error):
            continue
        if len(key) == KEY_BYTES:
            return key
    raise ConfigurationError(f"--intent-key {path}: not a 32-byte Ed25519 public key (raw, base64 or hexadecimal)")


def _read(path: str, flag: str) -> bytes:
    try:
        return Path(path).read_bytes()[:4096]
    except OSError as error:
        raise ConfigurationError(f"{flag} {path}: {error.strerror}") from error
