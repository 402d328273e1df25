"""The tiered store: promotion on a trace, tokens found at published sizes, off-load under pressure, cut histories, age."""

import dataclasses
from functools import cache

from rich.table import Table

from bench.report import Result, single
from bench.tiers_eviction import BYTES_PER_TOKEN, conversation
from bench.tiers_known import PROMOTION
from simulator.physics.accelerator import load_accelerator
from simulator.physics.transfer import TransferCost, native_transfer
from simulator.tiers.freshness import Freshness
from simulator.tiers.grown import serve_grown
from simulator.tiers.histories import HistoryBook, Positions
from simulator.tiers.offload import OffloadQueue, Rule
from simulator.tiers.ssd import SsdCost
from simulator.tiers.store import TieredStore
from simulator.tiers.store_replay import FalseSignals, StoreReplayed, replay_on_store
from simulator.tiers.store_types import StoreConfig
from simulator.tiers.visits import Visits, spread_ticks, visits_of_log
from simulator.workloads.generated import generated
from simulator.workloads.traffic import Traffic

GIB = 1 << 30
USERS = 1000
CHUNK_TOKENS = 1024
QUICK_HOURS, HOURS = 1.5, 6.0
INSTANT = TransferCost(
    name="instant",
    to_device_fixed_ms=0.0,
    to_device_bytes_per_second=10**15,
    to_host_fixed_ms=0.0,
    to_host_bytes_per_second=10**15,
    to_device_duplex_share=1.0,
    to_host_duplex_share=1.0,
)
NVME = SsdCost(read_bytes_per_second=6e9, write_bytes_per_second=3e9, fixed_ms=0.1, write_backlog_bytes=8 * GIB)


@cache
def feed(hours: float, seed: int) -> Visits:
    """A thousand users of a feed, about 10 000 tokens each at 16 KiB: sessions of eight requests, all generated."""
    log, _ = generated(
        Traffic(seed=seed, duration_s=hours * 3600.0, requests_per_second=2.0, max_history_tokens=60_000),
        users=USERS,
        history_median_tokens=9000.0,
        history_sigma=0.4,
        tokens_per_visit=12,
    )
    return visits_of_log(log, bytes_per_token=BYTES_PER_TOKEN)


def measure(*, quick: bool, seed: int) -> tuple[list[Result], list[Table]]:
    """Return figures with goals, and the tables that stand behind them."""
    visits = feed(QUICK_HOURS if quick else HOURS, seed)
    results, promotion = _promotion(quick=quick, seed=seed)
    results += _published_sizes(visits)
    results += _offload(visits)
    cut_results, cuts = _cut_histories(visits)
    return results + cut_results, [promotion, cuts, _freshness(visits)]


def _trace_config(dram_share: float, **changes: object) -> StoreConfig:
    trace = conversation()
    base = StoreConfig(
        users=trace.users,
        bytes_per_token=BYTES_PER_TOKEN,
        hbm_bytes=0,
        dram_bytes=round(dram_share * trace.final_bytes),
        ssd_bytes=round(0.2 * trace.final_bytes),
        link=INSTANT,
        page_tokens=1,
        chunk_tokens=1,
        offload_limit_tokens=1 << 24,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]  # fields by name


def _run(
    config: StoreConfig, *, window: int = 0, lead_ms: float | None = None, false_per_visit: float = 0.0, seed: int
) -> tuple[StoreReplayed, TieredStore]:
    store = TieredStore(config)
    announced = None if lead_ms is not None or window == 0 else window
    wrong = FalseSignals(per_visit=false_per_visit, withdrawn_after_ms=1000.0, seed=seed) if false_per_visit else None
    visits = spread_ticks(conversation())
    return replay_on_store(store, visits, window=announced, lead_ms=lead_ms, false_signals=wrong), store


