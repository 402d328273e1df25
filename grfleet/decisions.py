"""`grfleet decisions INSTANCE`: the last decisions of one agent, with what it saw, which layer decided and why.

The agent keeps them; this command only finds the agent through the GRInstance and prints. It needs `get` on grinstances and a
network path to the agent.
"""

import asyncio
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import TextType

from contract.agent import MAX_DECISIONS, DecisionRecord
from contract.agent_client import AgentClient
from contract.errors import ProtocolViolation, Unreachable
from controllers.runtime.resources import INSTANCES, Key
from grfleet.access import Failed, KubeFlags, explained, reach, takes_kube_flags
from grfleet.inert import inert


@takes_kube_flags
def decisions(
    instance: Annotated[
        str, typer.Argument(help="Name of the GRInstance, as `kubectl get gri -A` lists it.", metavar="INSTANCE")
    ],
    last: Annotated[int, typer.Option(help="How many of the newest decisions to print.", min=1, max=1000)] = 20,
    agent: Annotated[str, typer.Option(help="Ask this agent URL instead of looking the instance up.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, inputs included.")] = False,
    *,
    kube: KubeFlags,
) -> None:
    """Print the last decisions of an instance's agent: the split it left, the one it chose, which layer chose, and why.

    docs/agent.md explains the reasons. Applied `no`: this round did not move the split.
    """
    try:
        records = asyncio.run(_records(instance, agent, kube))
    except Failed as error:
        typer.echo(f"decisions: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        import msgspec

        for record in records[-last:]:
            typer.echo(msgspec.json.encode(record).decode())
        return
    Console(width=None if sys.stdout.isatty() else 160).print(_table(instance, records[-last:]))


async def _records(instance: str, agent: str, kube: KubeFlags) -> list[DecisionRecord]:
    url = agent or await _agent_url(instance, kube)
    try:
        return await _fetch(url)
    except ValueError as error:  # what the client says of an address that is none
        raise Failed(f"--agent: {error}") from error
    except Unreachable as error:
        raise Failed(
            f"no agent answers at {url} ({error}); check that it runs and that this machine reaches that address, "
            "or give another one with --agent"
        ) from error
    except ProtocolViolation as error:
        raise Failed(f"what answers at {url} does not speak the agent contract: {error}") from error


async def _fetch(url: str) -> list[DecisionRecord]:
    """The newest records, oldest first, as many as an agent keeps; an answer holds a page, `next` asks for the one after it."""
    records: list[DecisionRecord] = []
    cursor = 0
    async with AgentClient(url, timeout_s=5.0) as client:
        for _ in range(MAX_DECISIONS):
            page = await client.decisions(after=cursor)
            records = [*records, *page.decisions][-MAX_DECISIONS:]
            if not page.decisions or page.next <= cursor:
                break
            cursor = page.next
    return records


async def _agent_url(instance: str, kube: KubeFlags) -> str:
    try:
        async with reach(kube) as cluster:
            where = Key(cluster.namespace, instance)
            with explained(cluster):
                found = await cluster.kube.get(INSTANCES, where)
                url = None if found is None else found.get("spec", {}).get("source", {}).get("agentURL", "")
    except Failed as error:
        raise Failed(f"{error}; --agent URL does without the API server") from error
    if url is None:
        raise Failed(f"no GRInstance {instance} in namespace {where.namespace}; `kubectl get gri -A` lists all, -n chooses")
    if not url:
        raise Failed(f"GRInstance {where} names no agent (spec.source.agentURL)")
    return str(url)


def _table(instance: str, records: list[DecisionRecord]) -> Table:
    table = Table(
        title=inert(f"Decisions of {instance}, newest last (EMB in GiB)"),
        caption=_last_words(records),
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    numbers = ("#", "clock s", "from", "to")
    for column in ("#", "clock s", "strategy", "layer", "from", "to", "applied", "reason", "clips"):
        table.add_column(column, justify="right" if column in numbers else "left")
    for record in records:
        known = _saw_a_split(record)
        table.add_row(
            str(record.sequence),
            f"{record.clock_ms / 1000:.1f}" if known else "-",
            inert(record.strategy),
            inert(record.layer),
            f"{record.from_emb_bytes / 2**30:.2f}" if known else "-",
            f"{record.target_emb_bytes / 2**30:.2f}" if known else "-",
            "yes" if record.applied else "no",
            inert(record.reason),
            inert(", ".join(record.clips)),
        )
    return table


def _last_words(records: list[DecisionRecord]) -> TextType:
    """Of the newest round: the split in points, as everywhere else, and what a reason of one word cannot say."""
    if not records:
        return "none yet"
    usable, message = _said(records[-1], "observation", "usable_bytes"), _said(records[-1], "round", "message")
    known = _saw_a_split(records[-1]) and isinstance(usable, int | float) and 0 < usable < float("inf")
    words = [f"EMB {100 * records[-1].target_emb_bytes / usable:.1f} points of usable HBM"] if known else []
    words += [message] if isinstance(message, str) and message else []
    return inert(f"#{records[-1].sequence}: {'; '.join(words)}") if words else ""


def _saw_a_split(record: DecisionRecord) -> bool:
    """Whether there was a reading of the engine; without one the zeros of a record mean nothing."""
    split = _said(record, "observation", "split")
    return not isinstance(split, dict) or split.get("type", "split") == "split"


def _said(record: DecisionRecord, part: str, name: str) -> Any:
    found = record.inputs.get(part)
    return found.get(name) if isinstance(found, dict) else None
