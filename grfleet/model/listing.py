"""The AllocatorModels of a cluster as rows: what stands in their status, and nothing worked out here."""

from typing import Any

from rich.table import Table

from controllers.runtime.conditions import conditions_of, find_condition
from controllers.runtime.kube import KubeApi, list_all
from controllers.runtime.resources import ALLOCATOR_MODELS, Object, key_of
from grfleet.inert import inert

_DIGITS = 12
_SCORES = 1
"""How many scores of a model the table shows; --json has them all."""
_MODEL = "model"
"""Stands in the name of a score that is the model's own; the others are of what it is compared with (`training/report.py`)."""


async def model_rows(kube: KubeApi, namespace: str | None) -> list[dict[str, Any]]:
    """One row a model, sorted by namespace and name; None means all namespaces."""
    return sorted(map(row_of, await list_all(kube, ALLOCATOR_MODELS, namespace)), key=lambda row: (row["namespace"], row["name"]))


def row_of(stored: Object) -> dict[str, Any]:
    """What is told of one model; a value that nobody has written yet is None."""
    where, spec, status = key_of(stored), stored.get("spec") or {}, stored.get("status") or {}
    verified, used = (find_condition(conditions_of(stored), type_) or {} for type_ in ("Verified", "InUse"))
    return {
        "namespace": where.namespace,
        "name": where.name,
        "verified": verified.get("status"),
        "reason": verified.get("reason"),
        "message": verified.get("message"),
        "inUse": used.get("status"),
        "instances": status.get("instances"),
        "featureSpec": spec.get("featureSpec"),
        "sha256": spec.get("sha256"),
        "bytes": status.get("sizeBytes"),
        "scores": list(status.get("scores") or ()),
    }


def table_of(rows: list[dict[str, Any]], *, namespaces: bool) -> Table:
    """The rows as a table; what is not known is `-`."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    titles = ("NAME", "VERIFIED", "REASON", "IN-USE", "INSTANCES", "FEATURES", "SHA256", "SCORES")
    for title in (*(("NAMESPACE",) if namespaces else ()), *titles):
        table.add_column(title, justify="right" if title == "INSTANCES" else "left")
    for row in rows:
        cells = [row[name] for name in ("name", "verified", "reason", "inUse", "instances", "featureSpec")]
        digest = str(row["sha256"] or "")[:_DIGITS] or None
        shown = [*([row["namespace"]] if namespaces else []), *cells, digest, _scores(row["scores"])]
        table.add_row(*("-" if cell is None else inert(str(cell)) for cell in shown))
    return table


def _scores(scores: list[dict[str, Any]]) -> str | None:
    own = sorted(scores, key=lambda each: _MODEL not in str(each["name"]))  # what it is compared with comes after it
    shown = [f"{each['name']} {each['value']} {each.get('unit', '')}".rstrip() for each in own[:_SCORES]]
    more = [f"and {len(scores) - _SCORES} more"] if len(scores) > _SCORES else []
    return "; ".join([*shown, *more]) or None
