"""The published vectors against the code and against the standards themselves, so that another language can trust them."""

import base64
import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import xxhash
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import contract.vectors
from contract import keys, signing
from contract.agent import Intent
from contract.samples import is_sampled, unpack
from contract.table import NOBODY, unpack_slots
from contract.vectors.make import FILES, render

FOLDER = Path(contract.vectors.__file__).parent


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(FILES))
def test_vectors_are_what_the_code_says_today(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == render(name)


@pytest.mark.parametrize("vector", load("keys.json"), ids=lambda vector: vector["userKey"][:8])
def test_a_user_key_is_a_cut_hmac_and_its_slot_an_xxh32(vector: dict[str, Any]) -> None:
    pool_key = bytes.fromhex(vector["poolKeyHex"])
    expected = hmac.digest(pool_key, vector["userId"].encode(), hashlib.sha256).hex()[:32]
    assert vector["userKey"] == expected == keys.user_key(pool_key, vector["userId"])
    assert vector["slot"] == xxhash.xxh32(expected.encode()).intdigest() % 4096 == keys.slot_of(expected)
    assert int(vector["sampleKeyHex"], 16) == xxhash.xxh64(expected.encode()).intdigest() == keys.sample_key(expected)


@pytest.mark.parametrize("vector", load("slots.json"), ids=lambda vector: vector["rule"])
def test_a_packed_table_is_little_endian_u16_in_base64(vector: dict[str, Any]) -> None:
    owners = {
        "allNobody": [NOBODY] * 4096,
        "slotModuloThree": [slot % 3 for slot in range(4096)],
        "firstOwnedRestNobody": [0] + [NOBODY] * 4095,
    }[vector["rule"]]
    assert list(struct.unpack("<4096H", base64.b64decode(vector["packed"]))) == owners
    assert unpack_slots(vector["packed"], instances=3) == owners


@pytest.mark.parametrize("vector", load("signing.json"), ids=lambda vector: vector["uid"])
def test_an_intents_signature_verifies_over_its_canonical_bytes(vector: dict[str, Any]) -> None:
    payload = base64.b64decode(vector["payloadBase64"])
    public = bytes.fromhex(vector["publicKeyHex"])
    Ed25519PublicKey.from_public_bytes(public).verify(base64.b64decode(vector["signature"]), payload)
    assert json.loads(payload) == {name: vector[name] for name in ("uid", "generation", "issued", "expires", "spec")}
    names = ("uid", "generation", "issued", "expires", "spec", "signature")
    intent = Intent(**{name: vector[name] for name in names})
    assert signing.payload(intent) == payload
    assert signing.is_authentic(intent, public)


def test_a_batch_of_samples_has_the_published_layout() -> None:
    vector = load("samples.json")
    packed = bytes.fromhex(vector["batchHex"])
    for place, record in enumerate(vector["records"]):
        sequence, kind_size, key, time_us = struct.unpack_from("<IIQQ", packed, 24 * place)
        assert (sequence, kind_size >> 30, kind_size & 0x3FFF_FFFF) == (record["sequence"], record["kind"], record["size"])
        assert (key, time_us) == (int(record["keyHex"], 16), record["timeUs"])
    assert len(unpack(packed)) == len(vector["records"])
    for case in vector["sampled"]:
        assert is_sampled(int(case["keyHex"], 16), case["oneIn"]) == case["sampled"]
