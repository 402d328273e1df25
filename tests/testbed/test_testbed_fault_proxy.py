"""Each fault of the proxy, shown with a plain HTTP client and, where a watch is concerned, a plain watch."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from testbed.control_plane import ControlPlane
from testbed.faults import (
    Answer,
    Call,
    Cut,
    Drop,
    Duplicate,
    FaultProxy,
    Freeze,
    Hold,
    Latency,
    Match,
    Page,
    Reorder,
    ResetAfter,
    ResetBefore,
    StreamError,
    continuations,
    lists,
    writes,
)
from testbed.patience import eventually

WATCH = Match(watch=True)


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[FaultProxy]:
    with FaultProxy(control_plane) as running:
        yield running


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[httpx.Client]:
    with proxy.client(timeout_seconds=10, user_agent="raw/1") as made:
        yield made


@pytest.fixture
def maps(namespace: str) -> str:
    """Path of the namespace's ConfigMaps."""
    return f"/api/v1/namespaces/{namespace}/configmaps"


def config_map(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"a": "b"}}


class Watch:
    """A watch in a thread: the lines it got, and how it ended."""

    def __init__(self, client: httpx.Client, path: str, proxy: FaultProxy, *, seconds: int = 20) -> None:
        self._proxy, self._before = proxy, proxy.open_watches
        self.lines: list[str] = []
        self.ended: str | None = None
        version = client.get(path).json()["metadata"]["resourceVersion"]
        self._query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        self._client, self._path = client, path
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        eventually(lambda: self._proxy.open_watches > self._before)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._response.close()

    def _run(self) -> None:
        try:
            with self._client.stream("GET", self._path, params=self._query) as response:
                self._response = response
                for line in response.iter_lines():
                    self.lines.append(line)
            self.ended = "end"
        except Exception as error:
            self.ended = type(error).__name__

    def names(self) -> list[str]:
        """Names of the objects of the events so far."""
        return [json.loads(line)["object"].get("metadata", {}).get("name", "") for line in self.lines]


def test_without_rules_everything_passes_through_as_it_is(
    proxy: FaultProxy, client: httpx.Client, control_plane: ControlPlane, maps: str, namespace: str
) -> None:
    created = client.post(maps, json=config_map("one"))
    page = client.get(maps, params={"limit": "1", "labelSelector": "a!=b,!c"}).json()
    names = [each["metadata"]["name"] for each in page["items"]]
    while token := page["metadata"].get("continue"):
        page = client.get(maps, params={"limit": "1", "labelSelector": "a!=b,!c", "continue": token}).json()
        names += [each["metadata"]["name"] for each in page["items"]]
    kubectl = control_plane.kubectl(
        "get", "cm", "one", "-n", namespace, "-o", "name", kubeconfig=proxy.kubeconfig(control_plane.kubeconfig)
    )

    assert created.status_code == 201
    assert "one" in names
    assert kubectl.stdout.strip() == "configmap/one"
    [write] = proxy.writes()
    assert (write.method, write.path, write.user_agent, write.status, write.told) == ("POST", maps, "raw/1", 201, 201)
    assert write.object()["metadata"]["name"] == json.loads(write.body)["metadata"]["name"] == "one"
    assert not proxy.injected


def test_rbac_sees_the_callers_own_token(proxy: FaultProxy, maps: str) -> None:
    with proxy.client(token="nobody") as stranger:
        assert stranger.get(maps).status_code == 401


def test_latency_delays_before_the_request_is_forwarded(proxy: FaultProxy, client: httpx.Client, maps: str) -> None:
    proxy.add(Match(path=maps), Latency(seconds=0.4, jitter_seconds=0.1))
    began = time.monotonic()

    assert client.get(maps).is_success

    assert time.monotonic() - began >= 0.4
    assert proxy.injected == {"Latency": 1}


