"""`grfleet model push | verify | list`. Exit codes: 0 it worked, 1 the model or the cluster refused, 2 wrong usage.

Everything heavy is imported when it runs, so that `grfleet --help` answers at once.
"""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from grfleet.access import Failed, FlagsAnywhereGroup, KubeFlags, explained, reach, takes_kube_flags

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    cls=FlagsAnywhereGroup,
    help="Allocator models: check a file, bring it into a cluster, list what is there.",
)

ModelFile = Annotated[
    Path,
    typer.Argument(
        help="A model file, *.safetensors, as `grfleet train` writes it.", exists=True, dir_okay=False, metavar="FILE"
    ),
]
_DIGEST = re.compile("[0-9a-f]{64}")
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]


@app.command()
@takes_kube_flags
def push(
    file: ModelFile,
    name: Annotated[str, typer.Option(help="Name of the AllocatorModel; default: that of the file.", metavar="NAME")] = "",
    *,
    kube: KubeFlags,
) -> None:
    """Create the AllocatorModel of a file, with a ConfigMap that holds its bytes.

    Pushing the same file again changes nothing. Other bytes under a name that is taken are refused: a name keeps its digest.
    """
    from grfleet.model.file import read_file
    from grfleet.model.push import model_name, pushed

    try:
        data, _ = read_file(file)
        told = asyncio.run(pushed(kube, model_name(name, file), data))
    except Failed as error:
        typer.echo(f"model push: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(told)


@app.command()
def verify(
    file: ModelFile,
    sha256: Annotated[str | None, typer.Option(help="Digest that the file must have.", metavar="HEX")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a file as the operator and the agents do, and print its digest, its layout and its scores. No cluster is needed."""
    from grfleet.model.describe import as_lines, described
    from grfleet.model.file import read_file

    digest = None if sha256 is None else sha256.strip().lower()  # some tools print it in capitals
    if digest is not None and not _DIGEST.fullmatch(digest):  # an empty one too: a script's variable that was never set
        raise typer.BadParameter("a digest has 64 hexadecimal digits", param_hint="--sha256")
    try:
        facts = described(read_file(file, sha256=digest)[0])
    except Failed as error:
        if as_json:
            typer.echo(json.dumps({"file": str(file), "ok": False, "problem": str(error)}))
        else:
            typer.echo(f"model verify: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(_json({"file": str(file), "ok": True, **facts}) if as_json else "\n".join(as_lines(facts)))


@app.command(name="list")
@takes_kube_flags
def list_models(
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")] = False,
    as_json: AsJson = False,
    *,
    kube: KubeFlags,
) -> None:
    """List the AllocatorModels of a cluster: whether they are verified, who runs them, how well they did."""
    from rich.console import Console

    from grfleet.model.listing import model_rows, table_of

    async def read() -> list[dict[str, object]]:
        async with reach(kube) as cluster:
            with explained(cluster):
                return await model_rows(cluster.kube, None if everywhere else cluster.namespace)

    try:
        rows = asyncio.run(read())
    except Failed as error:
        typer.echo(f"model list: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(rows))
    elif not rows:
        typer.echo("no AllocatorModels here; `grfleet model push FILE` makes one, -A looks everywhere", err=True)
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(table_of(rows, namespaces=everywhere))


def _json(facts: dict[str, object]) -> str:
    """Facts as JSON for every reader: null for what is not a number, of which only Python's own would know what to make."""
    return json.dumps(json.loads(json.dumps(facts), parse_constant=lambda _: None))
