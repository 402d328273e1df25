"""The real operator with its waiting times cut, so that a rollout takes a minute: a reporting window lasts a second, not ten."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "faults"))

from fault_operator import hasten

from controllers import agent_windows
from controllers.allocation import agents, rollout_plan, rollout_words
from controllers.runtime import process

if __name__ == "__main__":
    hasten()
    agent_windows.WINDOW_SECONDS = agents.POLL_SECONDS = rollout_plan.LOOK_SECONDS = 1.0
    agent_windows.FEWEST_REQUESTS = 2.0  # in a tenth of the time
    agents.LONGEST_SECONDS = 2.0
    rollout_words.TOLD_SECONDS = 3
    raise SystemExit(process.main(sys.argv[1:]))