def _promotion(*, quick: bool, seed: int) -> tuple[list[Result], Table]:
    table = Table(title="promotion, SSD 20 %: returning turns found in host memory (known)")
    for name in ("host memory", "announced", "in host memory", "on SSD", "late", "wasted", "most unused, share of host memory"):
        table.add_column(name, justify="right")
    timed = {"link": native_transfer(load_accelerator("a100")), "chunk_tokens": 512, "ssd": NVME}
    # Name, share of host memory, window, lead time, false signals per true one, other sizes.
    runs: list[tuple[str, float, int, float | None, float, dict[str, object]]] = [
        ("nothing", 0.01, 0, None, 0.0, {}),
        ("1 request ahead", 0.01, 1, None, 0.0, {}),
        ("200 ahead, half the memory", 0.005, 200, None, 0.0, {}),
        ("the same without a budget", 0.005, 200, None, 0.0, {"promoted_percent": 100}),
        ("300 ms ahead, real SSD", 0.01, 0, 300.0, 0.0, timed),
        ("the same, half of all signals false", 0.01, 0, 300.0, 1.0, timed),
    ]
    if not quick:
        runs += [
            ("the same, nine in ten false", 0.01, 0, 300.0, 9.0, timed),
            ("10 ahead, half the memory", 0.005, 10, None, 0.0, {}),
            ("50 ms ahead, real SSD", 0.01, 0, 50.0, 0.0, timed),
            ("100 ms ahead, real SSD", 0.01, 0, 100.0, 0.0, timed),
        ]
    found: dict[str, float] = {}
    peak = 0.0
    for name, share, window, lead_ms, wrong, changes in runs:
        config = _trace_config(share, **changes)
        outcome, store = _run(config, window=window, lead_ms=lead_ms, false_per_visit=wrong, seed=seed)
        counts = store.counts
        unused = counts.peak_promoted_bytes / config.dram_bytes
        if "promoted_percent" not in changes:
            peak = max(peak, unused)
        found[name] = outcome.found("dram")
        known = PROMOTION.get((share, window)) if lead_ms is None else None
        shown = f"{found[name]:.3f}" + (f" ({known:.3f})" if known is not None else "")
        table.add_row(
            f"{share * 100:g} %",
            name,
            shown,
            f"{outcome.found('ssd'):.3f}",
            str(counts.promoted_late),
            str(counts.promoted_wasted),
            f"{unused:.3f}",
        )
    nothing, unbudgeted = found["nothing"], found["the same without a budget"]
    return [
        _at_least("DRAM hit, DRAM 1 % + SSD 20 %, 1 request ahead", found["1 request ahead"], 0.94, nothing),
        _at_least("DRAM hit, 300 ms ahead, SSD of 6 GB/s", found["300 ms ahead, real SSD"], 0.94, nothing),
        _at_least("DRAM hit, the same, half of all signals false", found["the same, half of all signals false"], 0.94, nothing),
        _at_least("DRAM hit, DRAM 0.5 %, 200 ahead, budgeted", found["200 ahead, half the memory"], 0.94, unbudgeted),
        single("promoted and unused, most at any time", peak, "share of DRAM", goal=1 / 3),
    ], table


def feed_config(**changes: object) -> StoreConfig:
    """HBM of 40 960 pages of 32 tokens at 16 KiB, and host memory that holds everybody; copied as it grows, as published."""
    base = StoreConfig(
        users=USERS,
        bytes_per_token=BYTES_PER_TOKEN,
        hbm_bytes=20 * GIB,
        dram_bytes=192 * GIB,
        link=native_transfer(load_accelerator("a100")),
        chunk_tokens=CHUNK_TOKENS,
        host_policy="lru",
        offload_limit_tokens=1 << 18,
        exclusive=False,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]  # fields by name


def _published_sizes(visits: Visits) -> list[Result]:
    """Tokens found with host memory for everybody and, bounded, for most, beside HBM alone."""
    results = []
    bare = TieredStore(feed_config(dram_bytes=0))
    alone = replay_on_store(bare, visits).token_share("hbm")
    for host_gib, goal in ((192, 0.985), (128, 0.985), (96, None)):
        store = TieredStore(feed_config(dram_bytes=host_gib * GIB))
        outcome = replay_on_store(store, visits)
        hit = outcome.token_share("hbm", "dram")
        title = f"tokens hit in HBM 20 GiB + DRAM {host_gib} GiB"
        results.append(single(title, hit, "hit ratio", baseline=alone, goal=goal, at_least=True))
        peak = store.counts.peak_dram_bytes / (host_gib * GIB)
        results.append(single(f"host bytes, most at any time, {host_gib} GiB", peak, "share of limit", goal=1.0))
    return results


