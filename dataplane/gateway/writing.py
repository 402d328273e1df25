"""Carries the steps of a plan out on one HAProxy: by commands of its runtime API; many hot users at once it pushes, as a peer."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dataplane.gateway.config import USER_TABLE, GatewayConfig, peers_of
from dataplane.gateway.metrics import GatewayCounts
from dataplane.gateway.peer_push import push_users
from dataplane.gateway.runtime_api import CommandRefused, RuntimeApi, RuntimeUnavailable
from dataplane.gateway.tables import Step, UserCommands

log = logging.getLogger("grfleet.gateway")
PUSH_FROM = 256
"""Hot users from which on they are pushed; fewer are quicker as commands."""


async def write(steps: Sequence[Step], *, api: RuntimeApi, config: GatewayConfig, counts: GatewayCounts) -> None:
    """Carry out all steps that HAProxy takes: what one server is refused must not keep the others' users waiting.

    Raises
    ------
    CommandRefused
        The first refusal, after all steps.
    RuntimeUnavailable
        At once, when HAProxy does not answer.
    """
    refusals = []
    for step in steps:
        counts.commands += len(step.commands)
        counts.writes[step.kind] += len(step.commands)
        try:
            await _carry_out(step, api, config)
        except CommandRefused as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


async def _carry_out(step: Step, api: RuntimeApi, config: GatewayConfig) -> None:
    if isinstance(step.commands, UserCommands) and len(step.commands) >= PUSH_FROM and await _pushed(step.commands, config):
        return
    if step.optional:
        await api.ask_all(step.commands)
    else:
        await api.expect(step.commands, success=step.success)


async def _pushed(commands: UserCommands, config: GatewayConfig) -> bool:
    """Set many hot users in one go; False when HAProxy does not take that, as one on an older configuration."""
    address = peers_of(config)[config.local_peer]
    try:
        await push_users(address, commands.entries, table=USER_TABLE, local_peer=config.local_peer)
    except RuntimeUnavailable as error:
        log.warning("hot users go one by one", extra={"error": str(error)})
        return False
    return True
