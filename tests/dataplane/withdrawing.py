"""Orders under which an agent withdraws users before it moves the split."""

from typing import Any

import msgspec
import pytest

from dataplane.agent import loop
from policies.allocation import strategy
from policies.allocation.types import AllocationState, Decision, Layer, Reason, Strategy


def wanting(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Let the agent take what a static policy decides for what its anchor wants, as fast and in the same granules."""

    def anchored(*arguments: Any, **named: Any) -> tuple[Decision, AllocationState]:
        decision, state = strategy.decide(*arguments, **named)
        intent = decision.inputs.intent
        if intent is None or decision.layer is not Layer.STATIC:
            return decision, state
        inputs = msgspec.structs.replace(decision.inputs, intent=msgspec.structs.replace(intent, strategy=Strategy.LEARNED))
        told = {"layer": Layer.ANCHOR, "reason": Reason.ANCHOR_TARGET, "inputs": inputs} | changed
        return msgspec.structs.replace(decision, **told), state

    monkeypatch.setattr(loop, "decide", anchored)


SLOW = {"maxPercentPerSecond": 2, "deadbandPercent": 1}
