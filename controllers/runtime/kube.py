"""The API server as a port: the few calls the loops make, over plain dicts, with errors in three classes.

The implementation uses the authentication, TLS and connection pool of ``kubernetes.aio`` but not its generated
classes: those decode into models, hide the answer's reason, and return nothing when an apply creates an object.
Only calls that may be repeated safely are retried here; everything slower belongs to the work queue.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client as kubernetes_client

from controllers.runtime.clock import Clock
from controllers.runtime.errors import Expired, Gone, NotLeader, Transient
from controllers.runtime.kube_errors import BAD_ANSWER, classify, decoded, from_network
from controllers.runtime.resources import Key, Object, ResourceType, identity, key_of
from controllers.runtime.ssa import already_applied
from crds.types import GROUP

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
ABSENT = "1"
"""A resourceVersion that no object has: an apply that carries it creates, or is refused when the name is taken meanwhile."""
DEFAULT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: objects with their apiVersion and kind filled in, and the list's resourceVersion."""

    items: tuple[Object, ...]
    resource_version: str


class KubeApi(Protocol):
    """What loops may ask of the API server. Every method raises Transient, Conflict or Terminal."""

    async def get(self, resource: ResourceType, key: Key, *, subresource: str | None = None) -> Object | None:
        """The object, or None if there is none of that name. KindMissing if the resource is not served."""

    def list(self, resource: ResourceType, namespace: str | None, *, limit: int = 500) -> AsyncIterator[Page]:
        """Pages of all objects of a namespace, or of all namespaces. Raises Expired if it has to be started again."""

    async def apply(
        self,
        resource: ResourceType,
        desired: Object,
        *,
        field_manager: str,
        current: Object | None = None,
        resource_version: str | None = None,
        uid: str | None = None,
        force: bool = True,
    ) -> Object:
        """Server-side apply of the fields in ``desired`` (main resource); returns the object in force.

        ``current`` is what the store has: if nothing would change, nothing is sent. ``uid`` guards against writing to
        a successor of the same name, ``resource_version`` against any change since it was read (it must exist).
        """

    async def apply_status(
        self,
        resource: ResourceType,
        desired: Object,
        *,
        field_manager: str,
        current: Object | None = None,
        resource_version: str | None = None,
        force: bool = True,
    ) -> Object:
        """Server-side apply to ``/status``. The server ignores a uid here: guard with ``resource_version``."""

    async def create(self, resource: ResourceType, obj: Object, *, field_manager: str) -> Object:
        """POST; raises AlreadyExists. Never repeated by the port."""

    async def replace(self, resource: ResourceType, obj: Object, *, field_manager: str) -> Object:
        """PUT of a whole object that carries the resourceVersion it was read at. Never repeated by the port."""

    async def merge(
        self, resource: ResourceType, key: Key, patch: Object, *, field_manager: str, subresource: str | None = None
    ) -> Object:
        """JSON merge patch; for Event series. Never repeated by the port."""

    async def apply_scale(
        self,
        resource: ResourceType,
        key: Key,
        replicas: int,
        *,
        field_manager: str,
        current: Object | None = None,
        resource_version: str | None = None,
    ) -> Object:
        """Set ``spec.replicas`` through the scale subresource; ``resource_version`` guards against any change of the object."""

    async def delete(
        self, resource: ResourceType, key: Key, *, uid: str, resource_version: str | None = None, propagation: str = ""
    ) -> bool:
        """Delete exactly that object; False if it was gone already. Conflict if the name has another uid now."""

    async def served(self, group: str, version: str) -> frozenset[str]:
        """Plurals (and plural/subresource) that the API server serves in a group version; empty if none."""

    async def schemas(self, group: str, version: str) -> Mapping[str, Mapping[str, Any]]:
        """OpenAPI schema of each kind of a group version; empty where the API server does not tell."""


Transport = Callable[[str, str, dict[str, str], Any, float], Awaitable[tuple[int, Mapping[str, str], str]]]
"""(method, path with query, headers, JSON body, timeout in seconds) -> (status, headers, body text)."""


def transport_of(api_client: kubernetes_client.ApiClient) -> Transport:
    """Send requests with the credentials and the connection pool of a ``kubernetes.aio`` client."""

    async def send(
        method: str, path: str, headers: dict[str, str], body: Any, timeout_seconds: float
    ) -> tuple[int, Mapping[str, str], str]:
        await api_client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        if "authorization" in headers:
            headers["authorization"] = headers["authorization"].strip()  # a token file may end in a newline
        answer = await api_client.rest_client.request(
            method, api_client.configuration.host + path, headers=headers, body=body, _request_timeout=timeout_seconds
        )
        text = (await answer.read()).decode("utf-8", "replace")
        return answer.status, answer.headers, text

    return send


