"""The allocator models that an agent holds, by the digest of their bytes. In memory only: a restarted agent is told them again.

Bytes need no signature of their own: an accepted intent names the digest, and the digest names the bytes. Nobody can have an
agent hold what no intent asks for, and what it holds stays right however its source changes, because it is what was named.
"""

from collections import OrderedDict

from contract.agent import MAX_MODEL_BYTES, IntentSpec, ModelAnswer, ModelStatus, Strategy
from policies.allocation.model_file import ModelRefused, TrainedModel, read_model

HELD = 2
"""The model in force, and the one before or after it: going back needs no second delivery."""


def wanted_digest(spec: IntentSpec | None) -> str | None:
    """Digest of the model that an intent wants to decide; None when it wants none."""
    if spec is None or spec.strategy is not Strategy.LEARNED or spec.model_ref is None:
        return None
    return spec.model_ref.sha256


class ModelShelf:
    """At most two verified models, and why the last offer of the wanted one was refused."""

    def __init__(self) -> None:
        self._models: OrderedDict[str, TrainedModel] = OrderedDict()
        self._refused: dict[str, str] = {}

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of the models held, the newest last."""
        return tuple(self._models)

    def wanted_by(self, spec: IntentSpec | None) -> TrainedModel | None:
        """The model that an intent wants, if it is held."""
        digest = wanted_digest(spec)
        return self._models.get(digest) if digest is not None else None

    def refusal_of(self, spec: IntentSpec | None) -> str:
        """Why the bytes of the wanted model were refused when they came last; empty when they were not."""
        digest = wanted_digest(spec)
        return self._refused.get(digest, "") if digest is not None else ""

    def unwanted(self, sha256: str, spec: IntentSpec | None) -> ModelAnswer | None:
        """The answer that needs no bytes: nobody asked for them, or they are here; None to have them sent."""
        if sha256 in self._models:
            return self._answer(ModelStatus.UNCHANGED)
        wanted = wanted_digest(spec)
        if sha256 != wanted:
            asked = f"it asks for {wanted}" if wanted is not None else "it asks for none"
            return self._answer(ModelStatus.NOT_WANTED, "NotWanted", f"the intent in force does not name this digest; {asked}")
        return None

    def offer(self, sha256: str, data: bytes, spec: IntentSpec | None) -> ModelAnswer:
        """Judge the bytes of a model and keep them when they are what the intent in force names.

        Parameters
        ----------
        sha256
            The digest under which they were offered.
        spec
            The intent in force.
        """
        answer = self.unwanted(sha256, spec)
        if answer is not None:
            return answer
        try:
            model = read_model(data, sha256=sha256)
        except ModelRefused as error:
            return self.refuse(sha256, error.reason.value, str(error))
        self._models[sha256] = model
        self._refused.clear()
        while len(self._models) > HELD:
            self._models.popitem(last=False)
        return self._answer(ModelStatus.HELD)

    def too_large(self, sha256: str) -> ModelAnswer:
        """The answer to a body above the limit, which was not read to its end."""
        return self.refuse(sha256, "TooLarge", f"more than {MAX_MODEL_BYTES} bytes")

    def refuse(self, sha256: str, reason: str, message: str) -> ModelAnswer:
        """Refuse what was offered and remember why; only the wanted digest comes this far, so one entry is enough."""
        self._refused = {sha256: f"{reason}: {message}"[:1024]}
        return self._answer(ModelStatus.REFUSED, reason, message)

    def named_by(self, spec: IntentSpec | None) -> None:
        """A new intent is in force: the model that it wants counts as the newest, if it is held."""
        digest = wanted_digest(spec)
        if digest is not None and digest in self._models:
            self._models.move_to_end(digest)

    def _answer(self, status: ModelStatus, reason: str = "", message: str = "") -> ModelAnswer:
        return ModelAnswer(status=status, models=list(self.digests), reason=reason, message=message[:1024])
