"""`grfleet top` on the command line.

It chooses between one look and a live view, and between table and JSON; a problem ends it with one line. The rest is imported
when it runs, so that `grfleet --help` answers at once.
"""

import asyncio
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from grfleet.access import Failed, KubeFlags, reach, takes_kube_flags

if TYPE_CHECKING:
    from grfleet.top.render import Seen


class Output(StrEnum):
    """How to show it."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


@takes_kube_flags
def top(
    pool: Annotated[str, typer.Argument(help="Show this pool with its instances.", metavar="POOL")] = "",
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")] = False,
    watch: Annotated[
        bool | None,
        typer.Option("--watch/--once", "-w", help="Redraw until Ctrl-C, or look once. Default: watch on a terminal."),
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.5, max=3600)] = 2.0,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="json: one object a look, and once by default.")
    ] = Output.TABLE,
    *,
    kube: KubeFlags,
) -> None:
    """Show pools, or the instances of one pool, worst first.

    A value that is not known is `-`, one that an unreachable agent said last is marked `*`. It needs `list` on grservingpools,
    grinstances and grroutingtables.
    """
    live = watch if watch is not None else sys.stdout.isatty() and output is not Output.JSON
    try:
        asyncio.run(_run(kube, pool=pool, everywhere=everywhere, live=live, interval=interval, output=output))
    except Failed as error:
        typer.echo(f"top: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(0 if live else 130) from None


async def _run(kube: KubeFlags, *, pool: str, everywhere: bool, live: bool, interval: float, output: Output) -> None:
    from controllers.runtime.clock import SystemClock
    from grfleet.top.follow import follow
    from grfleet.top.read import look
    from grfleet.top.show import screen_of

    clock = SystemClock()
    async with reach(kube) as cluster:

        async def once() -> "Seen":
            return await look(cluster, pool=pool, everywhere=everywhere, now=clock.now())

        with screen_of(
            terminal=live and sys.stdout.isatty() and output is not Output.JSON,
            json=output is Output.JSON,
            wide=output is Output.WIDE,
            live=live,
            host=cluster.host,
        ) as screen:
            if live:
                await follow(once, screen, clock, interval_seconds=interval)
            else:
                screen.show(await once(), problem="")
