"""The `grfleet` command, also installed as `kubectl-grfleet` so that `kubectl grfleet ...` works.

Each command lives in the room that it belongs to; this file only mounts them. Imports happen inside, so that `grfleet --help`
answers at once.
"""

import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from grfleet.access import FlagsAnywhereGroup
from grfleet.decisions import decisions
from grfleet.demo.command import demo
from grfleet.model.command import app as model_app
from grfleet.replay import replay
from grfleet.simulate.command import oracle, simulate
from grfleet.top.command import top
from grfleet.trace.command import app as trace_app
from grfleet.train import train
from testbed.cli import app as testbed_app

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    cls=FlagsAnywhereGroup,
    help="Control plane for generative recommendation fleets.",
)
app.add_typer(trace_app, name="trace", help="Event logs: check one, convert it into requests, generate some.")
app.add_typer(model_app, name="model", help="Allocator models: check a file, bring it into a cluster, list what is there.")
app.add_typer(testbed_app, name="testbed", help="A real Kubernetes control plane on this machine.")
app.command("demo")(demo)
app.command("simulate")(simulate)
app.command("oracle")(oracle)
app.command("top")(top)
app.command("decisions")(decisions)
app.command("replay")(replay)
app.command("train")(train)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("grfleet"))
        raise typer.Exit


@app.callback()
def of_all_commands(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Control plane for generative recommendation fleets."""


def main() -> None:
    app(prog_name=program_name(sys.argv[0]))


def program_name(invoked: str) -> str:
    """What the user typed: kubectl starts its plugins by their path."""
    return "kubectl grfleet" if Path(invoked).name.startswith("kubectl-grfleet") else "grfleet"


if __name__ == "__main__":
    main()
