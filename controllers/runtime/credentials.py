"""One way to the API server for both clients in the process: ours and the watch library's.

The watch library gets a session that adds the current token to each request, so a rotated token needs no login round,
and that passes every answer to the WatchMonitor.
"""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import kopf
import yaml
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from controllers.runtime.errors import Terminal

Middleware = Callable[
    [aiohttp.ClientRequest, Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]]],
    Awaitable[aiohttp.ClientResponse],
]


async def load_api_client(kubeconfig: str | None, *, context: str | None = None) -> kubernetes_client.ApiClient:
    """A client from the given kubeconfig, else from the pod's ServiceAccount, else from the usual kubeconfig.

    ``context`` chooses among those of a kubeconfig; None takes its current one.

    Raises
    ------
    Terminal
        With reason NoCredentials if there is nothing to load or it cannot be read.
    """
    configuration = kubernetes_client.Configuration()
    configuration.retries = None  # False would count as a number and bring the retrying client in
    path = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        else:
            await kubernetes_config.load_kube_config(
                config_file=path, context=context, client_configuration=configuration, persist_config=False
            )
    except (kubernetes_config.ConfigException, OSError) as error:
        raise Terminal("NoCredentials", f"no usable Kubernetes credentials: {error}; set --kubeconfig or KUBECONFIG") from None
    except (TypeError, AttributeError, KeyError, ValueError, yaml.YAMLError):  # how the library meets a file of another kind
        raise Terminal("NoCredentials", f"no usable Kubernetes credentials: {path} is not a kubeconfig") from None
    configuration.proxy = configuration.proxy or proxy_for(configuration.host)
    configuration.client_session_kwargs = {"trust_env": False}
    try:
        return kubernetes_client.ApiClient(configuration)
    except OSError as error:  # a certificate that is none
        raise Terminal("NoCredentials", f"no usable Kubernetes credentials: {error}; look at the certificates") from None


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for ``url``, or None.

    Asked once: left to itself the HTTP library asks it, and the netrc file, in a thread at each request.
    """
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def watch_session(api_client: kubernetes_client.ApiClient, monitor: Middleware) -> kopf.AiohttpSession:
    """Credentials for the watch library with the TLS context and the token source of ``api_client``."""

    async def authorize(
        request: aiohttp.ClientRequest,
        handler: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]],
    ) -> aiohttp.ClientResponse:
        headers: dict[str, str] = {}
        await api_client.update_params_for_auth(headers, [], ["BearerToken"], "", request.method, None)
        request.headers.update({name: value.strip() for name, value in headers.items()})
        return await handler(request)

    connector = aiohttp.TCPConnector(limit=0, ssl=api_client.rest_client.ssl_context)
    session = aiohttp.ClientSession(connector=connector, middlewares=(authorize, monitor), proxy=api_client.configuration.proxy)
    return kopf.AiohttpSession(server=api_client.configuration.host, aiohttp_session=session)


class Login:
    """The watch library's login activity: a new session at each call, at most one in ``pause_seconds``.

    It is called again after each HTTP 401. There is no other credential to fall back to, so it waits a little and
    tries with whatever token is current then.
    """

    def __init__(self, api_client: kubernetes_client.ApiClient, monitor: Middleware, *, pause_seconds: float = 5.0) -> None:
        self._api_client = api_client
        self._monitor = monitor
        self._pause = pause_seconds
        self._called = False

    async def __call__(self, **_: object) -> kopf.AiohttpSession:
        """A fresh session; the library closes the old one."""
        if self._called:
            await asyncio.sleep(self._pause)
        self._called = True
        return watch_session(self._api_client, self._monitor)
