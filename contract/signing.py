"""Ed25519 signatures of intents, bound to instance, generation and expiry.

The signed bytes are canonical JSON: sorted keys, no white space, UTF-8, integers and strings and booleans only (floats have no
canonical form and are refused). vectors/signing.json fixes them for other implementations.
"""

import base64
import binascii
import json
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from contract.agent import Intent


def new_private_key() -> bytes:
    """Return 32 fresh bytes of private key."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_key(private_key: bytes) -> bytes:
    """Return the 32-byte public key of a private key; ValueError when it is not 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def payload(intent: Intent) -> bytes:
    """Return the canonical bytes that the signature covers.

    Raises
    ------
    ValueError
        When the spec holds a float or anything else without a canonical JSON form; names the place.
    """
    _refuse_floats(intent.spec, "spec")
    body = {
        "uid": intent.uid,
        "generation": intent.generation,
        "issued": intent.issued,
        "expires": intent.expires,
        "spec": intent.spec,
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sign(intent: Intent, private_key: bytes) -> Intent:
    """Return the same intent with its signature filled in."""
    signature = Ed25519PrivateKey.from_private_bytes(private_key).sign(payload(intent))
    return Intent(
        uid=intent.uid,
        generation=intent.generation,
        issued=intent.issued,
        expires=intent.expires,
        spec=intent.spec,
        signature=base64.b64encode(signature).decode(),
    )


def is_authentic(intent: Intent, key: bytes) -> bool:
    """Say whether the signature was made by the holder of the private half of `key` (32 bytes); never raises for an intent."""
    try:
        raw = base64.b64decode(intent.signature, validate=True)
        Ed25519PublicKey.from_public_bytes(key).verify(raw, payload(intent))
    except (InvalidSignature, ValueError, binascii.Error, RecursionError):
        return False
    return True


def _refuse_floats(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}: key {key!r} is not a string")
            _refuse_floats(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _refuse_floats(inner, f"{where}[{index}]")
    elif value is not None and not isinstance(value, (str, bool, int)):
        raise ValueError(f"{where}: {type(value).__name__} has no canonical JSON form; use integers or strings")
