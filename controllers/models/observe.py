"""What the models loop looks at: one AllocatorModel, what its source has, and how many instances are told to run it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pydantic import ValidationError

from controllers.models.verify import Verdict, verify
from controllers.parsed import ParsedObjects
from controllers.runtime.errors import Terminal
from controllers.runtime.loop import Context
from controllers.runtime.resources import ALLOCATOR_MODELS, CONFIG_MAPS, GROUP_PREFIX, INSTANCES, Key, Object, uid_of
from crds import AllocatorModel, explain_invalid

BY_MODEL = "model"
"""Index of instances: key and digest of the model that their intent names."""
READ_AGAIN = f"{GROUP_PREFIX}read-again"
"""Annotation of an AllocatorModel: another value than before lets its source be read at once, whatever the value is."""
RECHECK_SECONDS = 60.0
"""How old a good verdict may be: a ConfigMap is not watched, and one that is replaced must not go unnoticed for long."""
BROKEN_RECHECK_SECONDS = 10.0
"""How old any other verdict may be: somebody is about to mend it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A verdict, with the monotonic second of the look, the object that it was about, and the word that asked for the look."""

    verdict: Verdict
    uid: str
    generation: int
    at_s: float
    asked: str = ""

    def to_remember(self) -> Looked:
        """The same without the bytes: a namespace may have many models, and few of them run."""
        return replace(self, verdict=replace(self.verdict, data=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The world of one model.

    Attributes
    ----------
    instances
        How many intents name it under its digest.
    write_ages_s
        Seconds since the last status writes, newest first.
    """

    model: AllocatorModel
    stored: Object
    looked: Looked
    instances: int
    write_ages_s: tuple[float, ...] = ()


def model_index(instance: Object) -> Iterable[tuple[Key, str]]:
    """Indexer that finds instances by the model that their intent names; a policy names models of its own namespace."""
    intent = (instance.get("spec") or {}).get("intent") or {}
    ref, policy = intent.get("modelRef"), intent.get("policyRef") or {}
    if ref and policy.get("namespace"):
        yield Key(policy["namespace"], ref["name"]), str(ref["sha256"])


async def observe(
    ctx: Context, key: Key, last: Looked | None, parsed: ParsedObjects, *, write_ages_s: tuple[float, ...]
) -> Observation | None:
    """Read the world of the model, its source only if it is time; None when the model is gone or going.

    Raises
    ------
    Terminal
        When this operator cannot read the AllocatorModel.
    ReconcileError
        When the source cannot be asked: nothing is known then, and what was said before stands.
    """
    stored = ctx.store.get(ALLOCATOR_MODELS, key)
    if stored is None or stored["metadata"].get("deletionTimestamp"):
        return None
    try:
        model = parsed.read(AllocatorModel, stored)
    except ValidationError as error:
        raise Terminal("InvalidSpec", f"AllocatorModel {key} cannot be read: {explain_invalid(error)}") from error
    now_s, asked = ctx.clock.monotonic(), str((stored["metadata"].get("annotations") or {}).get(READ_AGAIN, ""))
    if last is None or last.asked != asked or not _still_good(last, model, now_s=now_s):
        config_map = await ctx.kube.get(CONFIG_MAPS, Key(key.namespace, model.spec.config_map_key_ref.name))
        last = Looked(
            verdict=verify(model.spec, config_map),
            uid=uid_of(stored),
            generation=model.metadata.generation,
            at_s=now_s,
            asked=asked,
        )
    return Observation(
        model=model,
        stored=stored,
        looked=last,
        instances=len(ctx.store.by_index(INSTANCES, BY_MODEL, (key, model.spec.sha256))),
        write_ages_s=write_ages_s,
    )


def recheck_seconds(verdict: Verdict) -> float:
    """How long after a look the source is to be read again."""
    return RECHECK_SECONDS if verdict.condition.status == "True" else BROKEN_RECHECK_SECONDS


def _still_good(last: Looked, model: AllocatorModel, *, now_s: float) -> bool:
    same = (last.uid, last.generation) == (model.metadata.uid, model.metadata.generation)
    return same and now_s - last.at_s < recheck_seconds(last.verdict)
