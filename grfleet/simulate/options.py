"""The options of `grfleet simulate` and `grfleet oracle`: what they are called and what they say of themselves."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

_REQUESTS, _FLEET = "The requests", "The fleet, where the manifest does not say it"


class RoutingName(StrEnum):
    """Routings that decide as time goes by; `table` is the operator's loop."""

    TABLE = "table"
    RANDOM = "random"
    LEAST_LOADED = "least-loaded"
    BOUNDED_HASH = "bounded-hash"
    SCORE = "score"
    OVERRIDES = "overrides"


class LevelName(StrEnum):
    """Levels of detail; the names are those of the simulator."""

    EXACT = "exact"
    SAMPLED = "sampled"
    SAMPLED_64 = "sampled-64"
    REDUCED = "reduced"


Trace = Annotated[
    str,
    typer.Option(
        help="Event log (CSV or JSONL, plain or gzip), converted log, or steady, trend, burst.", rich_help_panel=_REQUESTS
    ),
]
Pool = Annotated[
    Path, typer.Option(help="Manifest of a GRServingPool, with its policies or without.", exists=True, dir_okay=False)
]
Out = Annotated[Path, typer.Option(help="Folder of result.json, summary.md and the plots.")]
HbmPolicyFile = Annotated[
    Path | None, typer.Option("--hbm-policy", help="Manifest of the HBMPolicy, unless the pool's file has it.", exists=True)
]
ModelFile = Annotated[
    Path | None, typer.Option("--model", help="Model file that strategy Learned runs.", exists=True, dir_okay=False)
]
Name = Annotated[str | None, typer.Option(help="Which pool, where the file has several.")]
Seed = Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Of everything that is drawn.")]
Accelerator = Annotated[
    str, typer.Option(help="Profile that comes with grfleet, or file of one (docs/physics.md).", rich_help_panel=_FLEET)
]
Layers = Annotated[int | None, typer.Option(min=1, max=1024, help="Layers of the model.", rich_help_panel=_FLEET)]
Width = Annotated[int | None, typer.Option(min=1, max=1 << 16, help="Width of the model.", rich_help_panel=_FLEET)]
Instances = Annotated[int | None, typer.Option(min=1, max=4096, help="Instead of what the pool says.", rich_help_panel=_FLEET)]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave bad lines of an event log out and count them.", rich_help_panel=_REQUESTS)
]
Candidates = Annotated[
    int | None, typer.Option(min=1, help="Items to rank where an event log says nothing.", rich_help_panel=_REQUESTS)
]
UserKeyFile = Annotated[
    Path | None,
    typer.Option(
        help="Pool key: users of an event log get the slots of the pool.", exists=True, dir_okay=False, rich_help_panel=_REQUESTS
    ),
]
Duration = Annotated[str, typer.Option(help="Length of steady, trend, burst.", rich_help_panel=_REQUESTS)]
Rate = Annotated[
    float,
    typer.Option(
        min=0.01, max=1e6, help="Requests a second of steady, trend, burst, all instances together.", rich_help_panel=_REQUESTS
    ),
]
Traces = Annotated[
    Path | None, typer.Option(help="Folder of the public traces; default: those of the checkout.", rich_help_panel=_REQUESTS)
]
LoadBehind = Annotated[
    int | None,
    typer.Option(min=0, max=100, help="Requests of whose rows so many percent hit do not wait for the rest.", metavar="PERCENT"),
]
Batching = Annotated[
    str | None,
    typer.Option(help="Requests that run together, and how long the first waits for others.", metavar="REQUESTS:WINDOW"),
]
OffloadQueue = Annotated[
    str | None, typer.Option(help="Most that may wait to be copied to host memory, of an instance.", metavar="BYTES")
]
Ttl = Annotated[
    str | None, typer.Option("--ttl", help="State that its user did not ask for so long is not used any more.", metavar="TIME")
]
EmbVersions = Annotated[
    str | None,
    typer.Option(help="Embeddings are renewed so often, and how many versions state may be behind.", metavar="TIME:VERSIONS"),
]
Routing = Annotated[
    RoutingName | None,
    typer.Option(help="Who serves whom is decided as time goes by; default: nobody moves.", show_default=False),
]
Lives = Annotated[
    list[str] | None,
    typer.Option("--life", help="When an instance is there: joins, drains, dies, noticed.", metavar="INSTANCE:TIMES"),
]
Workers = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Processes; default: one a core. The result does not depend on it.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an older result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print result.json on stdout.")]
