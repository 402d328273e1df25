"""`summary.md`: what a person looks at first, from nothing but the content of `result.json`."""

from collections.abc import Iterable, Sequence

from grfleet.simulate.schema import Difference, Figures, OracleFound, Simulated

_MIB = 1 << 20
MOST_INSTANCES = 32


def headline(result: Simulated | OracleFound) -> list[str]:
    """Return a few lines for the terminal."""
    lines = _headline_of_run(result) if isinstance(result, Simulated) else _headline_of_oracle(result)
    lines += [f"NOT TO BE TRUSTED: {reason}" for reason in result.not_trusted_because]
    return [*lines, *(f"doubt: {doubt}" for doubt in result.doubts)]


def summary(result: Simulated | OracleFound) -> str:
    """Return the page."""
    parts = _page_of_run(result) if isinstance(result, Simulated) else _page_of_oracle(result)
    return "\n\n".join(part for part in parts if part) + "\n"


def number(value: float | None, digits: int = 2) -> str:
    """A figure for people; `-` is not known."""
    return "-" if value is None else f"{value:,.{digits}f}"


def _headline_of_run(result: Simulated) -> list[str]:
    lines = [
        f"{words}: P99 {number(figures.p99_ms)} ms, {number(figures.slo_percent, 3)} % within {result.pool.slo_ms:g} ms, "
        f"busy {number(figures.utilisation_percent, 1)} %"
        for words, figures in ((result.policy.name, result.run), (result.baseline_policy.name, result.baseline))
    ]
    return [*lines, f"difference in P99: {_signed(result.difference.p99_percent)} %; {result.run.moves.count} moves"]


def _headline_of_oracle(result: OracleFound) -> list[str]:
    fleet = result.fleet
    return [
        f"best fixed split: {fleet.static_emb_percent} % EMB, mean P99 of the windows {number(fleet.static_ms)} ms; "
        f"{result.fallback_emb_percent} % (fallback): {number(result.fallback_objective_ms)} ms",
        f"best split of each window: {number(fleet.best_ms)} ms, a gain of {number(fleet.gain_percent)} % over that; "
        f"with moves paid for {number(fleet.planned_gain_percent)} %",
        f"noise floor: {number(result.noise.regret_percent)} %; confirmed by halves: "
        f"{number(result.noise.confirmed_gain_percent)} %",
    ]


def _page_of_run(result: Simulated) -> list[str]:
    run, base = result.run, result.baseline
    return [
        f"# {result.pool.name}: {result.policy.name} beside {result.baseline_policy.name}",
        _trust(result),
        _table(("", result.policy.name, result.baseline_policy.name, "difference"), _compared(run, base, result.difference)),
        f"Objective: {result.pool.good_percent:g} % within {result.pool.slo_ms:g} ms: {_met(run)} (baseline: {_met(base)}). "
        f"Requests before {result.measured_from_ms / 1e3:.1f} s warm the caches and are not counted.",
        "## Where the time goes",
        _table(
            ("stage", "mean ms", "P50", "P99", "P99.9"),
            ([s.stage, number(s.mean_ms), number(s.p50_ms), number(s.p99_ms), number(s.p999_ms)] for s in run.stages),
        ),
        "## By length of history",
        _table(
            ("tokens", "requests", "P50 ms", "P99 ms", f"within {result.pool.slo_ms:g} ms", "P99 of the baseline"),
            (
                [
                    _range(b.from_tokens, b.below_tokens),
                    f"{b.requests:,}",
                    number(b.p50_ms),
                    number(b.p99_ms),
                    f"{number(b.slo_percent)} %",
                    number(_p99_of(base, b.from_tokens)),
                ]
                for b in run.by_history_length
            ),
        ),
        "## By instance",
        _table(
            ("instance", "requests", "P99 ms", "busy %", "KV hits in HBM, %", "EMB hits, %", "EMB at the end, %"),
            (
                [
                    each.name,
                    f"{each.requests:,}",
                    number(each.p99_ms),
                    number(each.utilisation_percent),
                    number(each.kv_hbm_hit_percent),
                    number(each.emb_hit_percent),
                    number(each.last_emb_percent),
                ]
                for each in run.by_instance[:MOST_INSTANCES]
            ),
        ),
        _more(len(run.by_instance) - MOST_INSTANCES),
        "## What moved",
        _table(
            ("MiB", result.policy.name, result.baseline_policy.name),
            (
                [name, number(run.bytes_by_class[name] / _MIB, 0), number(base.bytes_by_class.get(name, 0) / _MIB, 0)]
                for name in run.bytes_by_class
            ),
        ),
        f"{run.moves.count} moves of the split, {run.moves.moved_bytes / _MIB:,.0f} MiB in all; they evicted "
        f"{run.moves.evicted_bytes / _MIB:,.0f} MiB. At the end EMB has {run.moves.last_emb_percent:g} %."
        + (f" Decisions: {_counted(run.decisions)}." if run.decisions else ""),
        _foretold(result),
        _prefixes(result),
        _defaulted(result),
        _dropped(result),
        _aged(result),
        _sent_elsewhere(result),
        *_end(result),
        f"level {result.level}, seed {result.seed}, digest `{result.digest}`",
    ]


