"""The key pair of the intents: a Secret in the operator's namespace, its public half as a ConfigMap beside each pool.

The leader creates the Secret when there is none, so that an installation needs no step for it; bring your own by creating it
first. No secret of ours ever lies in a pool's namespace.
"""

from __future__ import annotations

import base64
import binascii
import logging
from dataclasses import dataclass
from typing import Any

from contract import signing
from controllers.runtime.errors import AlreadyExists, Terminal, Transient
from controllers.runtime.loop import Context
from controllers.runtime.resources import CONFIG_MAPS, POOLS, SECRETS, Key, Object, identity, key_of, owner_reference, uid_of
from crds.reasons import FieldManager

_logger = logging.getLogger(__name__)

SECRET_NAME = "grfleet-intent-signing"
PRIVATE_ENTRY = "private.key"
CONFIG_MAP_NAME = "grfleet-intent-key"
PUBLIC_ENTRY = "public.key"
RECHECK_SECONDS = 600.0


class SigningKey:
    """The private key, read (or made) once for each time this process leads."""

    def __init__(self) -> None:
        self._private: bytes | None = None

    def forget(self) -> None:
        """Read the Secret again at the next use: an agent called our signature forged, or we lead anew."""
        self._private = None

    async def private(self, ctx: Context) -> bytes:
        """The 32 bytes of the private key.

        Raises
        ------
        Terminal
            The Secret exists and does not hold such a key; the message says how to mend it.
        """
        if self._private is None:
            self._private = await self._read(ctx) or await self._create(ctx)
        return self._private

    async def public(self, ctx: Context) -> str:
        """The public key in base64, as the ConfigMap holds it and `grfleet-agent --intent-key` reads it."""
        return base64.b64encode(signing.public_key(await self.private(ctx))).decode()

    async def _read(self, ctx: Context) -> bytes | None:
        found = await ctx.kube.get(SECRETS, _secret_key(ctx))
        return None if found is None else private_key_of(found)

    async def _create(self, ctx: Context) -> bytes:
        fresh = signing.new_private_key()
        body = {
            **identity(SECRETS, _secret_key(ctx)),
            "type": "Opaque",
            "immutable": True,
            "data": {PRIVATE_ENTRY: base64.b64encode(fresh).decode()},
        }
        try:
            await ctx.kube.create(SECRETS, body, field_manager=FieldManager.ALLOCATION)
        except AlreadyExists:
            found = await self._read(ctx)
            if found is None:
                raise Transient("SigningKeyMoved", f"Secret {_secret_key(ctx)} appeared and vanished; trying again") from None
            return found
        return fresh


def private_key_of(secret: Object) -> bytes:
    """The private key in the Secret.

    Raises
    ------
    Terminal
        When it has no such entry or the entry is not 32 bytes.
    """
    try:
        raw = base64.b64decode((secret.get("data") or {})[PRIVATE_ENTRY], validate=True)
    except (KeyError, ValueError, binascii.Error):
        raw = b""
    if len(raw) != 32:
        raise Terminal(
            "SigningKeyUnusable",
            f"Secret {key_of(secret)}: entry {PRIVATE_ENTRY} must hold 32 bytes; delete the Secret to have a new key made",
        )
    return raw


@dataclass(frozen=True, slots=True)
class _Published:
    public: str
    owners: frozenset[str]
    checked_s: float


class KeyPublisher:
    """Keeps the ConfigMap with the public key in the namespaces of pools; the pools own it, so it goes with the last of them."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._published: dict[str, _Published] = {}

    def forget(self) -> None:
        """Look at every namespace again."""
        self._published.clear()

    async def ensure(self, ctx: Context, namespace: str) -> None:
        """Apply the ConfigMap unless it was found right a short while ago; an unusable key is logged, not raised."""
        try:
            public, owners = await self._key.public(ctx), _owners(ctx, namespace)
        except Terminal as error:
            _logger.error("the public key of the intents cannot be published: %s", error, extra={"reason": error.reason})
            return
        now_s, known = ctx.clock.monotonic(), self._published.get(namespace)
        if known and (known.public, known.owners) == (public, frozenset(owners)) and now_s - known.checked_s < RECHECK_SECONDS:
            return
        where = Key(namespace, CONFIG_MAP_NAME)
        body = identity(CONFIG_MAPS, where)
        body["metadata"]["ownerReferences"] = [owners[uid] for uid in sorted(owners)]
        body["data"] = {PUBLIC_ENTRY: public}
        current = await ctx.kube.get(CONFIG_MAPS, where)
        await ctx.kube.apply(CONFIG_MAPS, body, field_manager=FieldManager.POOL, current=current)
        self._published[namespace] = _Published(public, frozenset(owners), now_s)


def _owners(ctx: Context, namespace: str) -> dict[str, dict[str, Any]]:
    """Owner references to the pools of a namespace, by uid."""
    return {
        uid_of(pool): owner_reference(POOLS, pool)
        for pool in ctx.store.all(POOLS, namespace)
        if not pool["metadata"].get("deletionTimestamp")
    }


def _secret_key(ctx: Context) -> Key:
    return Key(ctx.settings.operator_namespace, SECRET_NAME)
