"""`grfleet decisions INSTANCE`: the last decisions of one agent, with what it saw, which layer decided and why.

The agent keeps them; this command only finds the agent through the GRInstance and prints. It needs `get` on grinstances and a
network path to the agent.
"""

import asyncio
import logging
import os
import sys
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from contract.agent import MAX_DECISIONS, DecisionRecord
from contract.agent_client import AgentClient
from contract.errors import ProtocolViolation, Unreachable


def decisions(
    instance: Annotated[
        str, typer.Argument(help="Name of the GRInstance, as `kubectl get gri -A` lists it.", metavar="INSTANCE")
    ],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the GRInstance.")] = "default",
    last: Annotated[int, typer.Option(help="How many of the newest decisions to print.", min=1, max=1000)] = 20,
    agent: Annotated[str, typer.Option(help="Ask this agent URL instead of looking the instance up.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, inputs included.")] = False,
) -> None:
    """Print the last decisions of an instance's agent: the split it left, the one it chose, which layer chose, and why.

    docs/agent.md explains the reasons. Applied `no`: this round did not move the split.
    """
    url = agent or _agent_url(instance, namespace)
    try:
        records = asyncio.run(_fetch(url))
    except ValueError as error:  # what the client says of an address that is none
        raise _Failed(f"--agent: {error}") from error
    except Unreachable as error:
        raise _Failed(
            f"no agent answers at {url} ({error}); check that it runs and that this machine reaches that address, "
            "or give another one with --agent"
        ) from error
    except ProtocolViolation as error:
        raise _Failed(f"what answers at {url} does not speak the agent contract: {error}") from error
    if as_json:
        import msgspec

        for record in records[-last:]:
            typer.echo(msgspec.json.encode(record).decode())
        return
    Console(width=None if sys.stdout.isatty() else 160).print(_table(instance, records[-last:]))


class _Failed(typer.Exit):
    """Ends the command with status 1 and one line that says what to do."""

    def __init__(self, message: str) -> None:
        typer.echo(f"decisions: {message}", err=True)
        super().__init__(1)


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
    from urllib3.exceptions import HTTPError

    logging.getLogger("urllib3").setLevel(logging.ERROR)  # each of its retries would be a line before ours
    try:
        config.load_kube_config(config_file=os.environ.get("KUBECONFIG"))  # as it is now, not at the library's import
    except config.ConfigException as error:
        try:
            config.load_incluster_config()
        except config.ConfigException:
            raise _Failed(f"{error} Set KUBECONFIG, or name the agent with --agent URL") from error
    try:
        api = client.CustomObjectsApi()
        found = cast(
            dict[str, Any], api.get_namespaced_custom_object("grfleet.dev", "v1alpha1", namespace, "grinstances", instance)
        )
    except ApiException as error:
        if error.status == 404:
            why = f"no GRInstance {instance} in namespace {namespace}; `kubectl get gri -A` lists all, -n chooses the namespace"
        else:
            why = f"the API server refused to show GRInstance {namespace}/{instance}: {error.status} {error.reason}"
        raise _Failed(why) from error
    except HTTPError as error:
        server = client.Configuration.get_default_copy().host
        raise _Failed(f"the API server at {server} does not answer; check KUBECONFIG") from error
    url = found.get("spec", {}).get("source", {}).get("agentURL", "")
    if not url:
        raise _Failed(f"GRInstance {namespace}/{instance} names no agent (spec.source.agentURL)")
    return str(url)


def _table(instance: str, records: list[DecisionRecord]) -> Table:
    table = Table(
        title=f"Decisions of {instance}, newest last (EMB in GiB)",
        caption=None if records else "none yet",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    numbers = ("#", "clock s", "from", "to")
    for column in ("#", "clock s", "strategy", "layer", "from", "to", "applied", "reason", "clips"):
        table.add_column(column, justify="right" if column in numbers else "left")
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