class HttpKubeApi:
    """KubeApi over a Transport.

    Parameters
    ----------
    transport
        Usually :func:`transport_of` a ``kubernetes.aio`` client.
    attempts
        How often a call that may be repeated is sent at most.
    base_seconds, cap_seconds
        Full-jitter back-off between attempts: uniform in [0, min(cap, base * 2^n)].
    observe
        Called with (verb, resource, status or "error") for each request, for metrics and RBAC proofs.
    fence
        Called before each request that writes, also before its repetitions; raises NotLeader to stop it.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock,
        rng: random.Random,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        attempts: int = 3,
        base_seconds: float = 0.2,
        cap_seconds: float = 3.0,
        observe: Callable[[str, str, str], None] = lambda verb, resource, code: None,
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._timeout = timeout_seconds
        self._attempts = attempts
        self._base = base_seconds
        self._cap = cap_seconds
        self._observe = observe
        self._fence = fence

    async def get(self, resource: ResourceType, key: Key, *, subresource: str | None = None) -> Object | None:
        """See :class:`KubeApi`."""
        try:
            return await self._call("get", resource, key, subresource=subresource)
        except Gone:
            return None

    async def list(self, resource: ResourceType, namespace: str | None, *, limit: int = 500) -> AsyncIterator[Page]:
        """See :class:`KubeApi`."""
        token = ""
        while True:
            query = {"limit": str(limit), **({"continue": token} if token else {})}
            answer = await self._call("list", resource, Key(namespace or "", ""), query=query)
            metadata = answer.get("metadata") or {}
            if "resourceVersion" not in metadata:
                raise Transient(BAD_ANSWER, f"list {resource}: the answer is no list")
            head = {"apiVersion": resource.api_version, "kind": resource.kind}
            yield Page(tuple({**head, **item} for item in answer.get("items") or ()), metadata["resourceVersion"])
            token = metadata.get("continue") or ""
            if not token:
                return

    async def apply(
        self,
        resource: ResourceType,
        desired: Object,
        *,
        field_manager: str,
        current: Object | None = None,
        resource_version: str | None = None,
        uid: str | None = None,
        force: bool = True,
    ) -> Object:
        """See :class:`KubeApi`."""
        if current is not None and already_applied(desired, current, field_manager=field_manager):
            return current
        body = _with_guards(desired, resource_version, uid)
        return await self._apply(resource, body, None, field_manager, force)

    async def apply_status(
        self,
        resource: ResourceType,
        desired: Object,
        *,
        field_manager: str,
        current: Object | None = None,
        resource_version: str | None = None,
        force: bool = True,
    ) -> Object:
        """See :class:`KubeApi`."""
        if current is not None and already_applied(desired, current, field_manager=field_manager, subresource="status"):
            return current
        body = _with_guards(desired, resource_version, None)
        return await self._apply(resource, body, "status", field_manager, force)

    async def create(self, resource: ResourceType, obj: Object, *, field_manager: str) -> Object:
        """See :class:`KubeApi`."""
        where = Key(key_of(obj).namespace, "")
        return await self._call("create", resource, where, body=obj, query={"fieldManager": field_manager})

    async def replace(self, resource: ResourceType, obj: Object, *, field_manager: str) -> Object:
        """See :class:`KubeApi`."""
        return await self._call("update", resource, key_of(obj), body=obj, query={"fieldManager": field_manager})

    async def merge(
        self, resource: ResourceType, key: Key, patch: Object, *, field_manager: str, subresource: str | None = None
    ) -> Object:
        """See :class:`KubeApi`."""
        query = {"fieldManager": field_manager}
        return await self._call("patch", resource, key, body=patch, query=query, content=MERGE, subresource=subresource)

    async def apply_scale(
        self,
        resource: ResourceType,
        key: Key,
        replicas: int,
        *,
        field_manager: str,
        current: Object | None = None,
        resource_version: str | None = None,
    ) -> Object:
        """See :class:`KubeApi`."""
        if current is not None and current.get("spec", {}).get("replicas") == replicas:
            return current
        if resource.group != GROUP:  # only an apply takes the field over from whoever applied it with the object
            scale = ResourceType("autoscaling", "v1", resource.plural, "Scale")
            applied = {**identity(scale, key), "spec": {"replicas": replicas}}
            return await self._apply(resource, _with_guards(applied, resource_version, None), "scale", field_manager, True)
        # A merge patch: the API server cannot apply to the scale of a custom resource. Repeating it is safe, it names the number.
        guard = {"metadata": {"resourceVersion": resource_version}} if resource_version else {}
        body = {**guard, "spec": {"replicas": replicas}}
        query = {"fieldManager": field_manager}
        return await self._call("patch", resource, key, body=body, query=query, content=MERGE, subresource="scale", repeat=True)

    async def delete(
        self, resource: ResourceType, key: Key, *, uid: str, resource_version: str | None = None, propagation: str = ""
    ) -> bool:
        """See :class:`KubeApi`."""
        preconditions = {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        if propagation:
            body["propagationPolicy"] = propagation
        try:
            await self._call("delete", resource, key, body=body, repeat=True)
        except Gone:
            return False
        return True

    async def served(self, group: str, version: str) -> frozenset[str]:
        """See :class:`KubeApi`."""
        discovery = ResourceType(group, version, "", "APIResourceList")
        call = f"discover {group}/{version}"
        status, headers, text = await self._repeat("GET", discovery.root, JSON, None, call, True, ("get", "discovery"))
        if status == 404:
            return frozenset()
        if status >= 400:
            raise classify(status, text, headers, call=call)
        return frozenset(str(item["name"]) for item in decoded(text, call=call).get("resources") or ())

    async def schemas(self, group: str, version: str) -> Mapping[str, Mapping[str, Any]]:
        """See :class:`KubeApi`."""
        call = f"discover schemas of {group}/{version}"
        path = f"/openapi/v3/apis/{group}/{version}"
        status, headers, text = await self._repeat("GET", path, JSON, None, call, True, ("get", "discovery"))
        if status in (403, 404, 406):
            return {}
        if status >= 400:
            raise classify(status, text, headers, call=call)
        found = (decoded(text, call=call).get("components") or {}).get("schemas") or {}
        return {each["kind"]: schema for schema in found.values() for each in schema.get("x-kubernetes-group-version-kind", ())}

    async def _apply(
        self, resource: ResourceType, body: Object, subresource: str | None, field_manager: str, force: bool
    ) -> Object:
        query = {"fieldManager": field_manager, "force": "true" if force else "false"}
        return await self._call(
            "patch", resource, key_of(body), body=body, query=query, content=APPLY, subresource=subresource, repeat=True
        )

    async def _call(
        self,
        verb: str,
        resource: ResourceType,
        key: Key,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        content: str = JSON,
        subresource: str | None = None,
        repeat: bool = False,
    ) -> dict[str, Any]:
        path = resource.path(key.namespace, quote(key.name, safe="") or None, subresource)
        if query:
            path += "?" + urlencode(query)
        name = f"{resource}/{subresource}" if subresource else str(resource)
        call = f"{verb} {name} {key}".rstrip()
        method = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}.get(verb, "GET")
        repeat = repeat or method == "GET"
        status, headers, text = await self._repeat(method, path, content, body, call, repeat, (verb, name))
        if status >= 400:
            raise classify(status, text, headers, call=call)
        return decoded(text, call=call)

    async def _repeat(
        self, method: str, path: str, content: str, body: Object | None, call: str, repeat: bool, label: tuple[str, str]
    ) -> tuple[int, Mapping[str, str], str]:
        """Send, and send again after a transient failure if the call may be repeated."""
        for attempt in range(1, self._attempts + 1):
            try:
                return await self._send(method, path, content, body, call, label)
            except NotLeader:
                raise
            except Transient as error:
                wait = self._rng.uniform(0, min(self._cap, self._base * 2**attempt))
                asked = error.retry_after or 0.0
                if not repeat or attempt == self._attempts or asked > self._cap:
                    raise
                await self._clock.sleep(max(wait, asked))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _send(
        self, method: str, path: str, content: str, body: Object | None, call: str, label: tuple[str, str]
    ) -> tuple[int, Mapping[str, str], str]:
        headers = {"Accept": JSON, "Content-Type": content}
        if method != "GET":
            self._fence()
        try:
            status, answer_headers, text = await self._transport(method, path, headers, body, self._timeout)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._observe(*label, "error")
            raise from_network(error, call=call) from None
        self._observe(*label, str(status))
        if status >= 400:
            problem = classify(status, text, answer_headers, call=call)
            if isinstance(problem, Transient):
                raise problem
        return status, answer_headers, text


async def list_all(kube: KubeApi, resource: ResourceType, namespace: str | None, *, limit: int = 500) -> list[Object]:
    """All objects of one consistent list; starts again when a continuation has expired (three times at most)."""
    for _ in range(3):
        try:
            return [item async for page in kube.list(resource, namespace, limit=limit) for item in page.items]
        except Expired:
            continue
    raise Transient("ListExpired", f"list {resource}: its continuation expired three times in a row")


def _with_guards(desired: Object, resource_version: str | None, uid: str | None) -> dict[str, Any]:
    guards = {key: value for key, value in (("resourceVersion", resource_version), ("uid", uid)) if value}
    return {**desired, "metadata": {**desired["metadata"], **guards}}
