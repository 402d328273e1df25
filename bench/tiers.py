"""Tiers of user state: every figure of docs/tiers.md beside its goal, what was known, and the baseline of the same run.

Hit ratios are counts of replays and do not vary between runs; loading is measured in model time. Nothing here depends on how fast
the machine is.
"""

from rich.console import Console

from bench import tiers_eviction, tiers_loading, tiers_service, tiers_store
from bench.report import publish

NOTES = (
    "model time, exact; traces/mooncake_conversation.jsonl (users by leading blocks), and a generated feed of 1 000 users. "
    "The exponent of size-aware was chosen on the first 60 % of the conversation trace."
)


def run(*, quick: bool, as_json: bool, seed: int) -> None:
    """Measure and publish."""
    results, tables = tiers_eviction.measure(quick=quick)
    store = tiers_store.measure(quick=quick, seed=seed)
    for part in (tiers_loading.measure(), store, tiers_service.measure(quick=quick, seed=seed)):
        results += part[0]
        tables += part[1]
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = 220
    for table in tables:
        console.print(table)
    publish("tiers", results, seed=seed, quick=quick, as_json=as_json, notes=NOTES)
