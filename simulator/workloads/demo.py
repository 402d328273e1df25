"""The demonstration's traffic: one pool, two regimes, the second of which wants the opposite split of the first.

**Rule** (nothing in it looks at a controller's result):

1. Users, their order of return and their history lengths come from the Mooncake conversation trace (`traces.mooncake` says how a
   user is read off it). A user with two or more requests in the trace is *returning*, others are *single*.
2. First half, `returning`: all requests of returning users, in trace order. A hit in the KV cache saves a long recomputation.
   It is preceded by a run-in of the same traffic, a sixth of the measured time, which no figure counts.
3. Second half, `newcomers`: the requests of single users whose history is not above the median of the trace, in trace order,
   ranking more candidates from a wider catalogue. Nobody comes back, so KV memory saves nothing and embedding rows decide.
   Used up, either stream starts again with new users (counted as clones).
4. Arrivals are consecutive stretches of the Azure conversation trace, one a half, each warped linearly onto its half.
5. Load: one rate for both halves, the multiple of 5 requests/s at which the best of the fixed splits 20, 35, 50, 65 and 80 % of
   the whole run is busy half of the time. SLO: 1.25 times the P99 that the run has when each half is served at its own best of
   these splits, rounded up to 10 ms. Both were fixed from replays of fixed splits, before any adaptive run.

Real: who comes after whom, who returns after how many others, ratios of history lengths, shape of the arrivals. Scaled: history
lengths by HISTORY_PERCENT and cut at MAX_HISTORY_TOKENS; time, by the warp. Assumed, because no public trace has them: numbers of
candidates, rows a token, and the popularity of items (Zipf, within the range that published embedding traces show).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from contract.engine import ItemPopularity, ModelIdentity, Sampling
from simulator.core.config import GIB, InstanceConfig
from simulator.core.instance import GRInstanceCore
from simulator.traces import TraceEvent, load_azure, load_mooncake, user_events
from simulator.workloads.compose import PhasePlan, Workload, compose

DEMO_POOL_KEY = b"grfleet demonstration key: public on purpose"
MODEL_NAME = "hstu-demo"
MODEL_VERSION = "1"
HISTORY_PERCENT = 80
MAX_HISTORY_TOKENS = 8192
ROWS_PER_TOKEN = 8
RATE_PER_SECOND = 85.0
SLO_MS = 170
RUN_IN_SHARE = 1.0 / 6.0

RETURNING_CANDIDATES = (96, 160)
RETURNING_ITEMS = ItemPopularity(exponent=1.05, catalog_rows=8_000_000)
NEWCOMERS_CANDIDATES = (2000, 3000)
NEWCOMERS_ITEMS = ItemPopularity(exponent=0.9, catalog_rows=20_000_000)

POOL_BYTES = 4 * GIB
ROWS_ONE_IN = 256
FIXED_SPLITS = (20, 35, 50, 65, 80)


@dataclass(frozen=True, kw_only=True)
class TraceFiles:
    """Where the traces lie."""

    mooncake: Path
    azure: Path

    @classmethod
    def under(cls, folder: Path) -> "TraceFiles":
        """Return the files by their published names in `folder`."""
        return cls(mooncake=folder / "mooncake_conversation.jsonl", azure=folder / "azure_llm_2023_conv.csv")


def demo_workload(traces: TraceFiles, *, seed: int = 1, duration_s: float = 120.0, pool_key: bytes = DEMO_POOL_KEY) -> Workload:
    """Return the demonstration's requests for one pool.

    Parameters
    ----------
    traces : TraceFiles
        The two public traces.
    seed : int
        Of the candidates' numbers; everything else is in the traces.
    duration_s : float
        Seconds of both halves together; the run-in comes on top.
    pool_key : bytes
        Key that hashes user ids.

    Raises
    ------
    TraceError
        When a trace is missing or bad.
    ValueError
        When the duration leaves a half without requests.
    """
    returning, newcomers = split_visits(user_events(load_mooncake(traces.mooncake)))
    half_ms = duration_s * 1000.0 / 2.0
    run_in_ms = duration_s * 1000.0 * RUN_IN_SHARE
    first = PhasePlan(
        name="returning",
        visits=returning,
        duration_ms=run_in_ms + half_ms,
        requests_per_second=RATE_PER_SECOND,
        history_percent=HISTORY_PERCENT,
        max_history_tokens=MAX_HISTORY_TOKENS,
        candidates=RETURNING_CANDIDATES,
        rows_per_token=ROWS_PER_TOKEN,
        popularity=RETURNING_ITEMS,
    )
    second = replace(
        first,
        name="newcomers",
        visits=newcomers,
        duration_ms=half_ms,
        candidates=NEWCOMERS_CANDIDATES,
        popularity=NEWCOMERS_ITEMS,
    )
    composed = compose([first, second], load_azure(traces.azure), pool_key=pool_key, model_version=MODEL_VERSION, seed=seed)
    return replace(composed, measured_from_ms=run_in_ms)


def demo_instance(emb_percent: int) -> InstanceConfig:
    """Return the instance of the demonstration with the given first split, in points of its pool."""
    return InstanceConfig(
        pool_bytes=POOL_BYTES,
        emb_percent=emb_percent,
        p99_ms=float(SLO_MS),
        model=ModelIdentity(name=MODEL_NAME, version=MODEL_VERSION, emb_version="1"),
        popularity=RETURNING_ITEMS,
        sampling=Sampling(users_one_in=1, rows_one_in=ROWS_ONE_IN),
    )


def demo_core(emb_percent: int, index: int) -> GRInstanceCore:
    """Return instance `index` of the demonstration as its engine process starts it: seeded by its index, EMB cache warm."""
    core = GRInstanceCore(demo_instance(emb_percent), index + 1)
    core.warm()
    return core


def split_visits(visits: list[TraceEvent]) -> tuple[list[TraceEvent], list[TraceEvent]]:
    """Return (requests of returning users, requests of single users with a history up to the median), each in trace order."""
    turns: dict[str, int] = {}
    for visit in visits:
        turns[visit.user] = turns.get(visit.user, 0) + 1
    middle = median(visit.history_tokens for visit in visits)
    returning = [visit for visit in visits if turns[visit.user] > 1]
    newcomers = [visit for visit in visits if turns[visit.user] == 1 and visit.history_tokens <= middle]
    return returning, newcomers
