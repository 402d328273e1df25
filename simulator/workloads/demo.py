"""The demonstration's traffic: one pool, two regimes, the second of which wants the opposite split of the first.

**Rule** (nothing in it looks at a controller's result):

1. Users, their order of return and their history lengths come from the Mooncake conversation trace (`traces.mooncake` says how a
   user is read off it). A user with two or more requests in the trace is *returning*, others are *single*.
2. First half, `returning`: all requests of returning users, in trace order. A hit in the KV cache saves a long recomputation.
3. Second half, `newcomers`: the requests of single users whose history is not above the median of the trace, in trace order,
   ranking more candidates from a wider catalogue. Nobody comes back, so KV memory saves nothing and embedding rows decide.
4. Arrivals are consecutive stretches of the Azure conversation trace, one a half, each warped linearly onto its half.

Real: who comes after whom, who returns after how many others, ratios of history lengths, shape of the arrivals. Scaled: history
lengths by HISTORY_PERCENT and cut at MAX_HISTORY_TOKENS; time, by the warp. Assumed, because no public trace has them: numbers of
candidates, rows a token, and the popularity of items (Zipf).
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from contract.engine import ItemPopularity
from simulator.traces import TraceEvent, load_azure, load_mooncake, user_events
from simulator.workloads.compose import PhasePlan, Workload, compose

DEMO_POOL_KEY = b"grfleet demonstration key: public on purpose"
MODEL_VERSION = "demo-1"
HISTORY_PERCENT = 50
MAX_HISTORY_TOKENS = 16_384

RETURNING_RATE = 60.0
RETURNING_CANDIDATES = (96, 160)
RETURNING_ITEMS = ItemPopularity(exponent=1.05, catalog_rows=20_000_000)
NEWCOMERS_RATE = 60.0
NEWCOMERS_CANDIDATES = (768, 1280)
NEWCOMERS_ITEMS = ItemPopularity(exponent=0.9, catalog_rows=100_000_000)
ROWS_PER_TOKEN = 4


@dataclass(frozen=True, kw_only=True)
class TraceFiles:
    """Where the traces lie."""

    mooncake: Path
    azure: Path

    @classmethod
    def under(cls, folder: Path) -> "TraceFiles":
        """Return the files by their published names in `folder`."""
        return cls(mooncake=folder / "mooncake_conversation.jsonl", azure=folder / "azure_llm_2023_conv.csv")


def demo_workload(
    traces: TraceFiles,
    *,
    seed: int = 1,
    duration_s: float = 120.0,
    pool_key: bytes = DEMO_POOL_KEY,
    rate_percent: int = 100,
) -> Workload:
    """Return the demonstration's requests for one pool.

    Parameters
    ----------
    traces : TraceFiles
        The two public traces.
    seed : int
        Of the candidates' numbers; everything else is in the traces.
    duration_s : float
        Seconds of both halves together.
    pool_key : bytes
        Key that hashes user ids.
    rate_percent : int
        Scale of both rates, per cent.

    Raises
    ------
    TraceError
        When a trace is missing or bad.
    ValueError
        When the duration leaves a half without requests.
    """
    visits = user_events(load_mooncake(traces.mooncake))
    returning, newcomers = split_visits(visits)
    half_ms = duration_s * 1000.0 / 2.0
    plans = [
        PhasePlan(
            name="returning",
            visits=returning,
            duration_ms=half_ms,
            requests_per_second=RETURNING_RATE * rate_percent / 100.0,
            history_percent=HISTORY_PERCENT,
            max_history_tokens=MAX_HISTORY_TOKENS,
            candidates=RETURNING_CANDIDATES,
            rows_per_token=ROWS_PER_TOKEN,
            popularity=RETURNING_ITEMS,
        ),
        PhasePlan(
            name="newcomers",
            visits=newcomers,
            duration_ms=half_ms,
            requests_per_second=NEWCOMERS_RATE * rate_percent / 100.0,
            history_percent=HISTORY_PERCENT,
            max_history_tokens=MAX_HISTORY_TOKENS,
            candidates=NEWCOMERS_CANDIDATES,
            rows_per_token=ROWS_PER_TOKEN,
            popularity=NEWCOMERS_ITEMS,
        ),
    ]
    return compose(plans, load_azure(traces.azure), pool_key=pool_key, model_version=MODEL_VERSION, seed=seed)


def split_visits(visits: list[TraceEvent]) -> tuple[list[TraceEvent], list[TraceEvent]]:
    """Return (requests of returning users, requests of single users with a history up to the median), each in trace order."""
    turns: dict[str, int] = {}
    for visit in visits:
        turns[visit.user] = turns.get(visit.user, 0) + 1
    middle = median(visit.history_tokens for visit in visits)
    returning = [visit for visit in visits if turns[visit.user] > 1]
    newcomers = [visit for visit in visits if turns[visit.user] == 1 and visit.history_tokens <= middle]
    return returning, newcomers
