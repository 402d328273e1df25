"""How the commands reach an API server: flags as kubectl has them, credentials, and one line for each thing that can go wrong.

A command that is decorated with `takes_kube_flags` gets them as one value, also when they stand before its name, because
`kubectl grfleet --context c top` is what fingers type.
"""

import functools
import inspect
import os
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from controllers.runtime.clock import SystemClock
from controllers.runtime.errors import ReconcileError

_PANEL = "As in kubectl"
_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_TIMEOUT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NO_ANSWER = {"ConnectFailed", "ConnectionLost", "Timeout"}


class Failed(Exception):
    """Something a person has to set right; the message is one line that says what."""


@dataclass(frozen=True, kw_only=True)
class KubeFlags:
    """Which cluster, as whom, and which namespace."""

    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace; default: that of the context.", rich_help_panel=_PANEL)
    ] = ""
    kubeconfig: Annotated[
        str, typer.Option(help="Kubeconfig file; default: $KUBECONFIG, then ~/.kube/config.", rich_help_panel=_PANEL)
    ] = ""
    context: Annotated[str, typer.Option(help="Context of the kubeconfig.", rich_help_panel=_PANEL)] = ""
    as_user: Annotated[str, typer.Option("--as", help="User to impersonate.", rich_help_panel=_PANEL)] = ""
    request_timeout: Annotated[
        str, typer.Option(help="Longest wait for an answer of the API server, such as 5s or 1m.", rich_help_panel=_PANEL)
    ] = "5s"

    @property
    def timeout_seconds(self) -> float:
        """The request timeout in seconds; 0 means an hour, as good as none.

        Raises
        ------
        Failed
            The flag is no duration.
        """
        match = _TIMEOUT.fullmatch(self.request_timeout)
        if match is None:
            raise Failed(f"--request-timeout {self.request_timeout}: not a duration; write 5s or 1m")
        return float(match[1]) * _SECONDS[match[2] or "s"] or 3600.0


def takes_kube_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command all of :class:`KubeFlags` as options and the value as its argument ``kube``."""
    flags = inspect.signature(KubeFlags).parameters
    own = [parameter for name, parameter in inspect.signature(command).parameters.items() if name != "kube"]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        kube = KubeFlags(**{name: given.pop(name) for name in flags})
        command(kube=kube, **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword) for parameter in (*own, *flags.values())]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads the options from
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _spellings() -> frozenset[str]:
    spellings = set()
    for name, hint in get_type_hints(KubeFlags, include_extras=True).items():
        option = hint.__metadata__[0]
        declared = [] if option.default is ... else [option.default, *(option.param_decls or ())]  # typer keeps the first there
        spellings |= set(declared or [f"--{name.replace('_', '-')}"])
    return frozenset(spellings)


SPELLINGS = _spellings()


class FlagsAnywhereGroup(TyperGroup):
    """A group that hands kubectl's flags on to the command when they stand before its name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See the base class."""
        return super().parse_args(ctx, flags_after_command(args))


def flags_after_command(args: list[str]) -> list[str]:
    """``-n feed top x`` as ``top -n feed x``; anything else unchanged. Every one of our flags has a value."""
    at = 0
    while at < len(args) and args[at].startswith("-"):
        name, glued, _ = args[at].partition("=")
        if name not in SPELLINGS:
            break
        at += 1 if glued else 2
    if at == 0 or at >= len(args) or args[at].startswith("-"):
        return args
    return [args[at], *args[:at], *args[at + 1 :]]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """An API server with credentials for it."""

    kube: Any  # a controllers.runtime.kube.KubeApi; importing that costs half a second, which --help need not wait for
    host: str
    namespace: str
    """The namespace that the flags or the context name."""


