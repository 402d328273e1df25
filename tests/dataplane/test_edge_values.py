"""What gateways and pickers are told at the edge: one rule for both, and a secret in a file is taken over by one rule too."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dataplane.edge import ConfigError, check_names, follow_secret, read_pool_key
from dataplane.gateway.config import GatewayConfig, validate
from dataplane.picker.main import _edge, _parser

BASE = GatewayConfig(
    pool_key=b"0123456789abcdef", bind="127.0.0.1:1234", admin_socket=Path("/tmp/g/a.sock"), directory=Path("/tmp/g")
)
LOG = logging.getLogger("test")


@pytest.fixture
def pool_key(tmp_path: Path) -> Path:
    path = tmp_path / "pool.key"
    path.write_bytes(BASE.pool_key + b"\n")
    return path


def gateway_takes(**values: str) -> None:
    validate(replace(BASE, **values))  # type: ignore[arg-type]  # names and types are the test's own


def picker_takes(pool_key: Path, **values: str) -> None:
    flags = [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", value)]
    _edge(_parser().parse_args(["--table", "t", "--pool-key", str(pool_key), *flags]))


GOOD = [
    {"id_header": "X-Account"},
    {"id_header": "a" * 63},
    {"key_header": "X-Member-Key"},
    {"key_header": "x-gr-user-key"},
    {"key_id": "k1"},
    {"key_id": "pool.keys_2-" + "a" * 241},  # the name of a Secret has up to 253 characters
]
BAD = [
    {"id_header": "x-gr-user-key"},
    {"id_header": "X-GR-Mine"},
    {"id_header": "two words"},
    {"id_header": "a" * 64},
    {"id_header": "Transfer-Encoding"},
    {"id_header": ""},
    {"key_header": "Host"},
    {"key_header": "a\nb"},
    {"key_header": "x-gr-instance"},
    {"key_id": "a b"},
    {"key_id": 'a"b'},
    {"key_id": "a#b"},  # the rest of the line would be a comment to HAProxy
    {"key_id": "a%[src]"},  # and this would be asked for at every request
    {"key_id": "a" * 254},
]


@pytest.mark.parametrize("values", GOOD, ids=lambda values: str(values)[:40])
def test_what_a_gateway_takes_a_picker_takes(values: dict[str, str], pool_key: Path) -> None:
    gateway_takes(**values)
    picker_takes(pool_key, **values)


@pytest.mark.parametrize("values", BAD, ids=lambda values: str(values)[:40])
def test_what_a_gateway_refuses_a_picker_refuses_in_the_same_words(values: dict[str, str], pool_key: Path) -> None:
    with pytest.raises(ConfigError) as by_gateway:
        gateway_takes(**values)
    with pytest.raises(ConfigError) as by_picker:
        picker_takes(pool_key, **values)
    with pytest.raises(ConfigError) as by_rule:
        check_names(**{"id_header": "x-user-id", "key_header": None, "key_id": "", **values})  # type: ignore[arg-type]  # as above
    assert str(by_gateway.value) == str(by_picker.value) == str(by_rule.value)


def test_a_pool_key_has_one_newline_less_than_its_file_and_sixteen_bytes_at_least(pool_key: Path) -> None:
    assert read_pool_key(pool_key) == BASE.pool_key
    pool_key.write_bytes(b"0123456789abcde\n")
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        read_pool_key(pool_key)


async def told(read: Callable[[], bytes], take: Callable[[bytes], None], caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is logged of a secret that is looked at again and again."""
    caplog.set_level(logging.INFO)
    following = follow_secret(read, take, in_force=b"old", what="secret", log=LOG, period_s=0.0)
    with contextlib.suppress(EndOfTestError):
        await asyncio.wait_for(following, 10.0)
    return [record.message for record in caplog.records if record.name == LOG.name]


class EndOfTestError(Exception):
    """Nothing more is to be read."""


async def test_a_secret_that_cannot_be_taken_is_told_once_and_tried_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    found, taken = [b"old", b"new", b"new", b"new", b"new"], []

    def read() -> bytes:
        if not found:
            raise EndOfTestError
        return found.pop(0)

    def take(secret: bytes) -> None:
        taken.append(secret)
        if len(taken) < 3:
            raise ValueError("not yet")

    assert await told(read, take, caplog) == ["the secret cannot be used, the one before stays", "the secret has changed"]
    assert taken == [b"new"] * 3
