"""The `grfleet` command, also installed as `kubectl-grfleet` so that `kubectl grfleet ...` works.

Each command lives in the room that it belongs to; this file only mounts them. Imports happen inside, so that `grfleet --help`
answers at once.
"""

import typer

from grfleet.decisions import decisions
from grfleet.demo.command import demo
from testbed.cli import app as testbed_app

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Control plane for generative recommendation fleets.")
app.add_typer(testbed_app, name="testbed", help="A real Kubernetes control plane on this machine.")
app.command("demo")(demo)
app.command("decisions")(decisions)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