@asynccontextmanager
async def reach(flags: KubeFlags) -> AsyncIterator[Cluster]:
    """The cluster that the flags name. Nothing is sent yet.

    Raises
    ------
    Failed
        There are no usable credentials.
    """
    from controllers.runtime.credentials import load_api_client
    from controllers.runtime.depth import deep_objects
    from controllers.runtime.kube import HttpKubeApi, transport_of

    timeout = flags.timeout_seconds
    if flags.namespace and not _NAMESPACE.fullmatch(flags.namespace):
        raise Failed(f"--namespace {flags.namespace}: not a name that a namespace can have")
    try:
        path, namespace = _kubeconfig(flags)
        client = await load_api_client(path, context=flags.context or None)
    except ReconcileError as error:
        raise Failed(error.message) from error
    send = transport_of(client)

    async def as_asked(method: str, path: str, headers: dict[str, str], body: Any, seconds: float) -> Any:
        return await send(method, path, {**headers, "Impersonate-User": flags.as_user}, body, seconds)

    with deep_objects():
        async with client:
            yield Cluster(
                kube=HttpKubeApi(
                    as_asked if flags.as_user else send,
                    clock=SystemClock(),
                    rng=random.Random(),
                    timeout_seconds=timeout,
                    attempts=2,
                ),
                host=client.configuration.host,
                namespace=namespace,
            )


def _kubeconfig(flags: KubeFlags) -> tuple[str | None, str]:
    """The kubeconfig to load, None for that of the pod we run in, and the namespace to look at."""
    named = flags.kubeconfig or os.environ.get("KUBECONFIG", "")
    path = named or str(Path.home() / ".kube" / "config")
    if not any(part and Path(part).expanduser().is_file() for part in path.split(os.pathsep)):
        if not named and not flags.context and "KUBERNETES_SERVICE_HOST" in os.environ:
            return None, flags.namespace or _namespace_of_the_pod()
        raise Failed(f"there is no kubeconfig at {path}; set KUBECONFIG or name one with --kubeconfig FILE")
    return path, flags.namespace or _namespace_of_the_context(path, flags.context)


def _namespace_of_the_pod() -> str:
    try:
        return _SERVICE_ACCOUNT_NAMESPACE.read_text().strip() or "default"
    except OSError:
        return "default"


def _namespace_of_the_context(path: str, context: str) -> str:
    from kubernetes.aio import config

    try:
        contexts, current = config.list_kube_config_contexts(path)
    except Exception:  # a file of any other kind; loading it, which comes next, says so better
        return "default"
    chosen = next((each for each in contexts if each["name"] == context), None) if context else current
    if chosen is None:
        raise Failed(f"there is no context {context} in {path}; `kubectl config get-contexts` lists them")
    inner: Mapping[str, str] = chosen.get("context") or {}
    return inner.get("namespace") or "default"


@contextmanager
def explained(cluster: Cluster) -> Iterator[None]:
    """Turns what goes wrong with a request inside into a :class:`Failed` that says what to do."""
    try:
        yield
    except ReconcileError as error:
        raise Failed(why(error, cluster)) from error
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:  # an answer of another shape, or no JSON at all
        raise Failed(_no_api_server(cluster)) from error


def why(error: ReconcileError, cluster: Cluster) -> str:
    """One line about a refused or lost request: what happened, where, and what to do."""
    from controllers.runtime.errors import Forbidden, KindMissing
    from controllers.runtime.kube_errors import BAD_ANSWER

    said = error.message.split(": ", 1)[-1]  # without the call, which names no more than the server and the kind do
    if isinstance(error, KindMissing):
        return (
            f"the API server at {cluster.host} does not know the kinds of grfleet: install the chart (docs/install.md), "
            "or choose another cluster with --context"
        )
    if isinstance(error, Forbidden):
        return f"{said}; a cluster-wide install of the chart adds this to the ClusterRoles view, edit and admin: ask for one"
    if error.reason == "Unauthorized":
        return f"the API server at {cluster.host} does not accept these credentials; log in again, or choose --context"
    if error.reason == BAD_ANSWER:
        return _no_api_server(cluster)
    if error.reason in _NO_ANSWER:
        return f"the API server at {cluster.host} does not answer ({said}); check KUBECONFIG, --context and the network"
    return f"the API server at {cluster.host} answered {error.reason}: {error.message}"


def _no_api_server(cluster: Cluster) -> str:
    return f"what answers at {cluster.host} is no Kubernetes API server; check KUBECONFIG and --context"
