"""What a process remembers of the rollout of one pool: figures before the change, the comparison since, and how long it has run.

Losing it costs time and nothing else: the figures of before stand in the status of the pool once the canaries have the change,
and whoever leads next compares anew from the moment at which it took over. So the clock of another process, or one that jumps,
never moves figures from one side of the change to the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controllers.agent_windows import AgentWindows, window_of
from crds.pool_rollout import PoolRollout, RolloutMember, RolloutNoise
from policies.rollout.comparison import Noise, change_of, group_series, noise_of
from policies.rollout.groups import Groups, Member
from policies.rollout.verdict import FEWEST_BEFORE, Evidence

BEFORE = 60
"""Windows before the change that are compared, at most."""
PASSED = 2
"""A window is looked at when so many newer ones have begun: each agent is asked in its own rhythm."""
SKIPPED = 2
"""Windows right after the change that do not count: they still hold requests from before."""
MOST_WINDOWS = 8640  # a day of comparing

Figures = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Both groups before the change, as the status of a pool says it; `windows` is how many could be compared."""

    canaries: tuple[RolloutMember, ...]
    controls: tuple[RolloutMember, ...]
    noise: RolloutNoise

    @property
    def windows(self) -> int:
        """Windows that could be compared."""
        return self.noise.windows


@dataclass(slots=True)
class _Run:
    """The comparison since the change, as far as this process has seen it."""

    mark: tuple[Any, ...]
    began_s: float
    seconds_before: float
    next_window: int
    alone: bool
    told: dict[str, int] = field(default_factory=dict)
    p99: list[float] = field(default_factory=list)
    bad: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)


class Trial:
    """The memory of one pool. Seconds are monotonic ones of this process."""

    def __init__(self, windows: AgentWindows) -> None:
        self._windows = windows
        self._not_before_s = -math.inf
        self._trying = False
        self._run: _Run | None = None

    def stands(self, *, trying: bool, now_s: float) -> None:
        """Say whether canaries have the change, by what is written: however it ended, both groups had different ones until then.

        By the word of the API and not by a step that was chosen: the write of one may wait or fail, and is then chosen again.
        """
        if self._trying and not trying:
            self.start_over(now_s=now_s)
        self._trying = trying

    def start_over(self, *, now_s: float) -> None:
        """Canaries had another change until now: what they measured is not what things were like before the next one."""
        self._not_before_s, self._run = now_s, None

    def measured(self, uids: Sequence[str], *, now_s: float) -> frozenset[str]:
        """The instances of which enough is known of the time before."""
        first, last = self._span(now_s)
        p99 = self._windows.grid(uids, first=first, last=last).log_p99
        enough = np.isfinite(p99).sum(axis=1) >= FEWEST_BEFORE // 2
        return frozenset(uid for uid, known in zip(uids, enough, strict=True) if known)

    def baseline(self, groups: Groups, *, stable: str, now_s: float) -> Baseline:
        """What both groups were like before the change.

        Without controls only windows count in which `stable` was in charge, as `charge_in_force` says it. With controls both
        groups have the same past, whatever it was.
        """
        first, last = self._span(now_s)
        charge = None if groups.controls else stable
        p99, bad, sides = [], [], []
        for group in (groups.canaries, groups.controls):
            grid = self._windows.grid([member.uid for member in group], first=first, last=last, charge=charge)
            known = np.isfinite(grid.log_p99).sum(axis=1) >= FEWEST_BEFORE // 2
            sides.append(
                tuple(
                    _described(member, *figures) if enough else RolloutMember(name=member.name, uid=member.uid)
                    for member, enough, *figures in zip(
                        group, known, grid.log_p99, grid.bad_percent, grid.per_second, strict=True
                    )
                )
            )
            p99.append(_centred(grid.log_p99[known]))
            bad.append(_centred(grid.bad_percent[known]))
        of_p99, of_bad = noise_of(group_series(p99[0], p99[1])), noise_of(group_series(bad[0], bad[1]))
        noise = RolloutNoise(
            windows=of_p99.windows,
            p99_sd=_decimal(of_p99.sd),
            p99_rho=_decimal(of_p99.rho),
            bad_sd=_decimal(of_bad.sd),
            bad_rho=_decimal(of_bad.rho),
        )
        return Baseline(canaries=sides[0], controls=sides[1], noise=noise)

    def soaked_seconds(self, rollout: PoolRollout, *, now: datetime, now_s: float) -> float:
        """How long the canaries have had the change, pauses left out."""
        run = self._run_of(rollout, now=now, now_s=now_s)
        return rollout.soaked_seconds + (run.seconds_before + now_s - run.began_s if rollout.since is not None else 0.0)

    def compare(
        self,
        rollout: PoolRollout,
        uids: frozenset[str],
        *,
        charge: str,
        told: Mapping[str, int],
        now: datetime,
        now_s: float,
    ) -> Evidence:
        """Take in the windows that have passed, and say what the comparison comes to.

        Parameters
        ----------
        uids
            Instances that are still there.
        charge
            Who has to be in charge at a canary for its window to count, as `charge_in_force` says it.
        told
            Instances whose intent says the change, with its generation. A canary whose agent holds an older one proves nothing,
            whoever is in charge there.
        """
        canaries, controls = (
            [member for member in group if member.uid in uids and member.p99_ms is not None]
            for group in (rollout.canaries, rollout.controls)
        )
        run, noise = self._run_of(rollout, now=now, now_s=now_s), rollout.noise
        if run.alone != (not controls):  # another comparison: what was seen so far was measured with another yardstick
            run.alone, run.p99, run.bad, run.load = not controls, [], [], []
        if noise is None or not canaries:
            return Evidence(alone=run.alone)
        for uid, generation in told.items():
            run.told.setdefault(uid, generation)
        self._take_in(run, canaries, controls, charge=charge, last=window_of(now_s) - PASSED)
        of_p99 = Noise(windows=noise.windows, sd=float(noise.p99_sd), rho=float(noise.p99_rho))
        of_bad = Noise(windows=noise.windows, sd=float(noise.bad_sd), rho=float(noise.bad_rho))
        load = [value for value in run.load if math.isfinite(value)]
        return Evidence(
            p99=change_of(of_p99, np.array(run.p99)),
            bad=change_of(of_bad, np.array(run.bad)),
            load=sum(load) / len(load) if load else None,
            alone=run.alone,
        )

    def _span(self, now_s: float) -> tuple[int, int]:
        last = window_of(now_s) - PASSED
        first = last - BEFORE + 1
        return (first if self._not_before_s == -math.inf else max(first, window_of(self._not_before_s) + SKIPPED)), last

    def _run_of(self, rollout: PoolRollout, *, now: datetime, now_s: float) -> _Run:
        mark = (rollout.revision, rollout.since, rollout.soaked_seconds, tuple(member.uid for member in rollout.canaries))
        if self._run is None or self._run.mark != mark:
            before = max(0.0, (now - rollout.since).total_seconds()) if rollout.since is not None else 0.0
            self._run = _Run(
                mark=mark,
                began_s=now_s,
                seconds_before=before,
                next_window=window_of(now_s) + SKIPPED,
                alone=not rollout.controls,
            )
        return self._run

    def _take_in(
        self,
        run: _Run,
        canaries: list[RolloutMember],
        controls: list[RolloutMember],
        *,
        charge: str,
        last: int,
    ) -> None:
        if last < run.next_window:
            return
        first, run.next_window = run.next_window, last + 1
        uids = [member.uid for member in canaries]
        trying = self._windows.grid(uids, first=first, last=last, charge=charge, generations=run.told)
        waiting = self._windows.grid([member.uid for member in controls], first=first, last=last)
        p99 = group_series(trying.log_p99 - _log_p99(canaries), waiting.log_p99 - _log_p99(controls))
        bad = group_series(trying.bad_percent - _bad(canaries), waiting.bad_percent - _bad(controls))
        with np.errstate(divide="ignore", invalid="ignore"):
            load = group_series(np.log(trying.per_second / _rate(canaries)), np.empty((0, last - first + 1)))
        for kept, new in ((run.p99, p99), (run.bad, bad), (run.load, load)):
            kept.extend(new.tolist())
            del kept[:-MOST_WINDOWS]