def _prefixes(result: Simulated) -> str:
    """What became of pre-inferences, where any were possible."""
    if result.pre_inference is None:
        return ""
    waste, signals = result.run.waste, result.run.counts.get("signals", 0)
    return (
        f"Of {signals:,} early signals {waste.pre_infer_accepted:,} started a pre-inference: {waste.pre_infer_used:,} were used, "
        f"{waste.pre_infer_late:,} came too late, {waste.pre_infer_wasted:,} were for nothing. They kept instances busy for "
        f"{waste.pre_infer_busy_ms / 1e3:,.1f} s, which is not in the figure above."
    )


def _foretold(result: Simulated) -> str:
    """What agents predicted beside what came, for each policy that has agents."""
    told = [
        f"{policy.name}: agents predicted a P99 of {number(p.predicted_p99_ms)} ms at the split in force, "
        f"{number(p.measured_p99_ms)} ms were measured ({_signed(p.error_percent, 1)} %)"
        for policy, figures in ((result.policy, result.run), (result.baseline_policy, result.baseline))
        if (p := figures.prediction) is not None
    ]
    return f"Mean over the instances. {'; '.join(dict.fromkeys(told))}." if told else ""


def _defaulted(result: Simulated) -> str:
    """How many rows were answered with default vectors, where requests may go on without them."""
    if result.load_behind_percent is None:
        return ""
    run, base = (figures.counts.get("rowsDefaulted", 0) for figures in (result.run, result.baseline))
    return f"Default vectors stood for {run:,} rows (baseline: {base:,}) that were loaded behind their requests."


def _dropped(result: Simulated) -> str:
    """How much was not copied to host memory, where what waits is bounded."""
    if result.offload_queue_bytes is None:
        return ""
    run, base = (figures.counts.get("offloadDrops", 0) for figures in (result.run, result.baseline))
    return f"{run:,} users left HBM without a copy because too much waited for the link (baseline: {base:,})."


def _aged(result: Simulated) -> str:
    """How much state was too old, where age counts."""
    if result.ttl_ms is None and result.emb_version_ms is None:
        return ""
    expired, behind, stale = (result.run.counts[name] for name in ("expired", "tooStale", "staleHits"))
    return (
        f"State of {expired:,} requests had expired and that of {behind:,} was too many versions of the embeddings behind; "
        f"{stale:,} requests were served from state that was behind, which costs quality and no time."
    )


def _sent_elsewhere(result: Simulated) -> str:
    """What a routing that decides cost in state left behind."""
    if result.routing is None:
        return ""
    moved, users, retried = (result.run.counts[name] for name in ("requestsMoved", "usersMoved", "requestsRetried"))
    missed = result.run.counts["tokensMissedAfterMoves"]
    return (
        f"Routing {result.routing.name}: {moved:,} requests of {users:,} users came to another instance than the last one of "
        f"theirs, and did not find {missed:,} tokens there; {retried:,} were sent on from an instance that was gone."
    )


