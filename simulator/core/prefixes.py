"""Pre-inference on one instance: slots for prefixes being computed, bytes for those waiting, and what became of them."""

from contract.engine import LimitsAnswer, LimitsRequest, SplitStatus
from simulator.core.kv_cache import CacheKey, KvCache


class PreInference:
    """Admission and bookkeeping of prefixes computed ahead of ranking.

    A prefix is used when its ranking request finds it finished, late when the request comes first, wasted when evicted unused.
    """

    def __init__(self, *, slots: int, bytes_limit: int, host_bytes: int = 0, ssd_bytes: int = 0) -> None:
        self._most = {"hostBytes": host_bytes, "ssdBytes": ssd_bytes}
        self.limits = LimitsRequest(
            revision=0, pre_infer_slots=slots, pre_infer_bytes=bytes_limit, host_bytes=host_bytes, ssd_bytes=ssd_bytes
        )
        self.accepted = self.rejected = self.used = self.late = 0
        self.slot_ms = 0.0
        self._ready: dict[CacheKey, float] = {}

    def refusal(self, kv: KvCache, *, need: int, now_ms: float) -> str:
        """Return why a prefix of `need` bytes is not admitted now, empty when it is; a refusal is counted."""
        running = sum(1 for ready in self._ready.values() if ready > now_ms)
        reason = ""
        if running >= self.limits.pre_infer_slots:
            reason = f"all {self.limits.pre_infer_slots} pre-inference slots are busy"
        elif kv.prefix_bytes + need > self.limits.pre_infer_bytes:
            reason = f"live prefixes would exceed {self.limits.pre_infer_bytes} bytes"
        self.rejected += bool(reason)
        return reason

    def admit(self, kv: KvCache, key: CacheKey, *, now_ms: float, ready_ms: float) -> None:
        """Note a prefix that keeps a slot busy from now until it is finished at `ready_ms`."""
        self.accepted += 1
        self.slot_ms += ready_ms - now_ms
        kv.mark_prefix(key)
        self._ready[key] = ready_ms
        if len(self._ready) > 2 * len(kv) + 64:
            self._ready = {known: ready for known, ready in self._ready.items() if kv.is_prefix(known)}

    def ranked(self, kv: KvCache, key: CacheKey, arrival_ms: float) -> None:
        """Settle the prefix of a user whose ranking request arrives."""
        ready = self._ready.pop(key, None)
        if ready is not None and kv.take_prefix(key):
            if ready <= arrival_ms:
                self.used += 1
            else:
                self.late += 1

    def put_limits(self, request: LimitsRequest) -> LimitsAnswer:
        """Take new limits in: the successor of the revision in force, or the same again."""
        status, reason = SplitStatus.APPLIED, ""
        if request.revision < self.limits.revision:
            status, reason = SplitStatus.STALE, f"revision {request.revision} is older than {self.limits.revision} in force"
        elif request.revision == self.limits.revision:
            if request != self.limits:
                status, reason = SplitStatus.CONFLICT, f"revision {request.revision} is in force with other values"
        elif request.revision > self.limits.revision + 1:
            status, reason = SplitStatus.CONFLICT, f"revision {request.revision} does not follow {self.limits.revision} in force"
        elif too_much := self._too_much(request):
            status, reason = SplitStatus.UNSUPPORTED, too_much
        else:
            self.limits = request
        return LimitsAnswer(status=status, limits=self.limits, reason=reason)

    def _too_much(self, request: LimitsRequest) -> str:
        for (field, most), asked in zip(self._most.items(), (request.host_bytes, request.ssd_bytes), strict=True):
            if asked > most:
                return (
                    f"{field}: {asked} is more than the {most} bytes of that tier"
                    if most
                    else f"{field}: this engine has no such tier"
                )
        return ""
