"""User keys and slots: how a user id becomes something that may be logged, stored and routed by.

A raw user id exists only at the edge. Behind it everybody uses `user_key`, a keyed hash that never contains the model
version; `slot_of` maps it to one of 4096 slots of the published routing table. vectors/keys.json holds the test vectors that
every implementation (Python, HAProxy, endpoint picker) shares.
"""

import hmac

import xxhash

SLOTS = 4096
USER_KEY_HEX_LENGTH = 32
MIN_POOL_KEY_BYTES = 16


def secret_in(content: bytes) -> bytes:
    """Return the secret of a pool from what its Secret or file holds: without one newline that an editor left at its end.

    Of random bytes one in 256 ends like that too, so whoever hashes ids has to take it off, or none.
    """
    return content.removesuffix(b"\n")


def user_key(pool_key: bytes, user_id: str | bytes) -> str:
    """Return the 128-bit keyed hash of a user id as 32 hex digits.

    Parameters
    ----------
    pool_key : bytes
        Secret of the pool, at least 16 bytes (RoutingPolicy.spec.userKeySecret).
    user_id : str or bytes
        Raw id as the caller knows it; hashed as UTF-8. A gateway hands over the bytes that it was sent.

    Raises
    ------
    ValueError
        When the key is shorter than 16 bytes or the id is empty.
    """
    if len(pool_key) < MIN_POOL_KEY_BYTES:
        raise ValueError(
            f"pool key: at least {MIN_POOL_KEY_BYTES} bytes are needed; check the Secret of RoutingPolicy.spec.userKeySecret"
        )
    if not user_id:
        raise ValueError("user id: empty; a request without a user has no affinity and must not be hashed")
    raw = user_id.encode() if isinstance(user_id, str) else user_id
    return hmac.digest(pool_key, raw, "sha256").hex()[:USER_KEY_HEX_LENGTH]


def slot_of(key: str) -> int:
    """Return the slot (0..4095) of a user key: xxh32 of its hex digits, modulo 4096."""
    return xxhash.xxh32_intdigest(key.encode()) % SLOTS


def sample_key(key: str) -> int:
    """Return the 64-bit hash under which an engine samples accesses of this user."""
    return xxhash.xxh64_intdigest(key.encode())