def _described(member: Member, log_p99: Figures, bad_percent: Figures, per_second: Figures) -> RolloutMember:
    bad, rate = bad_percent[np.isfinite(bad_percent)], per_second[np.isfinite(per_second)]
    return RolloutMember(
        name=member.name,
        uid=member.uid,
        p99_ms=_decimal(math.exp(float(np.nanmean(log_p99)))),
        slo_percent=f"{100.0 - float(bad.mean()):.3f}" if bad.size else None,
        requests_per_second=_decimal(float(rate.mean())) if rate.size else None,
    )


def _centred(figures: Figures) -> Figures:
    """Each row less its own mean; a row without any figure stays as it is."""
    known = np.isfinite(figures)
    counts = np.maximum(known.sum(axis=1, keepdims=True), 1)
    means: Figures = np.where(known, figures, 0.0).sum(axis=1, keepdims=True) / counts
    return np.asarray(figures - means, dtype=np.float64)


def _log_p99(members: list[RolloutMember]) -> Figures:
    with np.errstate(divide="ignore"):  # what is no latency (0, in a status that somebody wrote) is compared with nothing
        return np.log(_column([float(member.p99_ms or "nan") for member in members]))


def _bad(members: list[RolloutMember]) -> Figures:
    return _column([100.0 - float(member.slo_percent or "nan") for member in members])


def _rate(members: list[RolloutMember]) -> Figures:
    return _column([float(member.requests_per_second or "nan") for member in members])


def _column(values: list[float]) -> Figures:
    return np.array(values, dtype=np.float64).reshape(-1, 1)


def _decimal(value: float) -> str:
    """As the API writes such numbers: six decimals, and nine digits before the point at most."""
    return f"{min(value, 999_999_999.0):.6f}"
