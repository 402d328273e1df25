"""HTTP face of the reference engine: one route a call of the engine contract, bodies decoded and bounded as hostile input.

Everything runs on one event loop, so calls are serialised; a ranking call answers at once with the latency of model time.
"""

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from contract import engine
from contract.residency import MAX_USERS
from engines.reference.clock import ModelClock, StampRefused
from engines.reference.metrics import render
from engines.reference.shared_samples import SharedSamples
from simulator.core.instance import GRInstanceCore
from simulator.core.lookups import Refused

MAX_BODY_BYTES = 256 * 1024
Body = TypeVar("Body", bound=msgspec.Struct)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ENCODER = msgspec.json.Encoder()
_REFUSED_SPLIT = {engine.SplitStatus.STALE, engine.SplitStatus.CONFLICT, engine.SplitStatus.UNSUPPORTED}


class ErrorAnswer(engine.Wire, frozen=True, kw_only=True):
    """Body of every answer that is not the contract's own: what was wrong, naming the field."""

    error: str


class EngineServer:
    """Binds one instance to the routes of the contract."""

    def __init__(self, core: GRInstanceCore, clock: ModelClock, shared: SharedSamples | None = None) -> None:
        self._core = core
        self._clock = clock
        self._shared = shared if shared is not None else SharedSamples(core.samples, start_id=core.start_id)
        self._rank_decoder = msgspec.json.Decoder(engine.RankRequest)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes, all under the contract's prefix, and /metrics."""
        at = engine.PREFIX
        return [
            *self.serving_routes(),
            web.get(f"{at}/describe", self.describe),
            web.get(f"{at}/observe", self.observe),
            web.get(f"{at}/samples", self.samples),
            web.get(f"{at}/residency", self.residency),
            web.put(f"{at}/split", self.split),
            web.put(f"{at}/limits", self.limits),
            web.post(f"{at}/evict", self.evict),
            web.post(f"{at}/invalidate", self.invalidate),
            web.post(f"{at}/drain", self.drain),
        ]

    def serving_routes(self) -> list[web.RouteDef]:
        """Return the routes that callers of a pool need: nothing that changes a setting or tells of users."""
        at = engine.PREFIX
        return [
            web.get(f"{at}/ready", self.ready),
            web.post(f"{at}/rank", self.rank),
            web.post(f"{at}/pre-infer", self.pre_infer),
            web.post(f"{at}/prefetch", self.prefetch),
            web.get("/metrics", self.metrics),
        ]

    async def describe(self, _: web.Request) -> web.Response:
        return reply(msgspec.structs.replace(self._core.describe(), samples_ring=self._shared.name))

    async def observe(self, _: web.Request) -> web.Response:
        answer = self._core.observe(self._clock.now_ms())
        self._shared.publish()
        return reply(answer)

    async def samples(self, request: web.Request) -> web.Response:
        asked = whole_number(request, "cursor")
        self._shared.publish()
        payload, cursor, lost = self._core.samples.read(asked)
        headers = {engine.CURSOR_HEADER: str(cursor), engine.LOST_HEADER: str(lost)}
        return web.Response(body=payload, content_type="application/octet-stream", headers=headers)

    async def residency(self, request: web.Request) -> web.Response:
        most = whole_number(request, "most", default=MAX_USERS)
        if not 1 <= most <= MAX_USERS:
            raise Refused(f"most: {most} is not within 1..{MAX_USERS}")
        return reply(self._core.residency(whole_number(request, "cursor"), now_ms=self._clock.now_ms(), most=most))

    async def ready(self, _: web.Request) -> web.Response:
        answer = self._core.ready()
        return reply(answer, status=200 if answer.ready else 503)

    async def split(self, request: web.Request) -> web.Response:
        body = await decode(request, engine.SplitRequest)
        answer = self._core.put_split(body, now_ms=self._clock.now_ms())
        return reply(answer, status=409 if answer.status in _REFUSED_SPLIT else 200)

    async def limits(self, request: web.Request) -> web.Response:
        answer = self._core.put_limits(await decode(request, engine.LimitsRequest))
        return reply(answer, status=409 if answer.status in _REFUSED_SPLIT else 200)

    async def rank(self, request: web.Request) -> web.Response:
        body = self._rank_decoder.decode(await request.read())
        answer = self._core.rank(body, self._clock.arrival_ms(body.arrival_ms))
        self._clock.reached(self._core.clock_ms)
        self._shared.publish()
        return reply(answer)

    async def pre_infer(self, request: web.Request) -> web.Response:
        body = await decode(request, engine.PreInferRequest)
        answer = self._core.pre_infer(body, self._clock.arrival_ms(body.arrival_ms))
        self._clock.reached(self._core.clock_ms)
        self._shared.publish()
        return reply(answer, status=202 if answer.accepted else 429)

    async def prefetch(self, request: web.Request) -> web.Response:
        return reply(self._core.prefetch((await decode(request, engine.UsersRequest)).user_keys))

    async def evict(self, request: web.Request) -> web.Response:
        users = (await decode(request, engine.UsersRequest)).user_keys
        self._core.advance(self._clock.now_ms())
        return reply(self._core.evict(users))

    async def invalidate(self, request: web.Request) -> web.Response:
        body = await decode(request, engine.InvalidateRequest)
        self._core.advance(self._clock.now_ms())
        return reply(self._core.invalidate(body))

    async def drain(self, request: web.Request) -> web.Response:
        body = await decode(request, engine.DrainRequest) if await request.read() else engine.DrainRequest()
        self._core.advance(self._clock.now_ms())
        return reply(self._core.drain(draining=body.draining))

    async def metrics(self, _: web.Request) -> web.Response:
        body, content_type = render(self._core, self._clock)
        return web.Response(body=body, headers={"content-type": content_type})


