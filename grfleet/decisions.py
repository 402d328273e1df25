"""`grfleet decisions INSTANCE`: the last decisions of one agent, with what it saw, which layer decided and why.

The agent keeps them; this command only finds the agent through the GRInstance and prints. It needs `get` on grinstances and a
network path to the agent.
"""

import asyncio
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from contract.agent import MAX_DECISIONS, DecisionRecord
from contract.agent_client import AgentClient
from contract.errors import ProtocolViolation, Unreachable


def decisions(
    instance: Annotated[str, typer.Argument(help="Name of the GRInstance.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the GRInstance.")] = "default",
    last: Annotated[int, typer.Option(help="How many of the newest decisions to print.", min=1, max=1000)] = 20,
    agent: Annotated[str, typer.Option(help="Ask this agent URL instead of looking the instance up.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, inputs included.")] = False,
) -> None:
    """Print the last decisions of an instance's agent: target, layer, reason, clips."""
    url = agent or _agent_url(instance, namespace)
    try:
        records = asyncio.run(_fetch(url))
    except (Unreachable, ProtocolViolation) as error:
        raise typer.BadParameter(f"the agent at {url} did not answer as expected: {error}", param_hint="INSTANCE") from error
    if as_json:
        import msgspec

        for record in records[-last:]:
            typer.echo(msgspec.json.encode(record).decode())
        return
    Console().print(_table(instance, records[-last:]))


async def _fetch(url: str) -> list[DecisionRecord]:
    """All records the agent keeps, oldest first; an answer holds a page, `next` asks for the one after it."""
    records: list[DecisionRecord] = []
    cursor = 0
    async with AgentClient(url, timeout_s=5.0) as client:
        for _ in range(MAX_DECISIONS):
            page = await client.decisions(after=cursor)
            records += page.decisions
            if not page.decisions or page.next <= cursor:
                break
            cursor = page.next
    return records


def _agent_url(instance: str, namespace: str) -> str:
    from kubernetes import client, config
    from kubernetes.client.exceptions import ApiException

    config.load_config()
    try:
        api = client.CustomObjectsApi()
        found = cast(
            dict[str, Any], api.get_namespaced_custom_object("grfleet.dev", "v1alpha1", namespace, "grinstances", instance)
        )
    except ApiException as error:
        hint = "see `kubectl get gri -A`" if error.status == 404 else f"the API server answered {error.status}"
        raise typer.BadParameter(f"GRInstance {namespace}/{instance}: {hint}", param_hint="INSTANCE") from error
    url = found.get("spec", {}).get("source", {}).get("agentURL", "")
    if not url:
        raise typer.BadParameter(
            f"GRInstance {namespace}/{instance} names no agent (spec.source.agentURL)", param_hint="INSTANCE"
        )
    return str(url)


def _table(instance: str, records: list[DecisionRecord]) -> Table:
    table = Table(title=f"Decisions of {instance} (newest last)", caption=None if records else "none yet")
    for column in ("#", "clock s", "strategy", "layer", "from GiB", "target GiB", "applied", "reason", "clips"):
        table.add_column(column, justify="right" if column in ("#", "clock s", "from GiB", "target GiB") else "left")
    for record in records:
        table.add_row(
            str(record.sequence),
            f"{record.clock_ms / 1000:.1f}",
            record.strategy,
            record.layer,
            f"{record.from_emb_bytes / 2**30:.2f}",
            f"{record.target_emb_bytes / 2**30:.2f}",
            "yes" if record.applied else "no",
            record.reason,
            ", ".join(record.clips),
        )
    return table