def _offload(visits: Visits) -> list[Result]:
    """The same growing users through a queue of four chunks and a copier that takes one chunk a visit."""
    counts = {}
    for rule in (Rule.ON_PREPARE, Rule.ON_ACCEPT):
        queue = OffloadQueue(chunk_tokens=CHUNK_TOKENS, limit_tokens=4 * CHUNK_TOKENS, rule=rule)
        for user, tokens in zip(visits.user.tolist(), (visits.state_bytes // BYTES_PER_TOKEN).tolist(), strict=True):
            queue.offer(user, tokens)
            queue.offer_again()
            taken = queue.next_range()
            if taken is not None:
                queue.copied(taken)
        counts[rule] = queue.counts
    accept, prepare = counts[Rule.ON_ACCEPT], counts[Rule.ON_PREPARE]
    holes = single("users with a hole, position moves on accept", len(accept.holed_users), "users", goal=0)
    return [
        dataclasses.replace(holes, baseline=float(len(prepare.holed_users))),
        single("ranges dropped there, each offered again", accept.drops, "count", baseline=prepare.drops),
    ]


def _cut_histories(visits: Visits) -> tuple[list[Result], Table]:
    """Histories of a model that sees 8 192 tokens: how they are cut, and what is computed for it."""
    table = Table(title="histories above 8192 tokens: computed tokens a visit, serves that are approximate, forced recomputes")
    for name in ("how", "computed a visit", "approximate", "cuts", "recomputes"):
        table.add_column(name, justify="right")
    deep, window = Positions(layers=8), Positions(layers=8, window_tokens=512)
    baked = Positions(layers=8, decoupled=False)
    computed = {}
    for name, positions, cut, recompute in (
        ("baked positions, token by token", baked, 1, None),
        ("baked positions, 1024 at a time", baked, CHUNK_TOKENS, None),
        ("decoupled, never recomputed", deep, CHUNK_TOKENS, None),
        ("decoupled, recomputed after 2 cuts", deep, CHUNK_TOKENS, 2),
        ("decoupled, sliding window of 512 (exact)", window, CHUNK_TOKENS, None),
    ):
        store = TieredStore(feed_config())
        book = HistoryBook(positions=positions, max_tokens=8192, cut_tokens=cut, recompute_after=recompute)
        total = 0
        lengths = (visits.state_bytes // BYTES_PER_TOKEN).tolist()
        for user, tokens, now_ms in zip(visits.user.tolist(), lengths, visits.time_ms.tolist(), strict=True):
            total += serve_grown(store, book, user, tokens, now_ms=now_ms)[1].computed_tokens
        counts = book.counts
        computed[name] = total / len(visits)
        share = counts.approximate / (counts.approximate + counts.exact)
        table.add_row(name, f"{computed[name]:.0f}", f"{share:.3f}", str(counts.cuts), str(counts.recomputes))
    baseline = computed["baked positions, token by token"]
    kept = computed["decoupled, recomputed after 2 cuts"]
    return [single("tokens computed a visit, decoupled positions", kept, "tokens", baseline=baseline)], table


def _freshness(visits: Visits) -> Table:
    """New embedding rows every ten minutes: what a bound on staleness costs in hits."""
    table = Table(title="embedding version every 10 minutes: tokens hit, share of usable state that is stale, versions behind")
    for name in ("versions behind at most", "time to live", "tokens hit", "stale", "mean lag of stale"):
        table.add_column(name, justify="right")
    for lag, ttl_ms in ((None, None), (None, 3_600_000.0), (6, None), (1, None), (0, None)):
        store = TieredStore(feed_config(), freshness=Freshness(max_emb_lag=lag, ttl_ms=ttl_ms))
        outcome = replay_on_store(store, visits, emb_every_ms=600_000.0)
        table.add_row(
            "any" if lag is None else str(lag),
            "-" if ttl_ms is None else "1 h",
            f"{outcome.token_share('hbm', 'dram'):.3f}",
            f"{store.freshness.stale_share:.3f}",
            f"{store.freshness.mean_lag:.1f}",
        )
    return table


def _at_least(name: str, value: float, goal: float, baseline: float) -> Result:
    return single(name, value, "hit ratio", baseline=baseline, goal=goal, at_least=True)