def _page_of_oracle(result: OracleFound) -> list[str]:
    fleet, noise = result.fleet, result.noise
    rows = (
        [
            f"{w.from_ms / 1e3:g}" + ("" if w.counted else " (not counted)"),
            f"{w.requests:,}",
            "-" if w.best_emb_percent is None else str(w.best_emb_percent),
            "-" if w.planned_emb_percent is None else str(w.planned_emb_percent),
            number(w.best_p99_ms),
            number(w.static_p99_ms),
            number(w.fallback_p99_ms),
        ]
        for w in result.windows
    )
    return [
        f"# {result.pool.name}: the best splits in hindsight",
        _trust(result),
        _table(
            ("splits", "EMB %", "mean P99 of the windows, ms", "gain over the best fixed split"),
            [
                ["fallback of the policy", str(result.fallback_emb_percent), number(result.fallback_objective_ms), "-"],
                ["best fixed", str(fleet.static_emb_percent), number(fleet.static_ms), "0 %"],
                ["best of each window, moves paid for", "-", number(fleet.planned_ms), f"{number(fleet.planned_gain_percent)} %"],
                ["best of each window, moves free", "-", number(fleet.best_ms), f"{number(fleet.gain_percent)} %"],
            ],
        ),
        f"Noise floor: a choice made on one half of each window's requests is {number(noise.regret_percent)} % worse on the "
        f"other half than that half's own; gains below it say nothing. Chosen on one half and judged on the other, windows gain "
        f"{number(noise.confirmed_gain_percent)} %.",
        "## Windows",
        _table(("from s", "requests", "best EMB %", "planned EMB %", "best P99 ms", "best fixed", "fallback"), rows),
        *_end(result),
        f"windows of {result.window_ms / 1e3:g} s, seed {result.seed}, digest `{result.digest}`",
    ]


def _end(result: Simulated | OracleFound) -> list[str]:
    trace = result.trace
    return [
        "## Doubts" if result.doubts else "",
        _bullets(result.doubts),
        "## Assumed",
        _bullets(result.assumptions),
        f"{trace.requests:,} requests of {trace.users:,} users in {trace.duration_ms / 1e3:,.1f} s from {_cell(trace.name)} "
        f"(digest `{trace.digest[:16]}`), {result.pool.instances} instances, {result.pool.accelerator}.",
    ]


def _trust(result: Simulated | OracleFound) -> str:
    if result.trusted:
        return ""
    return "**Not to be trusted.**\n\n" + _bullets(result.not_trusted_because)


def _compared(run: Figures, base: Figures, more: Difference) -> list[list[str]]:
    hits, base_hits = run.kv_hit_percent, base.kv_hit_percent
    return [
        ["requests", f"{run.requests:,}", f"{base.requests:,}", ""],
        ["P50 ms", number(run.p50_ms), number(base.p50_ms), f"{_signed(more.p50_percent)} %"],
        ["P99 ms", number(run.p99_ms), number(base.p99_ms), f"{_signed(more.p99_percent)} %"],
        ["P99.9 ms", number(run.p999_ms), number(base.p999_ms), f"{_signed(more.p999_percent)} %"],
        ["mean ms", number(run.mean_ms), number(base.mean_ms), f"{_signed(more.mean_percent)} %"],
        ["within the SLO, %", number(run.slo_percent, 3), number(base.slo_percent, 3), _signed(more.slo_points, 3)],
        ["busy, %", number(run.utilisation_percent), number(base.utilisation_percent), _signed(more.utilisation_points)],
        ["KV hits in HBM, %", number(hits.hbm), number(base_hits.hbm), _signed(more.kv_hbm_hit_points)],
        ["KV hits in host memory, %", number(hits.host), number(base_hits.host), ""],
        ["KV hits on SSD, %", number(hits.ssd), number(base_hits.ssd), ""],
        ["EMB hits, %", number(run.emb_hit_percent), number(base.emb_hit_percent), _signed(more.emb_hit_points)],
    ]


def _more(left_out: int) -> str:
    return f"{left_out} more stand in result.json." if left_out > 0 else ""


def _p99_of(figures: Figures, from_tokens: int) -> float | None:
    return next((bucket.p99_ms for bucket in figures.by_history_length if bucket.from_tokens == from_tokens), None)


def _met(figures: Figures) -> str:
    return "not known" if figures.slo_met is None else "met" if figures.slo_met else "missed"


def _range(least: int, below: int | None) -> str:
    return f"{least:,} and more" if below is None else f"{least:,} - {below - 1:,}"


def _signed(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:+,.{digits}f}"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda each: -each[1]))


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_cell(line)}" for line in lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Names of files and pools are other people's: none of them opens a column or a line."""
    return "".join(each if each.isprintable() else " " for each in text).replace("|", "\\|")
