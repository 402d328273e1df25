"""`grfleet demo` on the command line: options, exit codes, one line for each thing that can go wrong."""

from pathlib import Path
from typing import Annotated

import typer

QUICK_SECONDS = 45.0


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running at the end and say how to look at it.")] = False,
    seconds: Annotated[
        float, typer.Option(min=6, max=3600, help="Measured seconds of both halves; a run-in comes on top.")
    ] = 120,
    out: Annotated[Path, typer.Option(help="Folder of summary.json, the plot and the logs.")] = Path("out/demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="45 measured seconds: shows that it works, not what it is worth.")
    ] = False,
    traces: Annotated[Path | None, typer.Option(help="Folder of the traces; default: those of the checkout.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of what the traces leave open.")] = 1,
    gateway: Annotated[
        bool | None,
        typer.Option(
            "--gateway/--no-gateway",
            help="Send requests through HAProxy; default: if one is installed. --gateway unpacks Debian's where none is.",
        ),
    ] = None,
) -> None:
    """Watch a real control plane move the split of real engine processes under a real trace, beside a pool that stays at 50 %."""
    from grfleet.demo import orchestrate
    from grfleet.demo.fleet import DemoFailed
    from simulator.traces import TraceError
    from testbed.binaries import BinariesMissingError
    from testbed.control_plane import ControlPlaneError
    from testbed.debian import DebianError
    from testbed.kubectl import KubectlError

    console = orchestrate.console_of()
    options = orchestrate.DemoOptions(
        seconds=QUICK_SECONDS if quick else seconds,
        out=out.resolve(),
        traces=(traces or orchestrate.traces_folder()).resolve(),
        seed=seed,
        keep=keep,
        gateway=gateway,
    )
    orchestrate.trap_signals()
    try:
        orchestrate.run_demo(options, console)
    except (DemoFailed, BinariesMissingError, ControlPlaneError, DebianError, KubectlError, TraceError, OSError) as error:
        typer.echo(f"demo: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        typer.echo("demo: interrupted; everything was stopped", err=True)
        raise typer.Exit(130) from None
