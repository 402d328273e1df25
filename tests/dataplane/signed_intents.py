"""Intents signed by a key of the tests."""

from typing import Any

from contract import signing
from contract.agent import Intent

PRIVATE = bytes(range(32))
PUBLIC = signing.public_key(PRIVATE)
NOW = 1_700_000_000
STATIC = {"strategy": "Static", "bounds": {"fallbackEmbPercent": 40}}


def intent(
    *, uid: str = "uid-a", generation: int = 3, issued: int = NOW, life: int = 300, spec: dict[str, Any] | None = None
) -> Intent:
    raw = Intent(uid=uid, generation=generation, issued=issued, expires=issued + life, spec=STATIC if spec is None else spec)
    return signing.sign(raw, PRIVATE)
