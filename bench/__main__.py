"""`python -m bench NAME [--quick] [--json]`; NAME `all` runs every benchmark but kwok-large."""

import argparse
import sys
import textwrap

import bench.agent
import bench.allocator
import bench.client
import bench.decision
import bench.estimator
import bench.hot_users
import bench.kwok
import bench.operator
import bench.oracle
import bench.picker
import bench.routing
import bench.routing_ablation
import bench.simulator
import bench.tiers
from bench.ending import end_in_order

BENCHMARKS = {
    "agent": bench.agent.run,
    "decision": bench.decision.run,
    "client": bench.client.run,
    "estimator": bench.estimator.run,
    "operator": bench.operator.run,
    "kwok": bench.kwok.run,
    "tiers": bench.tiers.run,
    "simulator": bench.simulator.run,
    "oracle": bench.oracle.run,
    "allocator": bench.allocator.run,
    "picker": bench.picker.run,
    "routing": bench.routing.run,
    "routing-ablation": bench.routing_ablation.run,
    "hot-users": bench.hot_users.run,
}
BY_HAND = {"kwok-large": bench.kwok.run_large}


def what_they_say() -> str:
    """Name each benchmark with the first sentence of its module."""
    lines = ["benchmarks:"]
    for name, run in (BENCHMARKS | BY_HAND).items():
        said = str(sys.modules[run.__module__].__doc__) if name in BENCHMARKS else "`kwok` with 1 000 nodes and 4 000 pods."
        lines += textwrap.wrap(
            f"{name:17}{said.splitlines()[0]}", 110, initial_indent="  ", subsequent_indent=" " * 19, break_on_hyphens=False
        )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, epilog=what_they_say(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    line.add_argument("name", choices=[*BENCHMARKS, *BY_HAND, "all"], metavar="NAME", help="one of those below, or `all`")
    line.add_argument("--quick", action="store_true", help="under 60 s; saves nothing")
    line.add_argument("--json", action="store_true", help="last line of stdout is one JSON array")
    line.add_argument("--seed", type=int, default=1, help="of whatever a benchmark draws; default %(default)s")
    return line


def main() -> None:
    options = parser().parse_args()
    end_in_order()
    chosen = BENCHMARKS if options.name == "all" else {options.name: (BENCHMARKS | BY_HAND)[options.name]}
    for run in chosen.values():
        run(quick=options.quick, as_json=options.json, seed=options.seed)


if __name__ == "__main__":
    main()
