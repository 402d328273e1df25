"""What the pool loop looks at: one pool, its instances, and who else holds the names it wants.

Everything comes from the store, so a look costs no request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from controllers.holder import Holder, holder_of, owner_in_words
from controllers.parsed import ParsedObjects
from controllers.pool.pod_world import PodWorld
from controllers.runtime.errors import Terminal
from controllers.runtime.resources import INSTANCES, POOLS, Key, Object, key_of, uid_of
from controllers.runtime.store import Store
from crds import GRInstance, GRServingPool, explain_invalid

NAME_LIMIT = 253
LABEL_LIMIT = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSeen:
    """One GRInstance of the pool. `model` is None when this operator cannot read the object."""

    stored: Object
    model: GRInstance | None

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self.stored["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Its uid."""
        return uid_of(self.stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The world of one pool.

    Attributes
    ----------
    strangers
        Wanted instance names that exist and belong to somebody else, with a word on whom.
    predecessors
        Wanted names still held by instances of a deleted pool of the same name, which the garbage collector removes.
    write_ages_s
        Seconds since the last status writes of the pool, newest first.
    world
        Pods and what belongs to them; None for an external pool.
    """

    pool: GRServingPool
    stored: Object
    instances: tuple[InstanceSeen, ...]
    strangers: Mapping[str, str]
    predecessors: frozenset[str] = frozenset()
    write_ages_s: tuple[float, ...] = ()
    world: PodWorld | None = None


def instance_name(pool: str, entry: str) -> str:
    """Name of the GRInstance of an external entry."""
    return f"{pool}-{entry}"


def pools_that_may_want(instance: str) -> Iterator[str]:
    """Names of the pools whose entries could be called so: every part before a dash."""
    parts = instance.split("-")
    return ("-".join(parts[:end]) for end in range(1, len(parts)))


def read_instance(stored: Object, parsed: ParsedObjects) -> InstanceSeen:
    """Parse an instance; an unreadable one is kept as such."""
    try:
        return InstanceSeen(stored=stored, model=parsed.read(GRInstance, stored))
    except ValidationError:
        return InstanceSeen(stored=stored, model=None)


LookAtPods = Callable[[GRServingPool, tuple[str, ...]], PodWorld | None]
"""Reads what belongs to the pods of a pool, given the uids of its instances."""


def observe(
    store: Store, key: Key, *, parsed: ParsedObjects, write_ages_s: tuple[float, ...], look_at_pods: LookAtPods
) -> Observation | None:
    """Read the world of the pool; None when there is no such pool.

    Raises
    ------
    Terminal
        When this operator cannot read the pool.
    """
    stored = store.get(POOLS, key)
    if stored is None:
        return None
    try:
        pool = parsed.read(GRServingPool, stored)
    except ValidationError as error:
        raise Terminal("InvalidSpec", f"pool {key} cannot be read: {explain_invalid(error)}") from error
    instances = tuple(read_instance(each, parsed) for each in store.owned_by(INSTANCES, stored))
    world = look_at_pods(pool, tuple(each.uid for each in instances))
    strangers, predecessors = _holders(store, stored, wanted_names(pool, world))
    return Observation(
        pool=pool,
        stored=stored,
        instances=instances,
        strangers=strangers,
        predecessors=predecessors,
        write_ages_s=write_ages_s,
        world=world,
    )


def wanted_names(pool: GRServingPool, world: PodWorld | None) -> tuple[str, ...]:
    """Names of the instances that the pool should have: of its entries, or of its pods."""
    if world is not None:
        return tuple(pod.name for pod in world.pods)
    return tuple(instance_name(pool.metadata.name, entry.name) for entry in pool.spec.instances.external or ())


def _holders(store: Store, pool: Object, names: Iterable[str]) -> tuple[dict[str, str], frozenset[str]]:
    """Wanted names in other hands: (strangers, names of a predecessor of this pool)."""
    strangers, predecessors = {}, set()
    for name in names:
        stored = store.get(INSTANCES, Key(key_of(pool).namespace, name))
        holder = holder_of(stored, pool)
        if holder is Holder.PREDECESSOR:
            predecessors.add(name)
        elif stored is not None and holder in (Holder.STRANGER, Holder.ORPHAN):
            strangers[name] = owner_in_words(stored)
    return strangers, frozenset(predecessors)
