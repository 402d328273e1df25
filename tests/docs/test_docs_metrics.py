"""docs/metrics.md lists every metric of operator, agents and reference engine as the registries have it, and nothing else.

The tables are generated: `python tests/docs/test_docs_metrics.py` writes them anew from the registries.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from controllers.agent_book import AgentBook  # noqa: E402
from controllers.allocation.agent_calls import new_agents  # noqa: E402 - the path is set just above when run as a program
from controllers.loops import all_loops  # noqa: E402
from controllers.metrics_source.queries import markdown_table  # noqa: E402
from controllers.runtime.clock import FakeClock  # noqa: E402
from controllers.runtime.loop import Context  # noqa: E402
from controllers.runtime.metrics import RESULTS  # noqa: E402
from controllers.runtime.runtime import Runtime  # noqa: E402
from controllers.runtime.settings import Settings  # noqa: E402
from dataplane.agent.metrics import AgentMetrics  # noqa: E402
from dataplane.gateway.metrics import GatewayMetrics  # noqa: E402
from dataplane.hot_users.metrics import OUTCOMES, ResidencyMetrics  # noqa: E402
from dataplane.picker.metrics import PickerMetrics  # noqa: E402
from engines.reference.clock import ModelClock  # noqa: E402
from engines.reference.metrics import render  # noqa: E402
from simulator.core.instance import GRInstanceCore  # noqa: E402

PAGE = ROOT / "docs" / "metrics.md"
HEAD = "| name | type | labels | meaning |\n|---|---|---|---|\n"
INSTRUMENTS = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}


def row(name: str, kind: str, labels: tuple[str, ...], meaning: str) -> str:
    full = f"{name}_total" if kind == "counter" and not name.endswith("_total") else name
    return f"| `{full}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {meaning.rstrip('.')} |\n"


def table_of(registry: CollectorRegistry) -> str:
    rows = []
    for collector in registry._collector_to_names:  # the only way to learn the labels of a metric that has no series yet
        if isinstance(collector, MetricWrapperBase):
            rows.append(row(collector._name, collector._type, collector._labelnames, collector._documentation))
        else:
            for family in collector.collect():
                labels = tuple(family.samples[0].labels) if family.samples else tuple(getattr(family, "_labelnames", ()))
                rows.append(row(family.name, family.type, labels, family.documentation))
    return HEAD + "".join(sorted(rows))


def operator_table() -> str:
    runtime = Runtime(Settings(), all_loops(), clock=FakeClock(), rng=random.Random(1))
    context = SimpleNamespace(metrics=runtime.metrics, clock=FakeClock(), rng=random.Random(1), http=None)
    new_agents(cast(Context, context), AgentBook())
    return table_of(runtime.metrics.registry)


def agent_table() -> str:
    return HEAD + "".join(sorted(row(one.name, one.kind, one.label_names, one.help) for one in AgentMetrics().registry))


def gateway_table() -> str:
    every = (*GatewayMetrics().registry, *ResidencyMetrics().registry)
    return HEAD + "".join(sorted(row(one.name, one.kind, one.label_names, one.help) for one in every))


def picker_table() -> str:
    return HEAD + "".join(sorted(row(one.name, one.kind, one.label_names, one.help) for one in PickerMetrics().registry))


def engine_table() -> str:
    if str(ROOT / "tests" / "engines") not in sys.path:
        sys.path.append(str(ROOT / "tests" / "engines"))
    from engine_process import small_config

    text, _ = render(GRInstanceCore(small_config(), seed=1), ModelClock(lambda: 0.0))
    families = text_string_to_metric_families(text.decode())
    return HEAD + "".join(sorted(row(family.name, family.type, (), family.documentation) for family in families))


TABLES: dict[str, Callable[[], str]] = {
    "operator": operator_table,
    "agent": agent_table,
    "gateway": gateway_table,
    "picker": picker_table,
    "engine": engine_table,
    "queries": markdown_table,
}


def generated(text: str, name: str) -> str:
    found = re.search(rf"<!-- generated: {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert found is not None, f"docs/metrics.md has no part {name}"
    return found.group(1)


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_those_of_the_registries(name: str) -> None:
    assert generated(PAGE.read_text(), name) == TABLES[name](), "run `.venv/bin/python tests/docs/test_docs_metrics.py`"


def listed() -> set[str]:
    """Names in the tables, with the series that a histogram brings."""
    found = set()
    for name, kind in re.findall(r"^\| `([a-z0-9_]+)` \| (counter|gauge|histogram|info)", PAGE.read_text(), re.M):
        found.add(name)
        if kind == "histogram":
            found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return found


def declared(room: str) -> Iterator[tuple[Path, str]]:
    """Names of the metrics that a room's source makes."""
    for file in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            made = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in INSTRUMENTS
            if made and cast(Any, node).args and isinstance(cast(Any, node).args[0], ast.Constant):
                yield file, str(cast(Any, node).args[0].value)


@pytest.mark.parametrize("room", ["controllers", "dataplane", "engines", "grfleet"])
def test_no_metric_is_made_anywhere_that_the_page_does_not_list(room: str) -> None:
    names = listed()
    assert [(str(file), name) for file, name in declared(room) if not {name, f"{name}_total"} & names] == []


def test_the_results_of_a_reconcile_are_explained() -> None:
    assert [result for result in RESULTS if f"`{result}`" not in PAGE.read_text()] == []


def test_the_loops_and_what_becomes_of_reports_are_explained() -> None:
    named = [
        row
        for row in PAGE.read_text().splitlines()
        if row.startswith(("| `controller`", "| `result` of `grfleet_gateway_reports"))
    ]
    words = [loop.name for loop in all_loops()] + list(OUTCOMES)
    assert [word for word in words if not any(f"`{word}`" in row for row in named)] == []


def renewed(page: str, name: str) -> str:
    generated(page, name)
    start, end = (
        page.index(f"<!-- generated: {name} -->\n"),
        page.index("<!-- end -->", page.index(f"<!-- generated: {name} -->")),
    )
    return page[:start] + f"<!-- generated: {name} -->\n" + TABLES[name]() + page[end:]


if __name__ == "__main__":
    text = PAGE.read_text()
    for part in TABLES:
        text = renewed(text, part)
    PAGE.write_text(text)
