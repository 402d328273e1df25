"""The agent contract over HTTP: intent, model, status, decisions, metrics and health. Handlers only translate; the agent decides.

Bodies are bounded before they are parsed. An intent is judged by `IntentBook`, which trusts nothing but its signature, and the
bytes of a model by `ModelShelf`, which takes only what such an intent names.
"""

import re
from typing import Protocol

import msgspec
from aiohttp import web

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

MAX_INTENT_BYTES = 64 * 1024
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

    async def idle(self, *, after_s: float, deadline_s: float) -> IdleAnswer | None: ...

    def metrics_text(self) -> bytes: ...

    def unhealthy(self) -> list[str]: ...

    def unready(self) -> list[str]: ...


def application(face: AgentFace) -> web.Application:
    """Return the aiohttp application of one agent."""

    async def put_intent(request: web.Request) -> web.Response:
        try:
            intent = msgspec.json.decode(await request.read(), type=Intent)
        except web.HTTPRequestEntityTooLarge:
            return _json(face.invalid_intent(f"body: larger than {MAX_INTENT_BYTES} bytes"), status=400)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _json(face.invalid_intent(f"body: {error}"), status=400)
        answer = face.offer_intent(intent)
        return _json(answer, status=_HTTP_STATUS[answer.status])

    async def put_model(request: web.Request) -> web.Response:
        digest = request.match_info["sha256"]
        if not _DIGEST.fullmatch(digest):
            return web.json_response({"reason": "sha256: 64 lower-case hexadecimal digits"}, status=404)
        answer = face.unwanted_model(digest)  # before a byte of it is read
        if answer is None:
            answer = face.offer_model(digest, await _bounded(request, MAX_MODEL_BYTES))
        return _json(answer, status=_HTTP_STATUS_OF_MODEL[answer.status])

    async def get_status(_: web.Request) -> web.Response:
        return _json(face.status())

    async def get_decisions(request: web.Request) -> web.Response:
        try:
            after = int(request.query.get("after", "0"))
            limit = int(request.query.get("limit", str(MAX_DECISIONS)))
        except ValueError:
            return web.json_response({"reason": "after and limit: whole numbers are needed"}, status=400)
        if after < 0 or not 1 <= limit <= MAX_DECISIONS:
            return web.json_response({"reason": f"after: 0 or more; limit: 1 to {MAX_DECISIONS}"}, status=400)
        return _json(face.decisions_after(after, limit=limit))

    async def get_idle(request: web.Request) -> web.Response:
        try:
            after = int(request.query.get("afterSeconds", "2"))
            deadline = int(request.query.get("deadlineSeconds", "60"))
        except ValueError:
            return web.json_response({"reason": "afterSeconds and deadlineSeconds: whole numbers are needed"}, status=400)
        if not (0 <= after <= MAX_IDLE_AFTER_SECONDS and 0 <= deadline <= MAX_IDLE_DEADLINE_SECONDS):
            bounds = f"afterSeconds: 0 to {MAX_IDLE_AFTER_SECONDS}; deadlineSeconds: 0 to {MAX_IDLE_DEADLINE_SECONDS}"
            return web.json_response({"reason": bounds}, status=400)
        answer = await face.idle(after_s=after, deadline_s=deadline)
        if answer is None:
            return web.json_response({"reason": "too many callers wait already"}, status=503)
        return _json(answer)

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=face.metrics_text(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def get_health(_: web.Request) -> web.Response:
        return _verdict(face.unhealthy())

    async def get_ready(_: web.Request) -> web.Response:
        return _verdict(face.unready())

    app = web.Application(client_max_size=MAX_INTENT_BYTES)
    app.router.add_put(f"{PREFIX}/intent", put_intent)
    app.router.add_put(f"{PREFIX}/model/{{sha256}}", put_model)
    app.router.add_get(f"{PREFIX}/status", get_status)
    app.router.add_get(f"{PREFIX}/decisions", get_decisions)
    app.router.add_get(f"{PREFIX}/idle", get_idle)
    for prefix in (PREFIX, ""):
        app.router.add_get(f"{prefix}/metrics", get_metrics)
        app.router.add_get(f"{prefix}/healthz", get_health)
        app.router.add_get(f"{prefix}/readyz", get_ready)
    return app


async def _bounded(request: web.Request, limit_bytes: int) -> bytes | None:
    """The body, or None as soon as it is larger; the limit of the application is that of an intent."""
    if (request.content_length or 0) > limit_bytes:
        return None
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > limit_bytes:
            return None
    return bytes(body)


def _json(body: msgspec.Struct, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def _verdict(reasons: list[str]) -> web.Response:
    return web.json_response({"ok": not reasons, "reasons": reasons}, status=503 if reasons else 200)
