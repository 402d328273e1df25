"""What an instance is worth when a pool gets smaller: the bytes of users' state that its agent reported a short while ago.

Embedding rows do not count. The popular ones lie on every instance, and full caches hold the same bytes together whatever their
split is, so that counting both would tell instances apart by nothing but rounding. What nobody else has is the KV state of the
instance's users: it would have to be computed anew. State below HBM is not in an agent's status and so not counted either.
"""

from __future__ import annotations

from controllers.agent_book import Statuses

FRESH_SECONDS = 60.0
"""An older measurement says nothing about what an instance holds."""


def resident_bytes(uid: str, *, statuses: Statuses | None, now_s: float) -> int | None:
    """Bytes in the KV cache of the instance; None without a recent measurement, which is not the same as zero.

    Parameters
    ----------
    now_s
        Seconds of the monotonic clock by which statuses are dated.
    """
    heard = None if statuses is None else statuses.last(uid)
    if heard is None or heard.status.split is None or now_s - heard.at_s > FRESH_SECONDS:
        return None
    return heard.status.split.used_kv_bytes
