"""The agent contract over HTTP: intent, model, status, decisions, metrics and health. Handlers only translate; the agent decides.

Bodies are bounded before they are parsed. An intent is judged by `IntentBook`, which trusts nothing but its signature, and the
bytes of a model by `ModelShelf`, which takes only what such an intent names.
"""

import re
from typing import Protocol
from urllib.parse import parse_qs

import msgspec

from contract.agent import (
    MAX_DECISIONS,
    MAX_IDLE_AFTER_SECONDS,
    MAX_IDLE_DEADLINE_SECONDS,
    MAX_MODEL_BYTES,
    PREFIX,
    AgentStatus,
    DecisionsAnswer,
    IdleAnswer,
    Intent,
    IntentAnswer,
    IntentStatus,
    ModelAnswer,
    ModelStatus,
)
from contract.residency import ResidencyReport
from dataplane.http.server import Answer, Handler, Request, Route

MAX_INTENT_BYTES = 64 * 1024
MAX_CURSOR = 1 << 62
_MODELS = f"{PREFIX}/model/"
_HTTP_STATUS = {
    IntentStatus.ACCEPTED: 200,
    IntentStatus.UNCHANGED: 200,
    IntentStatus.INVALID: 400,
    IntentStatus.FORGED: 403,
    IntentStatus.STALE: 409,
    IntentStatus.EXPIRED: 409,
}
_HTTP_STATUS_OF_MODEL = {
    ModelStatus.HELD: 200,
    ModelStatus.UNCHANGED: 200,
    ModelStatus.REFUSED: 400,
    ModelStatus.NOT_WANTED: 409,
}
_DIGEST = re.compile(r"[0-9a-f]{64}")


class AgentFace(Protocol):
    """What the server asks of the agent behind it."""

    def offer_intent(self, intent: Intent) -> IntentAnswer: ...

    def invalid_intent(self, reason: str) -> IntentAnswer: ...

    def unwanted_model(self, sha256: str) -> ModelAnswer | None: ...

    def offer_model(self, sha256: str, data: bytes | None) -> ModelAnswer: ...

    def status(self) -> AgentStatus: ...

    def decisions_after(self, sequence: int, *, limit: int) -> DecisionsAnswer: ...

    async def residency(self, cursor: int) -> ResidencyReport | None: ...

    async def idle(self, *, after_s: float, deadline_s: float) -> IdleAnswer | None: ...

    def metrics_text(self) -> bytes: ...

    def unhealthy(self) -> list[str]: ...

    def unready(self) -> list[str]: ...


