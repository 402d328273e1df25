"""The bytes of allocator models: read from their ConfigMap when somebody needs them, and kept for a while by their digest.

ConfigMaps are neither listed nor watched: a cluster has thousands that are none of our business. What is kept was verified by
digest, so it is right for ever; that its source still has it is the models loop's concern.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict

from pydantic import ValidationError

from controllers.runtime.loop import Context
from controllers.runtime.resources import ALLOCATOR_MODELS, CONFIG_MAPS, Key, Object
from crds import AllocatorModel
from crds.allocator_model import ConfigMapKeyRef
from policies.allocation.model_file import digest_of

KEPT = 8
RETRY_SECONDS = 10.0
"""How soon a source that did not have the bytes is read again."""


class ModelBytes:
    """One for a process: the models loop puts in what it verified, the allocation loop takes what an agent lacks."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[str, bytes] = OrderedDict()
        self._missed_s: dict[str, float] = {}

    def keep(self, sha256: str, data: bytes) -> None:
        """These bytes have this digest; the ones used longest ago are dropped."""
        self._bytes[sha256] = data
        self._bytes.move_to_end(sha256)
        self._missed_s.pop(sha256, None)
        while len(self._bytes) > KEPT:
            self._bytes.popitem(last=False)

    async def of(self, ctx: Context, where: Key, sha256: str) -> bytes | None:
        """The bytes with this digest, kept or read from the source of the AllocatorModel `where`; None where there are none.

        Raises
        ------
        ReconcileError
            When the API server does not answer, or not this question.
        """
        data = self._bytes.get(sha256)
        if data is not None:
            self._bytes.move_to_end(sha256)
            return data
        now_s = ctx.clock.monotonic()
        if now_s - self._missed_s.get(sha256, float("-inf")) < RETRY_SECONDS:
            return None  # all instances of a pool ask at once
        data = await self._read(ctx, where)
        if data is None or digest_of(data) != sha256:
            self._missed_s = {other: at_s for other, at_s in self._missed_s.items() if now_s - at_s < RETRY_SECONDS}
            self._missed_s[sha256] = now_s
            return None
        self.keep(sha256, data)
        return data

    async def _read(self, ctx: Context, where: Key) -> bytes | None:
        stored = ctx.store.get(ALLOCATOR_MODELS, where)
        if stored is None:
            return None
        try:
            ref = AllocatorModel.parse(stored).spec.config_map_key_ref
        except ValidationError:
            return None
        config_map = await ctx.kube.get(CONFIG_MAPS, Key(where.namespace, ref.name))
        return binary_of(config_map, ref) if config_map is not None else None


def binary_of(config_map: Object, ref: ConfigMapKeyRef) -> bytes | None:
    """What stands under the key in binaryData; None when nothing does."""
    try:
        return base64.b64decode((config_map.get("binaryData") or {})[ref.key], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):  # TypeError: null, as the API server has it for no bytes
        return None
