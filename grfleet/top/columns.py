"""The columns of both tables: what each says, how missing and stale values look, and what a narrow terminal does without.

A cell is short text; what it cannot say, the JSON output does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from grfleet.top.view import InstanceView, PoolView

MISSING = "-"
STALE = "*"
LEGEND = (
    "- not known; * last known: an agent does not answer, or the operator has not taken up the newest spec or table; "
    "EMB%: target/accepted/settled, points of usable HBM"
)

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Column(Generic[Row]):
    """One column.

    Attributes
    ----------
    keep
        The column with the smallest number leaves first when the terminal is narrow.
    wide
        Shown with `-o wide` only.
    """

    title: str
    cell: Callable[[Row], str]
    keep: int = 5
    right: bool = False
    wide: bool = False


def pool_columns(*, namespaces: bool) -> list[Column[PoolView]]:
    """Columns of the table of pools; with `namespaces` that of the namespace too."""
    first = [Column[PoolView](title="NAMESPACE", cell=lambda p: p.namespace, keep=9)] if namespaces else []
    return [
        *first,
        Column(title="POOL", cell=lambda p: p.name, keep=10),
        Column(title="READY", cell=lambda p: pair(p.instances_ready, p.instances_total), keep=9),
        Column(title="EMB%", cell=_pool_split, keep=8),
        Column(title="KV-HIT", cell=lambda p: number(p.kv_hit_percent), right=True, keep=6),
        Column(title="EMB-HIT", cell=lambda p: number(p.emb_hit_percent), right=True, keep=6),
        Column(title="P99", cell=lambda p: number(p.p99_ms), right=True, keep=7),
        Column(title="SLO%", cell=lambda p: number(p.slo_percent), right=True, keep=8),
        Column(title="STRATEGY", cell=lambda p: strategy(p.strategy, shadow=p.shadow), keep=4),
        Column(title="REASON", cell=_reason, keep=9),
        Column(title="DRAIN", cell=lambda p: number(p.draining), right=True, keep=5),
        Column(title="SLOTS", cell=lambda p: number(p.slots), right=True, keep=3),
        Column(title="TABLE", cell=_table, right=True, keep=2),
        Column(title="MOVED%", cell=lambda p: number(p.moved_percent), right=True, keep=3),
        Column(title="AGE", cell=lambda p: duration(p.age_seconds), right=True, keep=1),
        Column(title="SETTLED", cell=lambda p: pair(p.instances_settled, p.instances_total), wide=True, keep=0),
        Column(title="UNREACHABLE", cell=lambda p: number(p.unreachable), right=True, wide=True, keep=0),
        Column(title="UPDATED", cell=lambda p: pair(p.updated, p.instances_total), wide=True, keep=0),
        Column(title="WANTED", cell=lambda p: number(p.instances_wanted), right=True, wide=True, keep=0),
        Column(title="SCALER", cell=lambda p: number(p.desired_replicas), right=True, wide=True, keep=0),
        Column(title="DEMAND", cell=lambda p: number(p.demand_slots), right=True, wide=True, keep=0),
        Column(title="PRE-HIT", cell=lambda p: number(p.hit_before_rank_percent), right=True, wide=True, keep=0),
        Column(title="CAPACITY", cell=lambda p: p.capacity_reason or MISSING, wide=True, keep=0),
        Column(title="METRICS", cell=lambda p: p.metrics_reason or MISSING, wide=True, keep=0),
        Column(title="GOAL", cell=_goal, wide=True, keep=0),
        Column(title="MODEL", cell=lambda p: f"{p.model or MISSING}:{p.model_version or MISSING}", wide=True, keep=0),
    ]


def instance_columns() -> list[Column[InstanceView]]:
    """Columns of the table of a pool's instances."""
    return [
        Column(title="INSTANCE", cell=lambda i: i.name, keep=10),
        Column(title="READY", cell=lambda i: yes_no(i.ready), keep=9),
        Column(title="EMB%", cell=_instance_split, keep=8),
        Column(title="KV-HIT", cell=lambda i: number(i.kv_hit_percent), right=True, keep=6),
        Column(title="EMB-HIT", cell=lambda i: number(i.emb_hit_percent), right=True, keep=6),
        Column(title="P99", cell=lambda i: number(i.p99_ms), right=True, keep=7),
        Column(title="SLO%", cell=lambda i: number(i.slo_percent), right=True, keep=8),
        Column(title="STRATEGY", cell=lambda i: strategy(i.strategy, shadow=i.shadow, stale=i.stale), keep=4),
        Column(title="REASON", cell=lambda i: i.reason or MISSING, keep=9),
        Column(title="DRAIN", cell=_drain, keep=5),
        Column(title="SLOTS", cell=_slots, right=True, keep=3),
        Column(title="TABLE", cell=_weight, keep=3),
        Column(title="AGE", cell=lambda i: duration(i.age_seconds), right=True, keep=1),
        Column(title="SETTLED", cell=lambda i: yes_no(i.settled), wide=True, keep=0),
        Column(title="POLICY", cell=lambda i: i.policy_reason or MISSING, wide=True, keep=0),
        Column(title="VERSION", cell=lambda i: i.model_version or MISSING, wide=True, keep=0),
        Column(title="ADDRESS", cell=lambda i: i.service_url or MISSING, wide=True, keep=0),
    ]