class _Calls:
    """What each call of the contract does: read the request, ask the face, answer."""

    def __init__(self, face: AgentFace) -> None:
        self._face = face

    async def put_intent(self, request: Request) -> Answer:
        """Judge an intent; the answer names the one in force, also where the body is none or too long."""
        if request.body is None:
            return _json(self._face.invalid_intent(f"body: larger than {MAX_INTENT_BYTES} bytes"), status=400)
        try:
            intent = msgspec.json.decode(request.body, type=Intent)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _json(self._face.invalid_intent(f"body: {error}"), status=400)
        answer = self._face.offer_intent(intent)
        return _json(answer, status=_HTTP_STATUS[answer.status])

    def unwanted_model(self, request: Request) -> Answer | None:
        """Answer an offer of a model before a byte of it is read, where none is wanted."""
        digest = request.path.rpartition("/")[2]
        if not _DIGEST.fullmatch(digest):
            return _refused("sha256: 64 lower-case hexadecimal digits", status=404)
        answer = self._face.unwanted_model(digest)
        return _json(answer, status=_HTTP_STATUS_OF_MODEL[answer.status]) if answer is not None else None

    async def put_model(self, request: Request) -> Answer:
        """Judge the bytes of a model."""
        answer = self._face.offer_model(request.path.rpartition("/")[2], request.body)
        return _json(answer, status=_HTTP_STATUS_OF_MODEL[answer.status])

    async def get_status(self, _: Request) -> Answer:
        """The status; see `contract.agent.AgentStatus`."""
        return _json(self._face.status())

    async def get_decisions(self, request: Request) -> Answer:
        """The records after a number."""
        try:
            after, limit = _whole_numbers(request, after=0, limit=MAX_DECISIONS)
        except ValueError:
            return _refused("after and limit: whole numbers are needed")
        if after < 0 or not 1 <= limit <= MAX_DECISIONS:
            return _refused(f"after: 0 or more; limit: 1 to {MAX_DECISIONS}")
        return _json(self._face.decisions_after(after, limit=limit))

    async def get_idle(self, request: Request) -> Answer:
        """Wait for an idle engine."""
        try:
            after, deadline = _whole_numbers(request, afterSeconds=2, deadlineSeconds=60)
        except ValueError:
            return _refused("afterSeconds and deadlineSeconds: whole numbers are needed")
        if not (0 <= after <= MAX_IDLE_AFTER_SECONDS and 0 <= deadline <= MAX_IDLE_DEADLINE_SECONDS):
            bounds = f"afterSeconds: 0 to {MAX_IDLE_AFTER_SECONDS}; deadlineSeconds: 0 to {MAX_IDLE_DEADLINE_SECONDS}"
            return _refused(bounds)
        answer = await self._face.idle(after_s=after, deadline_s=deadline)
        return _refused("too many callers wait already", status=503) if answer is None else _json(answer)

    async def get_residency(self, request: Request) -> Answer:
        """Whose state changed after a cursor."""
        try:
            (cursor,) = _whole_numbers(request, cursor=0)
        except ValueError:
            return _refused("cursor: a whole number is needed")
        if not 0 <= cursor <= MAX_CURSOR:
            return _refused(f"cursor: 0 to {MAX_CURSOR}")
        report = await self._face.residency(cursor)
        return _json(report) if report is not None else _refused("the engine does not tell, or has not yet", status=404)

    async def get_metrics(self, _: Request) -> Answer:
        """Everything for Prometheus."""
        return Answer(200, self._face.metrics_text(), "text/plain; version=0.0.4; charset=utf-8")

    async def get_health(self, _: Request) -> Answer:
        """503 when a restart might help."""
        return _verdict(self._face.unhealthy())

    async def get_ready(self, _: Request) -> Answer:
        """503 while the engine cannot be observed."""
        return _verdict(self._face.unready())


def route_of(face: AgentFace) -> Route:
    """Return the routes of one agent, for `dataplane.http.server.serving`."""
    calls = _Calls(face)
    getters = {
        f"{PREFIX}/status": calls.get_status,
        f"{PREFIX}/decisions": calls.get_decisions,
        f"{PREFIX}/idle": calls.get_idle,
        f"{PREFIX}/residency": calls.get_residency,
    }
    for prefix in (PREFIX, ""):
        getters |= {
            f"{prefix}/metrics": calls.get_metrics,
            f"{prefix}/healthz": calls.get_health,
            f"{prefix}/readyz": calls.get_ready,
        }
    handlers = {("GET", path): Handler(answer) for path, answer in getters.items()}
    handlers |= {("HEAD", path): handler for (_, path), handler in handlers.items()}
    handlers["PUT", f"{PREFIX}/intent"] = Handler(calls.put_intent, MAX_INTENT_BYTES)
    models = Handler(calls.put_model, MAX_MODEL_BYTES, calls.unwanted_model)
    paths = {path for _, path in handlers}

    def route(method: str, path: str) -> Handler | Answer:
        if path.startswith(_MODELS):
            return models if method == "PUT" else _refused("method: PUT is needed", status=405)
        found = handlers.get((method, path))
        if found is not None:
            return found
        return _refused("method: another one is needed", status=405) if path in paths else _refused("no such path", status=404)

    return route


def _whole_numbers(request: Request, **defaults: int) -> tuple[int, ...]:
    """The values of query parameters; ValueError when one is no whole number."""
    given = parse_qs(request.query, keep_blank_values=True, max_num_fields=16)
    return tuple(int(given[name][0]) if name in given else default for name, default in defaults.items())


def _json(body: msgspec.Struct, *, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(body))


def _refused(reason: str, *, status: int = 400) -> Answer:
    return Answer(status, msgspec.json.encode({"reason": reason}))


def _verdict(reasons: list[str]) -> Answer:
    return Answer(503 if reasons else 200, msgspec.json.encode({"ok": not reasons, "reasons": reasons}))
