"""Pictures of a result, from nothing but the content of `result.json`; left out where matplotlib is not installed."""

from pathlib import Path
from typing import Any

from grfleet.simulate.schema import Figures, OracleFound, Simulated

HOW_TO_GET = "no plots: matplotlib is not installed (pip install '.[bench]' in the checkout)"
_RUN, _BASE, _BEST = "tab:blue", "tab:gray", "tab:green"


def draw(folder: Path, result: Simulated | OracleFound) -> bool:
    """Write the pictures as PNG; False when matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    if isinstance(result, Simulated):
        _latency(pyplot, folder / "latency.png", result)
        _timeline(pyplot, folder / "timeline.png", result)
    else:
        _splits(pyplot, folder / "splits.png", result)
        _oracle_windows(pyplot, folder / "windows.png", result)
    return True


def _latency(pyplot: Any, path: Path, result: Simulated) -> None:
    figure, (stages, lengths) = pyplot.subplots(1, 2, figsize=(12, 4.5))
    edges = result.histogram_edges_ms
    for stage in result.run.stages:
        _slower_than(stages, edges, stage.counts, label=stage.stage)
    for stage in result.baseline.stages[:1]:
        _slower_than(stages, edges, stage.counts, label=f"total, {result.baseline_policy.name}", color=_BASE, linestyle="dashed")
    stages.set_title(f"stages, {result.policy.name}", fontsize=9)
    for bucket in result.run.by_history_length:
        words = (
            f"{bucket.from_tokens}+ tokens" if bucket.below_tokens is None else f"{bucket.from_tokens}-{bucket.below_tokens - 1}"
        )
        _slower_than(lengths, edges, bucket.counts, label=words)
    lengths.set_title("by length of history", fontsize=9)
    for axis in (stages, lengths):
        axis.axvline(result.pool.slo_ms, color="tab:red", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="ms", ylabel="share of requests that take longer", ylim=(1e-4, 1.2))
        axis.legend(fontsize=7)
    _save(pyplot, figure, path)


def _slower_than(axis: Any, edges: list[float], counts: list[int], **style: Any) -> None:
    """Draw the share beyond each edge; the last bin has an open end and is not drawn."""
    total = sum(counts)
    left, shares = total, []
    for count in counts[:-1]:
        left -= count
        shares.append(left / total)
    axis.plot(edges[1 : len(shares) + 1], shares, drawstyle="steps-post", **style)


def _timeline(pyplot: Any, path: Path, result: Simulated) -> None:
    figure, (splits, latencies, load) = pyplot.subplots(3, 1, sharex=True, figsize=(10, 8))
    for figures, colour, words in (
        (result.baseline, _BASE, result.baseline_policy.name),
        (result.run, _RUN, result.policy.name),
    ):
        times = [window.from_ms / 1e3 for window in figures.windows]
        splits.step(times, [w.mean_emb_percent for w in figures.windows], where="post", color=colour, label=words)
        splits.fill_between(
            times,
            [w.min_emb_percent for w in figures.windows],
            [w.max_emb_percent for w in figures.windows],
            step="post",
            color=colour,
            alpha=0.2,
        )
        latencies.plot(times, _numbers(figures), color=colour, label=words)
    load.step(
        [w.from_ms / 1e3 for w in result.run.windows], [w.requests for w in result.run.windows], where="post", color="black"
    )
    latencies.axhline(result.pool.slo_ms, color="tab:red", linewidth=0.8)
    splits.set(ylabel="EMB, % of usable HBM\n(line: mean, band: all instances)", ylim=(0, 100))
    latencies.set(ylabel="P99 of the window, ms", ylim=(0, None))
    load.set(ylabel="requests in the window", xlabel="s", ylim=(0, None))
    for axis in (splits, latencies, load):
        axis.axvspan(result.run.windows[0].from_ms / 1e3, result.measured_from_ms / 1e3, color="0.92")
    splits.legend(fontsize=8)
    _save(pyplot, figure, path)


def _numbers(figures: Figures) -> list[float]:
    return [window.p99_ms if window.p99_ms is not None else float("nan") for window in figures.windows]


def _splits(pyplot: Any, path: Path, result: OracleFound) -> None:
    figure, axis = pyplot.subplots(figsize=(8, 4.5))
    known = [split for split in result.splits if split.p99_ms is not None]
    axis.plot([split.emb_percent for split in known], [split.p99_ms for split in known], color=_RUN)
    axis.axvline(result.fleet.static_emb_percent, color=_BEST, linestyle="dashed", label="best fixed, by mean P99 of windows")
    axis.axvline(result.fallback_emb_percent, color=_BASE, linestyle="dashed", label="fallback of the policy")
    axis.set(xlabel="EMB, % of usable HBM", ylabel="P99 of all requests, ms", ylim=(0, None))
    axis.legend(fontsize=8)
    _save(pyplot, figure, path)


def _oracle_windows(pyplot: Any, path: Path, result: OracleFound) -> None:
    figure, (splits, latencies) = pyplot.subplots(2, 1, sharex=True, figsize=(10, 6))
    windows = [window for window in result.windows if window.best_emb_percent is not None]
    times = [window.from_ms / 1e3 for window in windows]
    # a split holds to the end of its window, the last one too
    ends = [*times, times[-1] + result.window_ms / 1e3] if times else []
    for chosen, colour, words in (
        ([w.best_emb_percent for w in windows], "0.7", "best, moves free"),
        ([w.planned_emb_percent for w in windows], _BEST, "best, moves paid for"),
    ):
        splits.step(ends, chosen + chosen[-1:], where="post", color=colour, label=words)
    splits.axhline(result.fallback_emb_percent, color=_BASE, linestyle="dashed", label="fallback of the policy")
    splits.set(ylabel="EMB, % of usable HBM", ylim=(0, 100))
    for field, colour, words in (
        ("fallback_p99_ms", _BASE, "fallback"),
        ("static_p99_ms", _RUN, "best fixed"),
        ("best_p99_ms", _BEST, "best of the window"),
    ):
        latencies.plot(times, [getattr(window, field) for window in windows], color=colour, label=words)
    latencies.axhline(result.pool.slo_ms, color="tab:red", linewidth=0.8)
    latencies.set(ylabel="P99 of the window, ms", xlabel="s", ylim=(0, None))
    for axis in (splits, latencies):
        axis.legend(fontsize=8)
    _save(pyplot, figure, path)


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
