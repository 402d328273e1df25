"""The operator's key is replaced: the agent finds the new one in its file, and what the old one signed counts no more."""

from __future__ import annotations

import base64
from functools import partial
from pathlib import Path

import pytest
from signed_intents import NOW, PRIVATE, PUBLIC, intent

from contract import signing
from contract.agent import Intent, IntentStatus
from dataplane.agent.intent import KEY_LOOK_SECONDS, IntentBook
from dataplane.agent.process import _renewed_key

NEW = bytes(range(1, 33))


def signed_anew(generation: int) -> Intent:
    return signing.sign(intent(generation=generation), NEW)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "public.key"
    path.write_text(base64.b64encode(PUBLIC).decode())
    return path


def test_a_key_that_stands_in_the_file_by_now_is_taken_with_the_first_intent_that_it_signed(file: Path) -> None:
    book = IntentBook(public_key=PUBLIC, renewed_key=partial(_renewed_key, str(file)))
    assert book.offer(intent(generation=3), now_s=NOW).status is IntentStatus.ACCEPTED

    assert book.offer(signed_anew(4), now_s=NOW).status is IntentStatus.FORGED
    file.write_text(base64.b64encode(signing.public_key(NEW)).decode())
    later = NOW + KEY_LOOK_SECONDS
    assert book.offer(signed_anew(4), now_s=later).status is IntentStatus.ACCEPTED
    assert book.current is not None
    assert book.current.generation == 4
    assert book.offer(signing.sign(intent(generation=5), PRIVATE), now_s=later).status is IntentStatus.FORGED


def test_a_flood_of_forgeries_reads_the_file_once_a_second_and_never_changes_the_key() -> None:
    looks: list[int] = []

    def read() -> bytes:
        looks.append(1)
        return PUBLIC

    book = IntentBook(public_key=PUBLIC, renewed_key=read)
    for number in range(1000):
        assert book.offer(signed_anew(4), now_s=NOW + number / 500).status is IntentStatus.FORGED
    assert len(looks) <= 3
    assert book.offer(intent(generation=3), now_s=NOW).status is IntentStatus.ACCEPTED


@pytest.mark.parametrize("content", [None, b"", b"not a key", b"x" * 31])
def test_a_file_without_a_key_leaves_the_one_at_hand(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    book = IntentBook(public_key=PUBLIC, renewed_key=partial(_renewed_key, str(file)))
    assert book.offer(signed_anew(3), now_s=NOW).status is IntentStatus.FORGED
    assert book.offer(intent(generation=3), now_s=NOW).status is IntentStatus.ACCEPTED
