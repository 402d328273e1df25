"""Counters of one instance, and their wire form."""

from dataclasses import dataclass

from contract import engine
from simulator.core.emb_cache import EmbCache
from simulator.core.kv_cache import KvCache
from simulator.core.lower_tiers import LowerTiers
from simulator.core.prefixes import PreInference
from simulator.core.split import PoolSplit


@dataclass(slots=True)
class Tally:
    """What only grows while a process lives. Milliseconds are model time; bytes crossed the link or left HBM."""

    requests: int = 0
    kv_asked: int = 0
    kv_hit: int = 0
    host_hit: int = 0
    ssd_hit: int = 0
    emb_asked: int = 0
    emb_hit: int = 0
    emb_defaulted: int = 0
    demand_bytes: int = 0
    reload_bytes: int = 0
    prefetch_bytes: int = 0
    refill_bytes: int = 0
    service_ms: float = 0.0
    service_squared: float = 0.0
    emb_miss_ms: float = 0.0
    kv_miss_ms: float = 0.0
    evicted_requested: int = 0
    evicted_invalidated: int = 0

    def counters(
        self, *, emb: EmbCache, kv: KvCache, lower: LowerTiers, split: PoolSplit, prefixes: PreInference
    ) -> engine.Counters:
        """Return the wire form, with what the parts count themselves."""
        return engine.Counters(
            requests=self.requests,
            kv=engine.KvCounters(
                tokens_asked=self.kv_asked,
                tokens_hit_hbm=self.kv_hit,
                tokens_hit_dram=self.host_hit,
                tokens_hit_ssd=self.ssd_hit,
            ),
            emb=engine.EmbCounters(rows_asked=self.emb_asked, rows_hit=self.emb_hit, rows_defaulted=self.emb_defaulted),
            bytes=engine.TransferBytes(
                demand=self.demand_bytes,
                reload=self.reload_bytes,
                prefetch=self.prefetch_bytes,
                refill=self.refill_bytes,
                offload=lower.offloaded_bytes,
            ),
            evictions=engine.Evictions(
                capacity=emb.evicted_capacity_bytes + kv.evicted_capacity_bytes,
                resize=split.evicted_bytes,
                invalidated=self.evicted_invalidated,
                requested=self.evicted_requested,
            ),
            work_ms=engine.WorkMs(
                service=self.service_ms,
                service_squared=self.service_squared,
                emb_miss=self.emb_miss_ms,
                kv_miss=self.kv_miss_ms,
            ),
            offload_drops=lower.offload_drops,
            pre_infer=engine.PreInferCounters(
                accepted=prefixes.accepted,
                rejected=prefixes.rejected,
                used=prefixes.used,
                wasted=kv.prefixes_wasted,
                late=prefixes.late,
                slot_ms=prefixes.slot_ms,
            ),
        )


def split_state(split: PoolSplit, emb: EmbCache, kv: KvCache) -> engine.SplitState:
    """Return the split in force. Without a refill rate nothing is owed: room then fills by demand alone."""
    return engine.SplitState(
        revision=split.revision,
        limits=engine.PoolBytes(emb_bytes=emb.limit_bytes, kv_bytes=kv.limit_bytes),
        used=engine.PoolBytes(emb_bytes=emb.used_bytes, kv_bytes=kv.used_bytes),
        overage_bytes=emb.overage_bytes + kv.overage_bytes,
        refill_backlog_bytes=emb.backlog_bytes if split.refill_bytes_per_second else 0,
        refill_bytes_per_second=split.refill_bytes_per_second,
    )
