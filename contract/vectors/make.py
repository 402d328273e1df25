"""Writes the test vectors that every implementation of the contract shares; run once, and again only for a new contract version.

`python -m contract.vectors.make` prints nothing and changes nothing when the vectors are what the code says.
"""

import base64
import json
from pathlib import Path
from typing import Any

from contract import keys, signing
from contract.agent import Intent
from contract.samples import KIND_EMB, KIND_KV, SampleBuffer, is_sampled
from contract.table import NOBODY, pack_slots

HERE = Path(__file__).parent
POOL_KEYS = (b"0123456789abcdef", bytes(range(32)))
USER_IDS = ("u-1", "42", "Zoë", "用户", "a" * 300, " leading and trailing ")
PRIVATE_KEY = bytes(range(32))


def key_vectors() -> list[dict[str, Any]]:
    """User keys: HMAC-SHA-256(pool key, user id as UTF-8) cut to 128 bits, hex; with slot and sample key."""
    out = []
    for pool_key in POOL_KEYS:
        for user_id in USER_IDS:
            key = keys.user_key(pool_key, user_id)
            out.append(
                {
                    "poolKeyHex": pool_key.hex(),
                    "userId": user_id,
                    "userKey": key,
                    "slot": keys.slot_of(key),
                    "sampleKeyHex": f"{keys.sample_key(key):016x}",
                }
            )
    return out


def slot_vectors() -> list[dict[str, Any]]:
    """Packed tables: 4096 little-endian u16, base64; the owners are given as a rule, so that the file stays readable."""
    rules = {
        "allNobody": [NOBODY] * keys.SLOTS,
        "slotModuloThree": [slot % 3 for slot in range(keys.SLOTS)],
        "firstOwnedRestNobody": [0] + [NOBODY] * (keys.SLOTS - 1),
    }
    return [{"rule": rule, "packed": pack_slots(owners)} for rule, owners in rules.items()]


def signing_vectors() -> list[dict[str, Any]]:
    """Signed intents: canonical bytes (base64) and Ed25519 signature under a published private key."""
    specs: list[dict[str, Any]] = [
        {},
        {"strategy": "Static", "bounds": {"minEmbPercent": 5, "maxEmbPercent": 95}},
        {"z": [1, "two", True, None], "a": {"ü": "✓", "b": -1}},
    ]
    out = []
    for generation, spec in enumerate(specs, start=1):
        intent = Intent(uid=f"uid-{generation}", generation=generation, issued=1_000, expires=2_000, spec=spec)
        out.append(
            {
                "privateKeyHex": PRIVATE_KEY.hex(),
                "publicKeyHex": signing.public_key(PRIVATE_KEY).hex(),
                "uid": intent.uid,
                "generation": generation,
                "issued": intent.issued,
                "expires": intent.expires,
                "spec": spec,
                "payloadBase64": base64.b64encode(signing.payload(intent)).decode(),
                "signature": signing.sign(intent, PRIVATE_KEY).signature,
            }
        )
    return out


def sample_vectors() -> dict[str, Any]:
    """A packed batch of three records, and which keys belong to a sample."""
    buffer = SampleBuffer(capacity=8)
    buffer.append(kind=KIND_KV, size=4096, key=0x0123_4567_89AB_CDEF, time_us=1_000_001)
    buffer.append(kind=KIND_EMB, size=1, key=1, time_us=1_000_002)
    buffer.append(kind=KIND_EMB, size=1, key=(1 << 64) - 1, time_us=1_000_003)
    packed, cursor, lost = buffer.read(0)
    bounds = [((1 << 64) // 64 - 1, 64), ((1 << 64) // 64, 64), (0, 1 << 20), ((1 << 64) - 1, 1)]
    return {
        "batchHex": packed.hex(),
        "cursor": cursor,
        "lost": lost,
        "records": [
            {"sequence": 0, "kind": KIND_KV, "size": 4096, "keyHex": "0123456789abcdef", "timeUs": 1_000_001},
            {"sequence": 1, "kind": KIND_EMB, "size": 1, "keyHex": "0000000000000001", "timeUs": 1_000_002},
            {"sequence": 2, "kind": KIND_EMB, "size": 1, "keyHex": "ffffffffffffffff", "timeUs": 1_000_003},
        ],
        "sampled": [{"keyHex": f"{key:016x}", "oneIn": one_in, "sampled": is_sampled(key, one_in)} for key, one_in in bounds],
    }


FILES = {
    "keys.json": key_vectors,
    "slots.json": slot_vectors,
    "signing.json": signing_vectors,
    "samples.json": sample_vectors,
}


def render(name: str) -> str:
    """Return the text of one vector file."""
    return json.dumps(FILES[name](), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in FILES:
        (HERE / name).write_text(render(name), encoding="utf-8")
