"""The state of users over three tiers: pages in HBM, chunks in host memory, files on SSD.

HBM is where state is made. It is copied to the host when it leaves HBM, so that sizes add up; or, where tiers are not exclusive,
in the background as it grows, so that leaving HBM costs nothing but the tail below a chunk. Host memory and SSD exclude each
other: what host memory gives up goes to SSD, and an announced user's state comes back **before** it is needed, within a share of
host memory that promoted state may take before anybody used it.
Sources: CachedAttention (ATC'24) for the queue and promotion, the code of MTServe for pages, chunks and background copies.
"""

from collections import OrderedDict, deque

from simulator.physics.link import HostLink, Purpose
from simulator.tiers.freshness import Freshness, Stamp, Verdict
from simulator.tiers.offload import OffloadQueue, Range
from simulator.tiers.promotion import Promotions
from simulator.tiers.replaying import POLICIES
from simulator.tiers.ssd import Lane
from simulator.tiers.store_types import Served, StoreConfig, StoreCounts
from simulator.tiers.tier import Put, Tier
from simulator.tiers.waiting import WaitingQueue


class TieredStore:
    """One instance's tiers in model time.

    Parameters
    ----------
    config : StoreConfig
    freshness : Freshness, optional
        Versions and time to live; nothing ages when absent.
    """

    def __init__(self, config: StoreConfig, *, freshness: Freshness | None = None) -> None:
        self.config = config
        self.freshness = freshness or Freshness()
        self.counts = StoreCounts()
        self.queue = WaitingQueue(config.users)
        self.link = HostLink(config.link)
        self.offload = OffloadQueue(
            chunk_tokens=config.chunk_tokens,
            limit_tokens=config.offload_limit_tokens,
            write_buffer_tokens=config.write_buffer_tokens,
        )
        page, chunk = (tokens * config.bytes_per_token for tokens in (config.page_tokens, config.chunk_tokens))
        self.hbm = self._tier(config.hbm_policy, config.hbm_bytes, page)
        self.dram = self._tier(config.host_policy, config.dram_bytes, chunk)
        self.ssd = self._tier(config.host_policy, config.ssd_bytes, chunk)
        self.hbm.held = self.offload.frozen
        self.dram.held = self.offload.pending
        self.ssd.held = self.offload.pending
        self.promotions = Promotions(
            limit_bytes=config.promoted_limit_bytes,
            lane=Lane(bytes_per_second=config.ssd.read_bytes_per_second, fixed_ms=config.ssd.fixed_ms),
            counts=self.counts,
        )
        self._writes = Lane(bytes_per_second=config.ssd.write_bytes_per_second, fixed_ms=config.ssd.fixed_ms)
        self._now_ms = 0.0
        self._hbm_tokens: dict[int, int] = {}
        self._flights: dict[int, Range] = {}
        self._stamps: OrderedDict[int, Stamp] = OrderedDict()
        self._announced: deque[tuple[float, int, int]] = deque()

    def hbm_tokens(self, user: int) -> int:
        """Leading tokens of the user that HBM has."""
        return self._hbm_tokens.get(user, 0)

    def host_tokens(self, user: int) -> int:
        """Leading tokens of the user that host memory or SSD has."""
        return self.offload.on_host(user)

    def announce(self, user: int, *, now_ms: float) -> None:
        """A request of this user waits, or an early signal says that it will come."""
        self.advance(now_ms)
        if self.queue.announce(user):
            self._announced.append((now_ms, user, self.queue.newest_ticket))
        if user in self.ssd:
            self.promotions.want(user)
        self._promote()

    def withdraw(self, user: int, *, now_ms: float) -> None:
        """An announced request will not come; what was promoted for it becomes an entry like others."""
        self.advance(now_ms)
        self._withdrawn(user)

    def serve(self, user: int, tokens: int, *, now_ms: float) -> Served:
        """Serve a request whose history has `tokens`: say where it came from, and keep the state that it leaves behind."""
        self.advance(now_ms)
        self.queue.leave(user)
        self._check(user)
        self._shorten(user, tokens)
        in_hbm, on_host = self.hbm_tokens(user), self.host_tokens(user)
        from_ssd, wait_ms = user in self.ssd, 0.0
        if from_ssd:
            wait_ms = self._fetch(user, needed=on_host > in_hbm)
        elif self.promotions.used(user):
            self.counts.promoted_used += 1
        reloaded = max(0, on_host - in_hbm)
        self._keep(user, tokens, found=max(in_hbm, on_host) > 0)
        self._promote()
        return Served(
            hbm_tokens=in_hbm,
            dram_tokens=0 if from_ssd else reloaded,
            ssd_tokens=reloaded if from_ssd else 0,
            computed_tokens=tokens - max(in_hbm, on_host),
            wait_ms=wait_ms,
        )

    def cut(self, user: int, drop_tokens: int) -> None:
        """Drop the first tokens of a user's history everywhere; what is left stays usable (`simulator.tiers.histories`).

        Raises
        ------
        ValueError
            When it is not whole chunks.
        """
        have = max(0, self.hbm_tokens(user) - drop_tokens)
        on_host = max(0, self.host_tokens(user) - drop_tokens)
        self.offload.cut(user, drop_tokens, have_tokens=0 if self.config.exclusive else have)
        self._resize_hbm(user, have)
        self._resize_host(user, on_host)
        self._copy_more()

    def forget(self, user: int) -> None:
        """Drop all state of a user."""
        self.promotions.give_up(user)
        self.offload.host_lost(user)
        self._hbm_tokens.pop(user, None)
        self._stamps.pop(user, None)
        for tier in (self.hbm, self.dram, self.ssd):
            tier.take(user)

    def publish(self, *, model: int | None = None, emb: int | None = None) -> int:
        """Put another version of model or embeddings in force; drop what a new model makes useless and return how many users."""
        self.freshness.emb = self.freshness.emb if emb is None else emb
        if model is None or model == self.freshness.model:
            return 0
        self.freshness.model = model
        useless = [user for user, stamp in self._stamps.items() if stamp.model != model]
        for user in useless:
            self.forget(user)
        self.counts.invalidated += len(useless)
        return len(useless)

    def resize(self, *, hbm_bytes: int | None = None, dram_bytes: int | None = None, ssd_bytes: int | None = None) -> None:
        """Change limits; what no longer fits leaves now, and sources of copies as soon as they are copied.

        Nothing is admitted above a limit, so only such sources can lie above it.
        """
        for tier, limit in ((self.hbm, hbm_bytes), (self.dram, dram_bytes), (self.ssd, ssd_bytes)):
            if limit is not None:
                tier.limit_bytes = limit
        if dram_bytes is not None:
            self.promotions.limit_bytes = dram_bytes * self.config.promoted_percent // 100
        self._fit()
        self._copy_more()  # what left HBM is on its way from now on, not from the next request on

    def advance(self, now_ms: float) -> None:
        """Let copies, promotions and expiry happen up to `now_ms`, in order.

        Raises
        ------
        ValueError
            When time would go backwards.
        """
        if now_ms < self._now_ms:
            raise ValueError(f"now_ms: {now_ms} is before {self._now_ms}")
        while True:
            times = [
                time for time in (self.link.next_event_ms(), self.promotions.next_ms()) if time is not None and time <= now_ms
            ]
            if not times:
                break
            self._now_ms = max(self._now_ms, min(times))
            self._arrive()
        self._now_ms = now_ms
        self._arrive()  # the link may end a transfer that is due within its rounding of now
        self._expire()

    def _arrive(self) -> None:
        """Take in what has crossed the link or landed by now, and send what may follow."""
        for done in self.link.advance(self._now_ms):
            if done.transfer in self._flights:
                self._copied(self._flights.pop(done.transfer))
        for user in self.promotions.landed(self._now_ms):
            self._land(user)
        self._fit()
        self._copy_more()

    def _fit(self) -> None:
        """Let go what lies above a limit that was lowered."""
        if self.hbm.overage_bytes:
            self._left_hbm(Put(kept=True, gone=self.hbm.trim(self.hbm.limit_bytes)))
        if self.dram.overage_bytes:
            self._demote(Put(kept=True, gone=self.dram.trim(self.dram.limit_bytes)))
        if self.ssd.overage_bytes:
            for user, _ in self.ssd.trim(self.ssd.limit_bytes):
                self._host_lost(user)

    def _tier(self, policy: str, limit_bytes: int, granule_bytes: int) -> Tier:
        return Tier(limit_bytes=limit_bytes, granule_bytes=granule_bytes, policy=POLICIES[policy](self.queue, limit_bytes))

    def _check(self, user: int) -> None:
        stamp = self._stamps.get(user)
        if stamp is None:
            return
        verdict = self.freshness.judge(stamp, now_ms=self._now_ms)
        if not verdict.usable:
            self.forget(user)
            self.counts.expired += verdict is Verdict.EXPIRED
            self.counts.invalidated += verdict is not Verdict.EXPIRED

    def _withdrawn(self, user: int) -> None:
        self.queue.leave(user)
        if not self.queue.waits(user):
            self.promotions.give_up(user)
            self._promote()

    def _expire(self) -> None:
        """Drop what is too old: announcements nobody came for, and state nobody asked for."""
        lives_ms = self.config.announced_ms
        while self._announced and (lives_ms is None or self._now_ms - self._announced[0][0] > lives_ms):
            _, user, ticket = self._announced.popleft()
            if lives_ms is not None and self.queue.next_ticket[user] == ticket:
                self.counts.announcements_expired += 1
                self._withdrawn(user)
        while self._stamps:
            user, stamp = next(iter(self._stamps.items()))
            if not self.freshness.expired(stamp, now_ms=self._now_ms):
                return
            self.counts.expired += 1
            self.forget(user)

    def _shorten(self, user: int, tokens: int) -> None:
        """A history that became shorter: what lies behind its end is no state of it."""
        self.offload.shorten(user, tokens)
        self._resize_host(user, self.host_tokens(user))
        if self.hbm_tokens(user) > tokens:
            self._resize_hbm(user, tokens)

    def _resize_hbm(self, user: int, tokens: int) -> None:
        if not tokens:
            self.hbm.take(user)
            self._hbm_tokens.pop(user, None)
        elif user in self.hbm:
            self.hbm.put(user, tokens * self.config.bytes_per_token)
            self._hbm_tokens[user] = tokens

    def _resize_host(self, user: int, tokens: int) -> None:
        for tier in (self.dram, self.ssd):
            if user in tier and not tokens:
                tier.take(user)
            elif user in tier and tier.bytes_of(user) != tokens * self.config.bytes_per_token:
                tier.put(user, tokens * self.config.bytes_per_token)

    def _keep(self, user: int, tokens: int, *, found: bool) -> None:
        """Hold the state that a request leaves in HBM and offer it to the host."""
        self._stamps[user] = self.freshness.stamp(self._stamps.get(user) if found else None, now_ms=self._now_ms)
        self._stamps.move_to_end(user)
        self.dram.use(user)
        outcome = self.hbm.put(user, tokens * self.config.bytes_per_token)
        self._left_hbm(outcome, newest=user)
        if outcome.kept:
            self._hbm_tokens[user] = tokens
        if outcome.kept and self.config.exclusive:
            self._give_host_up(user)
        else:
            self.offload.offer(user, tokens)
        if user not in self.hbm:
            self.offload.owe_nothing(user)
        self._copy_more()

    def _left_hbm(self, outcome: Put, *, newest: int | None = None) -> None:
        for user, _ in outcome.gone:
            tokens = self._hbm_tokens.pop(user)
            if user != newest:
                if self.config.exclusive:
                    self.offload.offer(user, tokens)
                self.counts.tail_tokens_lost += tokens - self.offload.position(user)
                self.offload.owe_nothing(user)
                self._forget_if_nowhere(user)

    def _copy_more(self) -> None:
        self.offload.offer_again()
        while len(self._flights) < self.config.copiers:
            taken = self.offload.next_range()
            if taken is None:
                return
            size = taken.tokens * self.config.bytes_per_token
            self._flights[self.link.submit(Purpose.OFFLOAD, size, now_ms=self._now_ms)] = taken

    def _copied(self, done: Range) -> None:
        """A range has crossed the link: it joins what the host has of its user, wherever that is."""
        user, size = done.user, done.stop * self.config.bytes_per_token
        if not self.offload.is_copying(done):
            return
        self.counts.offloaded_bytes += done.tokens * self.config.bytes_per_token
        if user in self.ssd:
            kept = self._write(user, size, new_bytes=done.tokens * self.config.bytes_per_token)
        else:
            outcome = self.dram.put(user, size)
            self._demote(outcome, but=user)
            kept = outcome.kept
            if not kept:  # the policy would rather not have it in host memory, or nothing there may go
                self.dram.take(user)
                self.promotions.evicted(user)
                kept = self._write(user, size, new_bytes=size)
        if kept:
            self.offload.copied(done)
        elif user in self.ssd:
            self.offload.failed(done)
        else:
            self._host_lost(user)
        self._note_peaks()

    def _demote(self, outcome: Put, *, but: int | None = None) -> None:
        """What host memory gave up goes to SSD, or is lost."""
        for user, size in outcome.gone:
            if user != but:
                self.promotions.evicted(user)
                if not self._write(user, size, new_bytes=size):
                    self._host_lost(user)

    def _write(self, user: int, size: int, *, new_bytes: int) -> bool:
        """Keep `size` bytes of a user on the SSD, of which `new_bytes` have to be written; say whether they are there."""
        if self._writes.backlog_bytes(self._now_ms) + new_bytes > self.config.ssd.write_backlog_bytes:
            self.counts.demotions_lost += 1
            return False
        outcome = self.ssd.put(user, size)
        for other, _ in outcome.gone:
            if other != user:
                self._host_lost(other)
        if outcome.kept:
            self._writes.submit(new_bytes, now_ms=self._now_ms)
            self.counts.ssd_written_bytes += new_bytes
            if self.queue.waits(user):
                self.promotions.want(user)
        else:
            self.counts.demotions_lost += 1
        return outcome.kept

    def _give_host_up(self, user: int) -> None:
        """HBM has the user's state: no other tier keeps a copy."""
        self.promotions.give_up(user)
        self.offload.host_lost(user)
        self.dram.take(user)
        self.ssd.take(user)

    def _host_lost(self, user: int) -> None:
        self.dram.take(user)
        self.ssd.take(user)
        self.promotions.give_up(user)
        # Nothing is owed: offered again at once, users would push each other out of a small host tier for ever.
        self.offload.host_lost(user)
        self._forget_if_nowhere(user)

    def _forget_if_nowhere(self, user: int) -> None:
        if user not in self.hbm and user not in self.dram and user not in self.ssd and not self.offload.pending(user):
            self._stamps.pop(user, None)

    def _fetch(self, user: int, *, needed: bool) -> float:
        """A request finds its state on the SSD: read it now, or wait for the promotion on its way; return the wait."""
        done_ms = self.promotions.flying(user)
        if done_ms is not None:
            self.counts.promoted_late += needed
            self.promotions.used(user)
        elif not needed:
            return 0.0
        else:
            done_ms = self.promotions.lane.submit(self.ssd.bytes_of(user), now_ms=self._now_ms)
            self.counts.ssd_read_bytes += self.ssd.bytes_of(user)
        self._lift(user)
        return max(0.0, done_ms - self._now_ms) if needed else 0.0

    def _promote(self) -> None:
        for user in self.promotions.start(self.ssd, now_ms=self._now_ms):
            self.counts.ssd_read_bytes += self.ssd.bytes_of(user)
        self._note_peaks()

    def _land(self, user: int) -> None:
        """A promotion's bytes are read: into host memory, unless the policy would rather not."""
        if user in self.ssd and not self._lift(user):
            self.promotions.evicted(user)

    def _lift(self, user: int) -> bool:
        """Move a user from SSD to host memory; say whether that took place."""
        outcome = self.dram.put(user, self.ssd.bytes_of(user))
        if outcome.kept:
            self.ssd.take(user)
        self._demote(outcome, but=user)
        self._note_peaks()
        return outcome.kept

    def _note_peaks(self) -> None:
        counts = self.counts
        counts.peak_dram_bytes = max(counts.peak_dram_bytes, self.dram.used_bytes)
        counts.peak_promoted_bytes = max(counts.peak_promoted_bytes, self.promotions.held_bytes)
