"""The list of control loops that the operator runs; a new loop is one line here."""

from __future__ import annotations

from controllers.agent_book import AgentBook
from controllers.allocation.controller import AllocationLoop
from controllers.allocation.policy_status import PolicyStatusLoop
from controllers.allocation.rollup_controller import AllocationRollupLoop
from controllers.model_bytes import ModelBytes
from controllers.models.controller import ModelsLoop
from controllers.parsed import ParsedObjects
from controllers.pool.controller import PoolLoop
from controllers.preinference.controller import PreInferenceLoop
from controllers.routing.controller import RoutingLoop
from controllers.runtime.loop import Loop
from controllers.signing_key import KeyPublisher, SigningKey


def all_loops() -> list[Loop]:
    """Fresh loops for one process. The allocation loop enters in `book` what agents say; other loops read it there."""
    key, parsed, book, models = SigningKey(), ParsedObjects(), AgentBook(), ModelBytes()
    return [
        PoolLoop(KeyPublisher(key), parsed, book),
        ModelsLoop(parsed, models),
        AllocationLoop(key, parsed, book, models),
        AllocationRollupLoop(parsed, book),
        PolicyStatusLoop(),
        RoutingLoop(parsed),
        PreInferenceLoop(parsed, book),
    ]
