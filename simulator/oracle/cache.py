"""Keeps results by what they were computed from, so that a second look at the same log is free.

One file a result: a checksum, a JSON header and the arrays. It is written beside its place and renamed into it; a file that is
damaged, cut short or of another version is as good as none.
"""

import contextlib
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.fleet.build import WarmUsers
from simulator.fleet.config import FleetConfig
from simulator.oracle.choice import Choice, NoiseFloor
from simulator.oracle.result import ARRAYS, OracleResult
from simulator.request_log import RequestLog

# Goes up with every change that makes a result another one.
VERSION = 4
_CHECKSUM_BYTES = 32


def key_of(
    log: RequestLog,
    config: FleetConfig,
    *,
    window_ms: float,
    seed: int,
    splits: tuple[int, ...],
    slots: NDArray[np.int64],
    warm: WarmUsers | None,
) -> str:
    """Return a name for a result: a SHA-256 over all that it depends on."""
    content = {
        "version": VERSION,
        "log": log.digest,
        "config": _plain(config),
        "windowMs": float(window_ms).hex(),
        "seed": seed,
        "splits": list(splits),
        "slots": slots.tolist(),
        "warm": _plain(warm),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class OracleCache:
    """A folder of results.

    Parameters
    ----------
    folder : Path
        Made when the first result is kept.
    """

    folder: Path

    @classmethod
    def of_user(cls) -> "OracleCache":
        """Return the user's own: `$XDG_CACHE_HOME/grfleet/oracle`, or `~/.cache/grfleet/oracle`."""
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return cls(Path(base).expanduser() / "grfleet" / "oracle")

    def load(self, key: str) -> OracleResult | None:
        """Return the result of that name, None when there is none that can be read."""
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data[_CHECKSUM_BYTES:]).digest() != data[:_CHECKSUM_BYTES]:
            return None
        try:
            return _decoded(data[_CHECKSUM_BYTES:])
        except (ValueError, KeyError, TypeError):  # written by another version
            return None

    def store(self, key: str, result: OracleResult) -> bool:
        """Keep a result, and say whether that worked; a full or read-only disk costs time the next time, nothing else."""
        data = _encoded(result)
        name = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".tmp-", delete=False) as file:
                name = file.name
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(name, self._path(key))
        except OSError:
            if name is not None:
                with contextlib.suppress(OSError):
                    os.unlink(name)
            return False
        return True

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npz"


def _encoded(result: OracleResult) -> bytes:
    header = {field.name: _plain(getattr(result, field.name)) for field in fields(result) if field.name not in ARRAYS}
    out = io.BytesIO()
    columns = {name: getattr(result, name) for name in ARRAYS}
    np.savez_compressed(out, header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **columns)
    return out.getvalue()


def _decoded(data: bytes) -> OracleResult:
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        header = json.loads(stored["header"].tobytes())
        columns = {name: stored[name] for name in ARRAYS}
    for name in ("splits", "doubts"):
        header[name] = tuple(header[name])
    header["fleet"] = _choice(header["fleet"])
    header["instances"] = tuple(_choice(choice) for choice in header["instances"])
    for name in ("noise", "instance_noise"):
        header[name] = NoiseFloor(**{key: _float(value) for key, value in _own(header[name]).items()})
    for name in ("start_ms", "window_ms", "slo_ms"):
        header[name] = _float(header[name])
    return OracleResult(**header, **columns)


def _choice(stored: dict[str, Any]) -> Choice:
    values = _own(stored)
    for name in ("best", "planned"):
        values[name] = np.array(values[name], dtype=np.int64)
    for name in ("static_ms", "best_ms", "planned_ms"):
        values[name] = _float(values[name])
    return Choice(**values)


def _own(stored: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stored.items() if name != "type"}


def _float(stored: str) -> float:
    return float.fromhex(stored)


def _plain(value: Any) -> Any:
    """Return a value as JSON that differs wherever the value does: floats in hexadecimal, dataclasses with their type."""
    if is_dataclass(value) and not isinstance(value, type):
        compared = {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.compare}
        return {"type": type(value).__name__, **compared}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value.hex()
    return value
