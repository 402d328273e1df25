"""`python -m bench NAME [--quick] [--json]`; NAME `all` runs every benchmark but kwok-large."""

import argparse

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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=[*BENCHMARKS, *BY_HAND, "all"])
    parser.add_argument("--quick", action="store_true", help="under 60 s; saves nothing")
    parser.add_argument("--json", action="store_true", help="last line of stdout is one JSON array")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    end_in_order()
    chosen = BENCHMARKS if options.name == "all" else {options.name: (BENCHMARKS | BY_HAND)[options.name]}
    for run in chosen.values():
        run(quick=options.quick, as_json=options.json, seed=options.seed)


if __name__ == "__main__":
    main()