def whole_number(request: web.Request, name: str, *, default: int = 0) -> int:
    """Return a number of the query.

    Raises
    ------
    Refused
        When it is none.
    """
    raw = request.query.get(name, str(default))
    if not (raw.isascii() and raw.isdigit() and len(raw) <= 19):
        raise Refused(f"{name}: {raw[:40]!r} is not a non-negative integer")
    return int(raw)


def reply(value: msgspec.Struct, *, status: int = 200) -> web.Response:
    """Return a JSON answer."""
    return web.Response(body=_ENCODER.encode(value), status=status, content_type="application/json")


async def decode(request: web.Request, kind: type[Body]) -> Body:
    """Return the typed body of a request; msgspec's error names the field that is wrong."""
    return msgspec.json.decode(await request.read(), type=kind)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what a caller did wrong into an answer that says so; anything else becomes aiohttp's bare 500."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return reply(ErrorAnswer(error=error.reason), status=error.status)
    except (msgspec.ValidationError, msgspec.DecodeError, Refused, StampRefused) as error:
        return reply(ErrorAnswer(error=str(error)), status=400)
    except UnicodeDecodeError:
        return reply(ErrorAnswer(error="body: not UTF-8"), status=400)
    except RecursionError:
        return reply(ErrorAnswer(error="body: nested too deeply"), status=400)


def require_token(token: str) -> Any:
    """Return a middleware that asks for `Authorization: Bearer <token>`."""
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, expected):
            return reply(ErrorAnswer(error="authorization: a bearer token is needed"), status=401)
        return await handler(request)

    return check


def application(
    core: GRInstanceCore, clock: ModelClock, *, token: str | None = None, shared: SharedSamples | None = None
) -> web.Application:
    """Return the web application of one engine."""
    middlewares = [answer_errors] if token is None else [require_token(token), answer_errors]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
    app.add_routes(EngineServer(core, clock, shared).routes())
    return app


def serving_application(core: GRInstanceCore, clock: ModelClock, shared: SharedSamples | None = None) -> web.Application:
    """Return the web application for callers of the pool, who have no token and may change nothing."""
    app = web.Application(middlewares=[answer_errors], client_max_size=MAX_BODY_BYTES)
    app.add_routes(EngineServer(core, clock, shared).serving_routes())
    return app
