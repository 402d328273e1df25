"""An option that would do nothing is refused: a typing error, or a wrong idea of what is replayed, would go unnoticed."""

from collections.abc import Iterable

import typer


def refuse_idle(context: typer.Context, options: Iterable[str], why: str) -> None:
    """Refuse the first of some options that stands on the command line.

    Raises
    ------
    typer.BadParameter
        Names the option, and why it does nothing.
    """
    for option in options:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"does nothing: {why}", param_hint="--" + option.replace("_", "-"))