@pytest.mark.parametrize("status", [500, 503, 429, 409])
def test_an_error_is_answered_as_the_api_server_words_it_and_nothing_is_done(
    proxy: FaultProxy, client: httpx.Client, kube_api: httpx.Client, maps: str, status: int
) -> None:
    proxy.add(writes(maps), Answer(status=status, retry_after_seconds=3 if status == 429 else None), times=1)

    answer = client.post(maps, json=config_map("refused"))

    assert answer.status_code == answer.json()["code"] == status
    assert answer.json()["kind"] == "Status"
    assert answer.headers.get("Retry-After") == ("3" if status == 429 else None)
    assert kube_api.get(f"{maps}/refused").status_code == 404
    assert client.post(maps, json=config_map("refused")).status_code == 201  # once only
    assert [(each.status, each.told) for each in proxy.writes()] == [(None, status), (201, 201)]


def test_a_reset_before_leaves_nothing_behind_and_a_reset_after_is_done_although_the_client_cannot_know(
    proxy: FaultProxy, client: httpx.Client, kube_api: httpx.Client, maps: str
) -> None:
    before = proxy.add(writes(), ResetBefore(), times=1)
    with pytest.raises(httpx.TransportError):
        client.post(maps, json=config_map("before"))
    after = proxy.add(writes(), ResetAfter(), times=1)
    with pytest.raises(httpx.TransportError):
        client.post(maps, json=config_map("after"))

    assert (before.hits, after.hits) == (1, 1)
    assert kube_api.get(f"{maps}/before").status_code == 404
    assert kube_api.get(f"{maps}/after").is_success
    assert [(each.status, each.told, each.succeeded) for each in proxy.writes()] == [(None, None, False), (201, None, True)]


def test_a_rule_finds_its_requests_by_method_path_and_user_agent(proxy: FaultProxy, client: httpx.Client, maps: str) -> None:
    meant = Match(methods=frozenset({"GET"}), path=r"/configmaps\?limit=7", user_agent="^raw/")
    rule = proxy.add(meant, Answer(status=503))

    statuses = [
        client.get(maps).status_code,
        client.post(f"{maps}?limit=7", json=config_map("posted")).status_code,
        client.get(f"{maps}?limit=7", headers={"User-Agent": "other"}).status_code,
        client.get(f"{maps}?limit=7").status_code,
    ]

    assert statuses == [200, 201, 200, 503]
    assert (rule.seen, rule.hits) == (1, 1)


def test_the_nth_request_can_be_meant_and_chance_repeats_with_its_seed(
    proxy: FaultProxy, client: httpx.Client, maps: str
) -> None:
    def statuses(number: int) -> list[int]:
        return [client.get(maps).status_code for _ in range(number)]

    nth = proxy.add(Match(path=maps), Answer(status=503), skip=2, times=1)
    assert statuses(5) == [200, 200, 503, 200, 200]
    proxy.remove(nth)

    runs = []
    for seed in (1, 1, 2):
        rule = proxy.add(Match(path=maps), Answer(status=500), probability=0.5, seed=seed)
        runs.append(statuses(12))
        proxy.remove(rule)
    assert runs[0] == runs[1] != runs[2]
    assert {200, 500} == set(runs[0])


def test_a_held_write_is_done_when_it_is_released_although_its_client_has_gone(
    proxy: FaultProxy, client: httpx.Client, kube_api: httpx.Client, maps: str
) -> None:
    rule = proxy.add(writes(maps), Hold(), times=1)
    with pytest.raises(httpx.ReadTimeout):
        client.post(maps, json=config_map("late"), timeout=0.3)
    assert kube_api.get(f"{maps}/late").status_code == 404
    assert [each.method for each in proxy.pending()] == ["POST"]

    proxy.release(rule)

    eventually(lambda: kube_api.get(f"{maps}/late").is_success)
    [write] = eventually(proxy.writes)
    assert write.succeeded
    assert write.told is None
    assert not proxy.pending()


def test_a_function_is_called_at_the_exact_write_before_or_after_it_is_done(
    proxy: FaultProxy, client: httpx.Client, kube_api: httpx.Client, maps: str
) -> None:
    found: list[int] = []
    for after in (False, True):
        proxy.add(
            writes(), Call(function=lambda: found.append(kube_api.get(f"{maps}/two").status_code), after=after), skip=1, times=1
        )
        for name in ("one", "two"):
            client.delete(f"{maps}/{name}")
        proxy.clear()
    assert found == [404, 404]
    proxy.add(writes(), Call(function=lambda: found.append(kube_api.get(f"{maps}/two").status_code)), skip=1, times=1)
    for name in ("one", "two"):
        client.post(maps, json=config_map(name))
    assert found == [404, 404, 200]


