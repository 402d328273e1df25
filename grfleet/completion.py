"""What kubectl asks a plugin for when Tab is pressed: commands, flags, and the names in the cluster.

kubectl starts `kubectl_complete-grfleet` with the words after `kubectl grfleet`, the last one unfinished. Each answered line is a
candidate, with a tab before its explanation; the last line `:4` tells the shell not to offer files. Nothing may fail loudly here:
a shell that waits for Tab has no place for an error.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from controllers.runtime.kube import list_all
from controllers.runtime.resources import INSTANCES, POOLS, ResourceType
from grfleet.access import SPELLINGS, Failed, KubeFlags, explained, flags_after_command, reach
from grfleet.top.command import Output

NO_FILES = ":4"
_LONGEST_WAIT = "2s"
_VALUES = {"output": tuple(each.value for each in Output)}
_NAMES: dict[str, ResourceType] = {"top": POOLS, "decisions": INSTANCES}

Lister = Callable[[ResourceType, KubeFlags], list[str]]


def main() -> None:
    """Entry point of `kubectl_complete-grfleet`."""
    for line in candidates(sys.argv[1:], names=names_in_the_cluster):
        print(line)
    print(NO_FILES)


def candidates(words: Sequence[str], *, names: Lister) -> list[str]:
    """The candidates for the last word, which may be empty.

    Parameters
    ----------
    names
        Lists the names of a kind in the cluster and namespace that the flags name.
    """
    from grfleet.cli import app

    *before, unfinished = words or [""]
    before = flags_after_command([*before, "\0"])  # a group flag moves behind the command that is yet to come
    before.remove("\0")
    command: Any = typer.main.get_command(app)
    taken = list(before)
    while taken and getattr(command, "commands", None) and taken[0] in command.commands:
        command = command.commands[taken.pop(0)]
    if (subcommands := getattr(command, "commands", None)) is not None:
        found = [(name, each.get_short_help_str(limit=80)) for name, each in subcommands.items()]
    elif unfinished.startswith("-"):
        found = [(spelling, each.help or "") for each in command.params for spelling in (*each.opts, *each.secondary_opts)]
        found = [(spelling, words) for spelling, words in found if spelling.startswith("-")]
    elif (option := _awaits_value(command, taken)) is not None:
        found = [(value, "") for value in _VALUES.get(option.name, ())]
    else:
        kind = _NAMES.get(command.name or "")
        found = [(name, "") for name in names(kind, _flags(taken))] if kind is not None else []
    return [f"{word}\t{help}" if help else word for word, help in found if word.startswith(unfinished)]


def _awaits_value(command: Any, taken: list[str]) -> Any | None:
    """The option that the unfinished word is the value of, None when it is no value."""
    if not taken or not taken[-1].startswith("-") or "=" in taken[-1]:
        return None
    options = [each for each in command.params if taken[-1] in each.opts and not getattr(each, "is_flag", False)]
    return options[0] if options else None


def _flags(taken: list[str]) -> KubeFlags:
    """kubectl's flags among the words, for the look-up."""
    given: dict[str, str] = {}
    for at, word in enumerate(taken):
        name, glued, value = word.partition("=")
        if name in SPELLINGS and (glued or at + 1 < len(taken)):
            given[name] = value if glued else taken[at + 1]
    return KubeFlags(
        namespace=given.get("--namespace") or given.get("-n", ""),
        kubeconfig=given.get("--kubeconfig", ""),
        context=given.get("--context", ""),
        as_user=given.get("--as", ""),
        request_timeout=_LONGEST_WAIT,
    )


def names_in_the_cluster(kind: ResourceType, flags: KubeFlags) -> list[str]:
    """Names of a kind; empty when they cannot be had."""

    async def ask() -> list[str]:
        async with reach(flags) as cluster:
            with explained(cluster):
                return sorted(str(each["metadata"]["name"]) for each in await list_all(cluster.kube, kind, cluster.namespace))

    try:
        return asyncio.run(ask())
    except Failed:
        return []