def number(value: float | None) -> str:
    """A number as short as it can be said; `-` where there is none. A whole one is said whole: a generation grows for years."""
    return MISSING if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"


def pair(first: int | None, second: int | None) -> str:
    """`3/4`, `-/4`, or `-` when neither is known."""
    return MISSING if first is None and second is None else f"{number(first)}/{number(second)}"


def yes_no(value: bool | None) -> str:
    """`yes`, `no`, or `-` for unknown."""
    return {True: "yes", False: "no"}.get(value, MISSING) if value is not None else MISSING


def strategy(name: str | None, *, shadow: bool, stale: bool = False) -> str:
    """The strategy in force, with what limits the word."""
    if name is None:
        return MISSING
    return f"{name}{STALE if stale else ''}{' (shadow)' if shadow else ''}"


def duration(seconds: float | None) -> str:
    """An age as kubectl has it: `45s`, `12m`, `3h`, `5d`."""
    if seconds is None:
        return MISSING
    for unit, size, most in (("s", 1, 120), ("m", 60, 120 * 60), ("h", 3600, 48 * 3600)):
        if seconds < most:
            return f"{int(seconds / size)}{unit}"
    return f"{int(seconds / 86_400)}d"


def _split(target: int | None, accepted: int | None, settled: int | None, *, stale: bool) -> str:
    if target is None and accepted is None and settled is None:
        return MISSING
    return f"{number(target)}/{number(accepted)}/{number(settled)}{STALE if stale else ''}"


def _pool_split(pool: PoolView) -> str:
    stale = bool(pool.unreachable) or any(each.stale for each in pool.instances or ())
    return _split(pool.emb_target_percent, pool.emb_accepted_percent, pool.emb_settled_percent, stale=stale)


def _instance_split(instance: InstanceView) -> str:
    return _split(instance.emb_target_percent, instance.emb_accepted_percent, instance.emb_settled_percent, stale=instance.stale)


def _reason(pool: PoolView) -> str:
    return MISSING if pool.reason is None else pool.reason + (STALE if pool.stale else "")


def _table(pool: PoolView) -> str:
    """The generation; marked when the routing loop says that it is not up to date."""
    return number(pool.table_generation) + (STALE if pool.table_generation is not None and pool.table_current is False else "")


def _goal(pool: PoolView) -> str:
    if pool.p99_goal_ms is None:
        return MISSING
    return f"{number(pool.slo_goal_percent)}%<{number(pool.p99_goal_ms)}ms"


def _drain(instance: InstanceView) -> str:
    if instance.drain is None:
        return "no"
    left = instance.drain.seconds_left
    rest = " done" if instance.drain.done else "" if left is None else f" {duration(left)}" if left >= 0 else " overdue"
    return f"{instance.drain.reason or 'yes'}{rest}"


def _slots(instance: InstanceView) -> str:
    if instance.slots_enforced is None or instance.slots_enforced == instance.slots_wanted:
        return number(instance.slots_wanted)
    return f"{number(instance.slots_wanted)}/{number(instance.slots_enforced)}"


def _weight(instance: InstanceView) -> str:
    """Weight in the routing table, with the state where that is not Ready; `out` when the table has not got it."""
    if instance.in_table is None:
        return MISSING
    if not instance.in_table:
        return "out"
    weight = f"{number(instance.table_weight_percent)}%"
    return weight if instance.table_state in ("Ready", None) else f"{weight} {instance.table_state}"