def test_a_frozen_watch_stays_connected_and_silent_while_a_new_one_works(
    proxy: FaultProxy, client: httpx.Client, kube_api: httpx.Client, maps: str
) -> None:
    with Watch(client, maps, proxy) as frozen:
        kube_api.post(maps, json=config_map("seen"))
        eventually(lambda: "seen" in frozen.names())
        rule = proxy.add(WATCH, Freeze())
        rule.wait_for_hits(timeout_seconds=5)  # silent streams obey at once
        proxy.remove(rule)
        with proxy.client() as other, Watch(other, maps, proxy) as fresh:
            kube_api.post(maps, json=config_map("unseen"))
            eventually(lambda: "unseen" in fresh.names())
        assert "unseen" not in frozen.names()
        assert frozen.ended is None


def test_single_events_are_lost_or_delivered_twice(
    proxy: FaultProxy, client: httpx.Client, kube_api: httpx.Client, maps: str, namespace: str
) -> None:
    with Watch(client, maps, proxy) as watch:
        lost = proxy.add(Match(watch=True, events=frozenset({"ADDED"}), name=f"^{namespace}/b$"), Drop())
        twice = proxy.add(Match(watch=True, name="/c$"), Duplicate(), times=1)
        for name in ("a", "b", "c", "d"):
            kube_api.post(maps, json=config_map(name))
        eventually(lambda: "d" in watch.names())

    mine = [name for name in watch.names() if name in ("a", "b", "c", "d")]
    assert mine == ["a", "c", "c", "d"]
    assert (lost.hits, twice.hits) == (1, 1)
    assert proxy.injected == {"Drop": 1, "Duplicate": 1}


def test_an_event_is_overtaken_by_the_one_that_follows_it(
    proxy: FaultProxy, client: httpx.Client, kube_api: httpx.Client, maps: str
) -> None:
    with Watch(client, maps, proxy) as watch:
        rule = proxy.add(Match(watch=True, name="/[be]$"), Reorder(patience_seconds=30))
        for name in ("a", "b", "c", "d", "e", "f"):
            kube_api.post(maps, json=config_map(name))
        eventually(lambda: "e" in watch.names())

    assert [name for name in watch.names() if name in "abcdef"] == ["a", "c", "b", "d", "f", "e"]
    assert rule.hits == 2


def test_an_event_that_none_follows_is_late_but_not_lost(
    proxy: FaultProxy, client: httpx.Client, kube_api: httpx.Client, maps: str
) -> None:
    with Watch(client, maps, proxy) as watch:
        rule = proxy.add(Match(watch=True, name="/last$"), Reorder(patience_seconds=0.2))
        kube_api.post(maps, json=config_map("last"))
        rule.wait_for_hits(timeout_seconds=5)
        eventually(lambda: "last" in watch.names())


def test_an_event_waits_for_one_that_is_delivered_and_comes_before_the_watch_ends(
    proxy: FaultProxy, client: httpx.Client, kube_api: httpx.Client, maps: str
) -> None:
    with Watch(client, maps, proxy, seconds=2) as watch:
        proxy.add(Match(watch=True, name="/b$"), Drop())
        proxy.add(Match(watch=True, name="/[ac]$"), Reorder(patience_seconds=30))
        for name in ("a", "b", "d", "c"):
            kube_api.post(maps, json=config_map(name))
        eventually(lambda: watch.ended == "end")

    assert [name for name in watch.names() if name in "abcd"] == ["d", "a", "c"]


def test_a_list_comes_in_smaller_pages_and_its_continuation_expires_in_the_middle(
    proxy: FaultProxy, client: httpx.Client, maps: str
) -> None:
    for name in ("a", "b", "c"):
        client.post(maps, json=config_map(name))
    paged = [proxy.add(match(maps), Page(limit=1)) for match in (lists, continuations)]
    first = client.get(maps, params={"limit": "500"}).json()
    second = client.get(maps, params={"limit": "500", "continue": first["metadata"]["continue"]}).json()
    assert [len(page["items"]) for page in (first, second)] == [1, 1]
    assert len(client.get(maps).json()["items"]) >= 3  # who asks for no pages gets none
    assert [rule.hits for rule in paged] == [1, 1]

    proxy.clear()
    rule = proxy.add(continuations(maps), Answer(status=410), times=1)
    query = {"limit": "1", "continue": first["metadata"]["continue"]}
    expired = client.get(maps, params=query)

    assert (expired.status_code, expired.json()["reason"], rule.hits) == (410, "Expired", 1)
    rest = client.get(maps, params={"limit": "500", "continue": expired.json()["metadata"]["continue"]}).json()
    assert len(first["items"]) + len(rest["items"]) >= 3
    assert client.get(maps, params=query).is_success


