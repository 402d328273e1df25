"""One GR instance in model time: a single server in arrival order, two caches in one pool, a shared host link.

Requests are handled in the order of their arrival stamps (Lindley's recursion: start = max(arrival, server free)). A user's
cached tokens are stripped before the embedding stage, so KV hits also remove EMB look-ups. All randomness comes from request ids
and the seed, so the same calls give the same outcome.
"""

from collections import deque
from collections.abc import Iterable

from contract import engine
from contract.histogram import LatencyRecorder
from contract.keys import sample_key
from contract.residency import MAX_USERS, ResidencyReport
from contract.samples import KIND_KV, SampleBuffer, is_sampled
from simulator.core.config import InstanceConfig
from simulator.core.counting import Tally, split_state
from simulator.core.emb_cache import EmbCache
from simulator.core.histories import Histories
from simulator.core.kv_cache import CacheKey, Entry
from simulator.core.lookups import Refused, RowLookups
from simulator.core.lower_tiers import LowerTier
from simulator.core.popularity import RowSampler
from simulator.core.prefixes import PreInference
from simulator.core.refill import Refill
from simulator.core.shared_link import SharedLink
from simulator.core.split import PoolSplit, SplitRules


class GRInstanceCore:
    """The model of one instance.

    Parameters
    ----------
    config : InstanceConfig
    seed : int
        Seeds the warm start; requests seed themselves by their ids.
    start_id : str
        Names this process; callers fence on it.
    """

    def __init__(self, config: InstanceConfig, seed: int, *, start_id: str = "simulated") -> None:
        self.config = config
        self.start_id = start_id
        self.epoch = 0
        self.clock_ms = 0.0
        self.draining = False
        self.model = config.model
        self.tally = Tally()
        self.latency = LatencyRecorder(anchor_ms=config.p99_ms)
        self.samples = SampleBuffer()
        self._seed = seed
        service, one_in = config.service, config.sampling.rows_one_in
        emb_bytes = config.first_emb_bytes
        self.emb = EmbCache(one_in=one_in, row_bytes=service.row_bytes, limit_bytes=emb_bytes, max_bytes=config.pool_bytes)
        self._link = SharedLink(service)
        self.histories = Histories(config, kv_bytes=config.pool_bytes - emb_bytes, link=self._link, tally=self.tally)
        self.kv, self.lower, self.resident = self.histories.kv, self.histories.lower, self.histories.resident
        rules = SplitRules(
            pool_bytes=config.pool_bytes,
            link_bytes_per_second=service.link_bytes_per_second,
            max_change_bytes=config.max_split_change_bytes,
            defer_shrinks_ms=config.defer_shrinks_ms,
        )
        self.split = PoolSplit(rules, emb=self.emb, kv=self.kv)
        self.prefixes = PreInference(
            slots=config.pre_infer_slots,
            bytes_limit=config.pool_bytes // 4 if config.pre_infer_bytes is None else config.pre_infer_bytes,
            host_bytes=config.host_bytes,
            ssd_bytes=config.ssd_bytes,
        )
        self.refill = Refill(config, emb=self.emb, split=self.split, link=self._link, tally=self.tally)
        self._rows = RowLookups(config, emb=self.emb, samples=self.samples)
        self._jobs: deque[tuple[float, float, CacheKey]] = deque()
        self._in_service: tuple[CacheKey, Entry] | None = None
        self._last_arrival_ms = 0.0
        self._free_at_ms = 0.0

    def rank(self, request: engine.RankRequest, arrival_ms: float) -> engine.RankAnswer:
        """Serve one ranking request that arrives at `arrival_ms` and say where its time went.

        An arrival earlier than the one before is taken as simultaneous with it.

        Raises
        ------
        Refused
            When the request is beyond what the instance serves; the message names the field.
        """
        tokens, candidates = request.history_tokens, request.candidates
        rows = self._rows.asked_by(tokens + candidates, request.rows_per_token)
        sampler = self._rows.sampler(request.item_popularity)
        arrival = self._arrive(arrival_ms)
        key = (request.user_key, request.model_version)
        self.prefixes.ranked(self.kv, key, arrival)
        start, service, hit, missed, asked = self._serve(
            key,
            request.request_id,
            sampler,
            arrival,
            tokens=tokens,
            candidates=candidates,
            rows=rows,
            per_token=request.rows_per_token,
        )
        latency = start + service - arrival
        self.tally.requests += 1
        self.latency.record(latency)
        return engine.RankAnswer(
            request_id=request.request_id,
            latency_ms=latency,
            queue_ms=start - arrival,
            service_ms=service,
            kv_tokens_hit=hit,
            emb_rows_asked=asked,
            emb_rows_missed=missed,
        )

    def pre_infer(self, request: engine.PreInferRequest, arrival_ms: float) -> engine.PreInferAnswer:
        """Compute a user's prefix ahead of ranking, when slots and bytes allow; it queues like a request without candidates."""
        rows = self._rows.asked_by(request.history_tokens, 1)
        sampler = self._rows.sampler(None)
        arrival = self._arrive(arrival_ms)
        key = (request.user_key, request.model_version)
        if self.kv.cached_tokens(key) >= request.history_tokens:
            self.kv.touch(key)
            self.resident.used(key, self.clock_ms)
            self.prefixes.accepted += 1
            return engine.PreInferAnswer(accepted=True, resident=True)
        reason = self.prefixes.refusal(self.kv, need=self.kv.bytes_of(request.history_tokens), now_ms=arrival)
        if reason:
            return engine.PreInferAnswer(accepted=False, reason=reason)
        start, service, *_ = self._serve(
            key, request.request_id, sampler, arrival, tokens=request.history_tokens, candidates=0, rows=rows, per_token=1
        )
        self.prefixes.admit(self.kv, key, now_ms=arrival, ready_ms=start + service)
        return engine.PreInferAnswer(accepted=True)

    def prefetch(self, user_keys: Iterable[str]) -> engine.UsersAnswer:
        """Protect resident users by making them the most recently used; load those that lie below HBM, where there is room."""
        return self.histories.prefetch(user_keys, now_ms=self.clock_ms)

    def evict(self, user_keys: Iterable[str]) -> engine.UsersAnswer:
        """Drop the state of users from all tiers, except of those in service."""
        return self.histories.evict(user_keys)

    def invalidate(self, request: engine.InvalidateRequest) -> engine.UsersAnswer:
        """Drop what another model or embedding version computed, or everything.

        KV depends on the embeddings, so a new embedding version empties both caches. Emptied caches are a new epoch.

        Raises
        ------
        Refused
            When the request names nothing to drop.
        """
        if request.model_version is None and request.emb_version is None and not request.everything:
            raise Refused("modelVersion, embVersion or everything: one of them must be given")
        new_emb = request.emb_version is not None and request.emb_version != self.model.emb_version
        affected = freed = 0
        keep = None if request.everything or new_emb else request.model_version
        below = [key for key in self.lower.users() if key[1] != keep]
        if request.everything or new_emb:
            affected, freed = self.kv.invalidate()
            freed += self.emb.clear()
            self.epoch += 1
        elif request.model_version is not None:
            affected, freed = self.kv.invalidate(keep_version=request.model_version)
        affected, freed = affected + len(below), freed + self.lower.drop(below)
        if affected:
            self.resident.clear()
            for key in (*self.lower.users(), *self.kv.keys_oldest_first()):
                self.resident.used(key, self.clock_ms)
        self.model = engine.ModelIdentity(
            name=self.model.name,
            version=self.model.version if request.model_version is None else request.model_version,
            emb_version=self.model.emb_version if request.emb_version is None else request.emb_version,
        )
        self.tally.evicted_invalidated += freed
        return engine.UsersAnswer(affected=affected, bytes=freed)

    def drain(self, *, draining: bool = True) -> engine.DrainAnswer:
        """Announce the end, or take it back: not ready from now on, still serving what arrives."""
        self.draining = draining
        return engine.DrainAnswer(draining=draining, in_flight=len(self._jobs))

    def put_split(self, request: engine.SplitRequest, *, now_ms: float) -> engine.SplitAnswer:
        """Take a split change in, as the contract says; the answer carries the split in force."""
        self.advance(now_ms)
        if request.start_id != self.start_id:
            status, reason = engine.SplitStatus.CONFLICT, f"startId {request.start_id!r} is not this process {self.start_id!r}"
        else:
            status, reason = self.split.put(request, now_ms=self.clock_ms)
            self.kv.held = self.split.held(self.clock_ms)
        return engine.SplitAnswer(
            status=status, split=split_state(self.split, self.emb, self.kv), start_id=self.start_id, reason=reason
        )

    def put_limits(self, request: engine.LimitsRequest) -> engine.LimitsAnswer:
        """Take new capacities for pre-inference in; revisions count as for the split."""
        answer = self.prefixes.put_limits(request)
        self.lower.set_limits(host_bytes=answer.limits.host_bytes, ssd_bytes=answer.limits.ssd_bytes)
        return answer

    def advance(self, now_ms: float) -> None:
        """Move model time forward: finish jobs, release what they pinned, settle the split, refill under the cap."""
        jobs, clock = self._jobs, max(self.clock_ms, now_ms)
        while jobs and jobs[0][0] <= clock:
            _, done, key = jobs[0]
            if done > clock:
                if self._in_service is None:
                    self._pin(key)
                break
            self._unpin()
            jobs.popleft()
        self.clock_ms = clock
        self._offload_until(clock)
        self.refill.until(clock)
        if self.split.deferred:
            self.split.settle(clock)
            self.kv.held = self.split.held(clock)

    def observe(self, now_ms: float) -> engine.Observe:
        """Return counters, gauges and the split in force at `now_ms`."""
        self.advance(now_ms)
        serving = bool(self._jobs) and self._jobs[0][0] <= self.clock_ms
        return engine.Observe(
            start_id=self.start_id,
            epoch=self.epoch,
            clock_ms=self.clock_ms,
            counters=self.tally.counters(emb=self.emb, kv=self.kv, lower=self.lower, split=self.split, prefixes=self.prefixes),
            gauges=engine.Gauges(
                queue=len(self._jobs) - serving, in_flight=len(self._jobs), live_prefix_bytes=self.kv.prefix_bytes
            ),
            split=split_state(self.split, self.emb, self.kv),
            latency=self.latency.snapshot(),
            draining=self.draining,
        )

    def describe(self) -> engine.Describe:
        """Return what this instance is; it always says that it is an emulation."""
        config = self.config
        return engine.Describe(
            contract_version=engine.VERSION,
            engine="grfleet-reference",
            emulation=True,
            start_id=self.start_id,
            epoch=self.epoch,
            model=self.model,
            pool_bytes=config.pool_bytes,
            granule_bytes=config.granule_bytes,
            link_bytes_per_second=config.service.link_bytes_per_second,
            kv_bytes_per_token=config.service.kv_bytes_per_token,
            emb_row_bytes=config.service.row_bytes,
            resizable=["emb", "kv"],
            key_kinds=["user", "row"],
            tiers=["hbm", *([LowerTier.HOST] if config.host_bytes else []), *([LowerTier.SSD] if config.ssd_bytes else [])],
            p99_ms=config.p99_ms,
            sampling=config.sampling,
            max_split_change_bytes=config.max_split_change_bytes,
            refill_blocks_serving=config.refill_blocks_serving,
        )

    def residency(self, cursor: int, *, now_ms: float, most: int = MAX_USERS) -> ResidencyReport:
        """Return whose state changed after a cursor, at most so many users; a cursor that is not known starts over."""
        self.advance(now_ms)
        since, users = self.resident.since(cursor, now_ms=self.clock_ms, most=most)
        return ResidencyReport(
            start_id=self.start_id, generation=self.epoch, since=since, cursor=self.resident.cursor, users=users
        )

    def ready(self) -> engine.ReadyAnswer:
        return engine.ReadyAnswer(ready=not self.draining, reasons=["draining"] if self.draining else [])

    def warm(self, *, popularity: engine.ItemPopularity | None = None, users: Iterable[tuple[str, str, int]] = ()) -> None:
        """Fill the caches to their steady state without serving.

        Rows: under independent draws the age of row i is exponential with rate p_i, so sorting such ages gives the LRU order.

        Parameters
        ----------
        popularity : ItemPopularity, optional
            The law of the coming requests; the configured one when absent.
        users : iterable of (user key, model version, history tokens)
            Least recently used first.
        """
        self._rows.warm(popularity, seed=self._seed)
        counted = self.kv.evicted_capacity_bytes
        for user_key, version, tokens in users:
            self.kv.access((user_key, version), tokens)
            self.resident.used((user_key, version), self.clock_ms)
        self.kv.evicted_capacity_bytes = counted

    def _serve(
        self,
        key: CacheKey,
        request_id: str,
        sampler: RowSampler,
        arrival: float,
        *,
        tokens: int,
        candidates: int,
        rows: int,
        per_token: int,
    ) -> tuple[float, float, int, int, int]:
        """Run one job through caches and server; return (start, service, tokens hit in HBM, rows missed, rows asked)."""
        model, tally = self.config.service, self.tally
        hit, loaded, stall = self._find(key, arrival, tokens=tokens, candidates=candidates, per_token=per_token)
        asked = rows - (hit + loaded) * per_token
        self.resident.used(key, self.clock_ms)
        self._report_user(key[0], tokens)
        missed = self._rows.missed(request_id, sampler, rows=rows, asked=asked, time_us=int(self.clock_ms * 1e3))
        defaulted = 0 if self._rows.waits(asked=asked, missed=missed) else missed
        taken = self.refill.share() if missed else 0.0
        compute = stall + model.compute_ms(history=tokens, candidates=candidates, cached=hit + loaded)
        gather = self._link.gather_ms(missed - defaulted, taken=taken)
        if gather:
            self._link.took(gather - model.gather_fixed_ms)
        service = compute + gather
        start = max(arrival, self._free_at_ms, self.refill.lets_serve_at_ms())
        self._free_at_ms = start + service
        self._jobs.append((start, start + service, key))
        if start <= arrival:
            self._pin(key)
        tally.kv_asked += tokens
        tally.kv_hit += hit
        tally.emb_asked += asked
        tally.emb_hit += asked - missed
        tally.emb_defaulted += defaulted
        tally.demand_bytes += missed * model.row_bytes
        tally.service_ms += service
        tally.service_squared += service * service
        tally.emb_miss_ms += gather
        tally.kv_miss_ms += compute - model.compute_ms(history=tokens, candidates=candidates, cached=tokens)
        return start, service, hit, missed, asked

    def _find(self, key: CacheKey, arrival: float, *, tokens: int, candidates: int, per_token: int) -> tuple[int, int, float]:
        """Ask all tiers for a history; return tokens hit in HBM, tokens loaded from below, and milliseconds that loading adds."""
        held = self.lower.take(key)
        hit = self.kv.access(key, tokens)
        if arrival >= self._free_at_ms:
            self._link.free_since(arrival)
        self._free_at_ms += self._link.hand_over(arrival, offloaded_bytes=self.lower.offloaded_bytes, free_at_ms=self._free_at_ms)
        self._offload_until(max(arrival, self._free_at_ms))
        if held is None:
            return hit, 0, 0.0
        taken = self.refill.share()
        again = self._link.gather_ms(int(per_token * self._rows.miss_ratio * min(held.tokens, tokens)), taken=taken)
        return hit, *self.histories.load(key, held, tokens=tokens, candidates=candidates, taken=taken, again_ms=again)

    def _report_user(self, user_key: str, tokens: int) -> None:
        key = sample_key(user_key)
        if is_sampled(key, self.config.sampling.users_one_in):
            self.samples.append(kind=KIND_KV, size=tokens, key=key, time_us=int(self.clock_ms * 1e3))

    def _arrive(self, arrival_ms: float) -> float:
        arrival = max(arrival_ms, self._last_arrival_ms)
        self._last_arrival_ms = arrival
        self.advance(arrival)
        return arrival

    def _pin(self, key: CacheKey) -> None:
        entry = self.kv.pin(key)
        self._in_service = (key, entry) if entry is not None else None

    def _unpin(self) -> None:
        if self._in_service is not None:
            self.tally.evicted_invalidated += self.kv.unpin(*self._in_service)
            self._in_service = None

    def _offload_until(self, now_ms: float) -> None:
        self._link.offload_until(now_ms, offloaded_bytes=self.lower.offloaded_bytes, refilling=self.refill.under_way)
