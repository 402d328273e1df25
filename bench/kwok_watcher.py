"""The operator's process with one loop that wants pods and does nothing: its client, its watch and its store, and no more.

What it costs beyond a bare list and watch is the price of the watch library, of the store, and of the sweep that finds deletions
which a watch has lost.
"""

from collections.abc import Iterable

from controllers.runtime import process
from controllers.runtime.controller import Result
from controllers.runtime.loop import Context
from controllers.runtime.resources import PODS, Key, ResourceType
from controllers.runtime.store import Store, WatchEvent


class WatchingLoop:
    """A loop that never has anything to do."""

    name = "pods"
    keyed_by = PODS
    watches: tuple[ResourceType, ...] = (PODS,)

    def keys_for(self, event: WatchEvent, store: Store) -> Iterable[Key]:
        """No event concerns it."""
        return ()

    async def start(self, ctx: Context) -> None:
        """Nothing to prepare."""

    async def reconcile(self, key: Key, ctx: Context) -> Result | None:
        """Never called."""
        return None


def main() -> int:
    """Run until SIGTERM; the exit code is the operator's."""
    return process.main([], loops=lambda: [WatchingLoop()])
