"""Keys at the door: a raw user id comes in, a keyed hash goes on, and the id stays nowhere.

The table names the key it was made for. Who holds several keys (during a rotation) uses the one that the table names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contract.keys import MIN_POOL_KEY_BYTES, secret_in, user_key
from grfleet.client.errors import BadUserId, KeyMismatch


@dataclass(frozen=True)
class PoolKey:
    """The key that user ids of a pool are hashed with; the secret does not show in its repr.

    Parameters
    ----------
    key_id : str
        As the table calls it (`status.keyId`: the name of the Secret).
    secret : bytes
        At least 16 bytes, as they are in the Secret: one newline at their end does not count, as it does not for a gateway.
        Make keys of what the Secret holds, never of the `secret` of another key: that would take a second newline off.
    """

    key_id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret", secret_in(self.secret))
        if len(self.secret) < MIN_POOL_KEY_BYTES:
            raise ValueError(f"pool key {self.key_id!r}: at least {MIN_POOL_KEY_BYTES} bytes are needed")


class KeyRing:
    """Hashes ids with the key that the table names.

    Parameters
    ----------
    keys : PoolKey or sequence of PoolKey
        The first is used where the table names none, or one that is not held.
    strict : bool
        Raise `KeyMismatch` in the latter case. Otherwise the request is routed, by a slot that other callers do not use for this
        user: it is answered, and misses.
    """

    def __init__(self, keys: PoolKey | Sequence[PoolKey], *, strict: bool = False) -> None:
        held = (keys,) if isinstance(keys, PoolKey) else tuple(keys)
        if not held:
            raise ValueError("keys: at least one pool key is needed")
        self._by_id: Mapping[str, PoolKey] = {key.key_id: key for key in held}
        if len(self._by_id) < len(held):
            raise ValueError("keys: two keys share an id")
        self._first = held[0]
        self._strict = strict

    def fits(self, table_key_id: str) -> bool:
        """Whether the key that the table names is held; a table that names none fits."""
        return not table_key_id or table_key_id in self._by_id

    def key_for(self, table_key_id: str) -> PoolKey:
        """Return the key to hash with.

        Raises
        ------
        KeyMismatch
            When the table's key is not held and the ring is strict.
        """
        found = self._by_id.get(table_key_id)
        if found is not None:
            return found
        if self._strict and table_key_id:
            raise KeyMismatch(f"the table is made for key {table_key_id!r}; held are {sorted(self._by_id)}")
        return self._first


def hashed(key: PoolKey, user_id: str) -> str:
    """Return `contract.keys.user_key` of an id, without spaces and tabs at its ends: HTTP takes them off before a gateway looks.

    Raises
    ------
    BadUserId
        When it is empty or not encodable as UTF-8. Such ids are not hashed to one common user.
    """
    user_id = user_id.strip(" \t")
    if not user_id:
        raise BadUserId("user id: empty; a request without a user has no affinity, use pick_any")
    try:
        return user_key(key.secret, user_id)
    except UnicodeEncodeError:
        pass  # the error holds the id, and would stand in the chain of causes
    raise BadUserId("user id: cannot be encoded as UTF-8")
