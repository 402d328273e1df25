"""Which intents an agent accepts. The operator numbers the intents of an instance by its object's generation and binds them by
its uid; the agent holds the newest authentic one and never goes back. `expires` bounds the moment of acceptance only: an accepted
intent holds until a newer one replaces it, however long the operator is away.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from contract import agent, signing
from contract.agent import Intent, IntentAnswer, IntentAudience, IntentSpec, IntentStatus

CLOCK_SKEW_SECONDS = 60
"""How far the clocks of operator and agent may differ before an intent counts as expired or as coming from the future."""

KEY_LOOK_SECONDS = 1
"""How often a signature that does not fit may send the agent to look for a new key."""


@dataclass(frozen=True, kw_only=True)
class AcceptedIntent:
    """The intent in force. `issued` is the newest stamp seen for it, in Unix seconds."""

    uid: str
    generation: int
    issued: int
    spec: IntentSpec


def usable_bytes(held: AcceptedIntent | None, *, pool_bytes: int) -> int:
    """Return what the two caches may share: the intent's figure, never more than the engine's pool."""
    wanted = held.spec.usable_bytes if held is not None else None
    return pool_bytes if wanted is None else min(wanted, pool_bytes)


class IntentBook:
    """Holds the intent in force and judges new ones.

    Parameters
    ----------
    public_key : bytes or None
        The operator's 32-byte Ed25519 key; None accepts unsigned intents (experiments only).
    instance_uid : str or None
        Refuse intents for any other uid; None accepts the first uid and, later, newer ones.
    namespace, pod_uid : str or None
        Refuse intents that are not for an instance of this namespace, or not for this pod; None takes those for any.
    skew_seconds : int
        Tolerance for clocks that differ.
    renewed_key : callable
        Reads the key anew from where it came, None when there is none; asked when a signature does not fit the key at hand, so
        that a key that people replace needs no restart.
    """

    def __init__(
        self,
        *,
        public_key: bytes | None,
        instance_uid: str | None = None,
        namespace: str | None = None,
        pod_uid: str | None = None,
        skew_seconds: int = CLOCK_SKEW_SECONDS,
        renewed_key: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        self._key = public_key
        self._renewed_key = renewed_key
        self._looked_s = float("-inf")
        self._bound_uid = instance_uid
        self._namespace, self._pod_uid = namespace, pod_uid
        self._skew_seconds = skew_seconds
        self.current: AcceptedIntent | None = None

    @property
    def uid(self) -> str:
        """Uid of the instance: that of the intent in force, else the one it was bound to, else empty."""
        return self.current.uid if self.current is not None else self._bound_uid or ""

    def offer(self, intent: Intent, *, now_s: float) -> IntentAnswer:
        """Judge an intent and make it the one in force when it is accepted.

        Parameters
        ----------
        intent : Intent
            As it came over the wire; nothing in it is trusted before its signature is.
        now_s : float
            Unix seconds of the agent's clock.
        """
        if not self._is_authentic(intent, now_s=now_s):
            return self._answer(IntentStatus.FORGED, "signature: not made by the operator's key; check --intent-key")
        if self._bound_uid is not None and intent.uid != self._bound_uid:
            return self._answer(IntentStatus.INVALID, f"uid: this agent is bound to {self._bound_uid!r} by --instance-uid")
        try:
            misdirected = self._misdirected(agent.intent_audience(intent.spec))
            spec = _checked_spec(intent)
        except (ValueError, msgspec.ValidationError) as error:
            return self._answer(IntentStatus.INVALID, str(error)[:1024])
        if misdirected is not None:
            return self._answer(IntentStatus.INVALID, misdirected)
        refusal = self._standing(intent, spec) or self._validity(intent, now_s=now_s)
        if refusal is not None:
            return refusal
        self.current = AcceptedIntent(uid=intent.uid, generation=intent.generation, issued=intent.issued, spec=spec)
        return self._answer(IntentStatus.ACCEPTED, "")

    def _is_authentic(self, intent: Intent, *, now_s: float) -> bool:
        if self._key is None or signing.is_authentic(intent, self._key):
            return True
        if abs(now_s - self._looked_s) < KEY_LOOK_SECONDS:
            return False
        self._looked_s = now_s
        renewed = self._renewed_key()
        if renewed is None or not signing.is_authentic(intent, renewed):
            return False
        self._key = renewed  # whatever the former one signed is forged from now on
        return True

    def _misdirected(self, audience: IntentAudience) -> str | None:
        for flag, own, named in (
            ("--namespace", self._namespace, audience.namespace),
            ("--pod-uid", self._pod_uid, audience.pod_uid),
        ):
            if own is not None and named != own:
                return f"audience: this agent is bound to {own!r} by {flag}, and the intent is for {named or 'nobody'!r}"
        return None

    def _standing(self, intent: Intent, spec: IntentSpec) -> IntentAnswer | None:
        """Compare with the intent in force; None when the new one may replace it."""
        held = self.current
        if held is None:
            return None
        if intent.uid != held.uid:
            if intent.issued > held.issued:
                return None
            return self._answer(IntentStatus.STALE, f"uid: {held.uid!r} holds an intent issued later or at the same second")
        if intent.generation < held.generation:
            return self._answer(IntentStatus.STALE, f"generation: {held.generation} is in force")
        if intent.generation > held.generation:
            return None
        if spec != held.spec:
            return self._answer(IntentStatus.INVALID, f"spec: differs from the one accepted as generation {held.generation}")
        self.current = AcceptedIntent(
            uid=held.uid, generation=held.generation, issued=max(held.issued, intent.issued), spec=held.spec
        )
        return self._answer(IntentStatus.UNCHANGED, "")

    def _validity(self, intent: Intent, *, now_s: float) -> IntentAnswer | None:
        if intent.expires < intent.issued:
            return self._answer(IntentStatus.INVALID, "expires: lies before issued")
        if now_s > intent.expires + self._skew_seconds:
            return self._answer(IntentStatus.EXPIRED, f"expires: {now_s - intent.expires:.0f} s ago")
        if now_s < intent.issued - self._skew_seconds:
            return self._answer(IntentStatus.INVALID, f"issued: {intent.issued - now_s:.0f} s in the future; check the clocks")
        return None

    def _answer(self, status: IntentStatus, reason: str) -> IntentAnswer:
        """Answers name the intent in force, so that a caller learns what it competes with."""
        held = self.current
        return IntentAnswer(
            status=status, uid=held.uid if held else "", generation=held.generation if held else 0, reason=reason[:1024]
        )


def _checked_spec(intent: Intent) -> IntentSpec:
    spec = agent.intent_spec(intent.spec)
    bounds = spec.bounds
    if not bounds.min_emb_percent <= bounds.fallback_emb_percent <= bounds.max_emb_percent:
        raise ValueError("spec.bounds: minEmbPercent <= fallbackEmbPercent <= maxEmbPercent must hold")
    return spec