def test_expiry_is_told_as_the_api_server_tells_it(own_control_plane: ControlPlane) -> None:
    """Given a token and a version that the server has really forgotten: etcd compacted, its own memory gone with a restart."""
    plane, maps = own_control_plane, "/api/v1/namespaces/default/configmaps"
    with FaultProxy(plane) as proxy, proxy.client() as client:
        for name in ("a", "b", "c"):
            client.post(maps, json=config_map(name)).raise_for_status()
        token = client.get(maps, params={"limit": "1"}).json()["metadata"]["continue"]
        compact(plane, client.post(maps, json=config_map("d")).json()["metadata"]["resourceVersion"])
        plane.restart_api_server()
        page = {"limit": "1", "continue": token}
        watch = {"watch": "true", "resourceVersion": "2", "timeoutSeconds": "5"}

        real_page, real_event = client.get(maps, params=page), json.loads(client.get(maps, params=watch).text)
        proxy.add(Match(path="continue="), Answer(status=410), times=1)
        injected_page = client.get(maps, params=page)
        proxy.add(WATCH, StreamError(code=410), times=1)
        injected_event = json.loads(client.get(maps, params={**watch, "resourceVersion": ""}).text.splitlines()[-1])
        proxy.add(WATCH, Answer(status=410), times=1)
        injected_answer = client.get(maps, params=watch)

    def worded(status: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in status.items() if key != "message"}

    assert real_page.status_code == injected_page.status_code == injected_answer.status_code == 410
    assert worded(injected_page.json()) == worded(real_page.json())
    assert injected_event["type"] == real_event["type"] == "ERROR"
    assert worded(injected_event["object"]) == worded(real_event["object"]) == worded(injected_answer.json())


def compact(plane: ControlPlane, version: str) -> None:
    """Have etcd forget everything older."""
    pki = plane.directory / "pki"
    context = ssl.create_default_context(cafile=str(plane.ca_file))
    context.load_cert_chain(pki / "etcd.crt", pki / "etcd.key")
    body = {"revision": version, "physical": True}
    httpx.post(f"{plane.etcd_url}/v3/kv/compaction", json=body, verify=context, trust_env=False).raise_for_status()


def test_a_watch_is_told_that_its_version_is_too_old(proxy: FaultProxy, client: httpx.Client, maps: str) -> None:
    with Watch(client, maps, proxy) as watch:
        proxy.add(WATCH, StreamError(code=410), times=1)
        eventually(lambda: watch.ended == "end")

    last = json.loads(watch.lines[-1])
    assert (last["type"], last["object"]["code"], last["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_a_watch_is_cut_in_the_middle_of_an_event(
    proxy: FaultProxy, client: httpx.Client, kube_api: httpx.Client, maps: str
) -> None:
    with Watch(client, maps, proxy) as watch:
        proxy.add(Match(watch=True, name="/torn$"), Cut())
        kube_api.post(maps, json=config_map("torn"))
        eventually(lambda: watch.ended is not None)

    assert watch.ended in ("ReadError", "RemoteProtocolError")
    assert not any(line.endswith("}}") and '"torn"' in line for line in watch.lines)


def test_while_the_api_server_is_down_connections_break_and_afterwards_all_is_well(own_control_plane: ControlPlane) -> None:
    maps = "/api/v1/namespaces/default/configmaps"
    with FaultProxy(own_control_plane) as proxy, proxy.client() as client:
        with Watch(client, maps, proxy) as watch:
            own_control_plane.kill_api_server()
            eventually(lambda: watch.ended is not None)
        with pytest.raises(httpx.TransportError):
            client.get(maps)
        own_control_plane.start_api_server()
        assert client.get(maps).is_success
