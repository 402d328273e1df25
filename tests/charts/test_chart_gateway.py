"""Gateway pods of the chart: hardened, few rights, an agent that takes its arguments, and nothing at all unless asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chart_tools import CHART, ROOT, Helm, grants_of, of_kind, the

from contract.table import _HEADERS_OF_OTHERS
from dataplane.gateway import main as command
from dataplane.gateway.config import HAPROXY_ENVIRONMENT, validate

GATEWAYS = str(CHART / "ci" / "gateways.yaml")
KINDS = ("ServiceAccount", "Role", "RoleBinding", "Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy")
ONE = "gateway.enabled=true,gateway.pools[0].name=ranker,gateway.pools[0].namespace=feed,gateway.pools[0].keySecret.name=user-key"


def gateways(helm: Helm, *flags: str) -> list[dict[str, Any]]:
    objects = helm.render(*flags)
    return [each for each in objects if each["metadata"]["labels"].get("app.kubernetes.io/component") == "gateway"]


def pod_of(helm: Helm, *flags: str, name: str = "ranker-gateway") -> dict[str, Any]:
    pod: dict[str, Any] = the(gateways(helm, *flags), "Deployment", name)["spec"]["template"]["spec"]
    return pod


def containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in (*pod["initContainers"], *pod["containers"])}


def test_without_being_asked_for_there_is_no_gateway(helm: Helm) -> None:
    assert gateways(helm) == []
    assert gateways(helm, "--set", "gateway.enabled=true") == []


def test_lint_finds_nothing(helm: Helm) -> None:
    done = helm.run("lint", "--strict", str(CHART), "--kube-version", "1.34.0", "--values", GATEWAYS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_pool_has_all_objects_in_its_own_namespace(helm: Helm) -> None:
    found = {
        (each["kind"], each["metadata"]["namespace"], each["metadata"]["name"]) for each in gateways(helm, "--values", GATEWAYS)
    }
    pools = (("feed", "ranker-gateway"), ("shop", "recall-gateway"))
    agents = {("Service", namespace, f"{name}-agent") for namespace, name in pools}
    assert found == {(kind, *pool) for kind in KINDS for pool in pools} | agents
    assert "PodDisruptionBudget" not in {each["kind"] for each in gateways(helm, "--set", f"{ONE},gateway.replicas=1")}


@pytest.mark.parametrize("flags", [("--set", ONE), ("--values", GATEWAYS)], ids=["least", "most"])
def test_pods_are_restricted_and_write_to_memory_only(helm: Helm, flags: tuple[str, ...]) -> None:
    pod = pod_of(helm, *flags)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    writable = {mount["name"] for each in containers(pod).values() for mount in each["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"run"}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["run"]["emptyDir"]["medium"] == "Memory", "the key of the pool is in it"
    for each in containers(pod).values():
        context = each["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["runAsNonRoot"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def test_haproxy_gets_neither_the_token_nor_the_secret_as_a_file(helm: Helm) -> None:
    pod = pod_of(helm, "--set", ONE)
    assert pod["automountServiceAccountToken"] is False
    mounts = {name: [mount["name"] for mount in each["volumeMounts"]] for name, each in containers(pod).items()}
    assert mounts == {
        "configure": ["run", "pool-key", "account"],
        "haproxy": ["run"],
        "agent": ["run", "pool-key", "account"],
    }


def test_the_account_may_read_tables_in_its_namespace_see_whether_its_pool_is_there_and_nothing_else(helm: Helm) -> None:
    objects = gateways(helm, "--values", GATEWAYS)
    for role in of_kind(objects, "Role"):
        tables = {("grfleet.dev", "grroutingtables", verb) for verb in ("get", "list", "watch")}
        assert grants_of(role) == tables | {("grfleet.dev", "grservingpools", "get")}
        (pool,) = (rule["resourceNames"] for rule in role["rules"] if rule["resources"] == ["grservingpools"])
        assert role["metadata"]["name"] == f"{pool[0]}-gateway"
    for binding in of_kind(objects, "RoleBinding"):
        metadata = binding["metadata"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": metadata["name"], "namespace": metadata["namespace"]}]
        assert binding["roleRef"]["name"] == metadata["name"]
    for each in of_kind(objects, "Deployment"):
        assert each["spec"]["template"]["spec"]["serviceAccountName"] == each["metadata"]["name"]


def test_selectors_meet_the_pods_of_their_own_pool_and_not_the_operator_s(helm: Helm) -> None:
    objects = helm.render("--values", GATEWAYS)
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"].items()
        for each in of_kind(objects, "Deployment")
    }
    for each in of_kind(objects, "Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment"):
        selector = each["spec"].get("selector") or each["spec"].get("podSelector")
        wanted = selector.get("matchLabels", selector)
        met = [name for name, labels in pods.items() if wanted.items() <= labels]
        operator = each["metadata"]["labels"]["app.kubernetes.io/component"] == "operator"
        assert met == (["grfleet"] if operator else [each["metadata"]["name"].removesuffix("-agent")]), each["kind"]


@pytest.mark.parametrize("flags", [("--set", ONE), ("--values", GATEWAYS)], ids=["least", "most"])
def test_the_agent_takes_the_arguments_that_the_chart_gives_it(helm: Helm, flags: tuple[str, ...], tmp_path: Path) -> None:
    found = containers(pod_of(helm, *flags))
    arguments = found["agent"]["args"]
    assert found["configure"]["args"] == [*arguments, "--render-only"]
    assert found["agent"]["command"] == ["python", "-m", command.__name__]
    (tmp_path / "key").write_bytes(b"0123456789abcdef")
    here = [each.replace("/etc/grfleet/key", str(tmp_path / "key")) for each in arguments]
    options = command._parser().parse_args(here)
    config = command._config(options)
    validate(config)
    assert options.table == "kubernetes:feed/ranker"
    started = found["haproxy"]["command"]
    assert started[-1] == str(config.directory / "haproxy.cfg")
    assert {each["name"]: each["value"] for each in found["haproxy"]["env"]} == HAPROXY_ENVIRONMENT
    assert [each.split("=")[0] for each in arguments].count("--haproxy-master") == 1
    assert f"{options.haproxy_master},mode,600" in started
    assert f"{config.master_socket},mode,600" in found["haproxy"]["command"]
    ports = {port["name"]: port["containerPort"] for each in found.values() for port in each.get("ports", ())}
    assert config.bind == f":{ports['http']}"
    assert config.metrics_bind == f":{ports['haproxy-metrics']}"
    assert options.health_bind == f"0.0.0.0:{ports['gateway-metrics']}"


@pytest.mark.parametrize("end", ["minimum", "maximum"])
def test_the_agent_takes_whatever_the_schema_lets_through(helm: Helm, end: str, tmp_path: Path) -> None:
    known = json.loads((CHART / "values.schema.json").read_text())["properties"]["gateway"]["properties"]
    numbers = {name: each[end] for name, each in known.items() if each.get("type") == "integer"}
    texts = {"idHeader": "x" * 63, "checkPath": "/" + "x" * 200} if end == "maximum" else {"idHeader": "x", "checkPath": "/"}
    assert {"maxConnections", "retriableBytes", "threads", "drainSeconds", "port"} <= set(numbers)
    (tmp_path / "values.yaml").write_text(json.dumps({"gateway": {**numbers, **texts}}))
    (tmp_path / "key").write_bytes(b"0123456789abcdef")
    arguments = containers(pod_of(helm, "--values", str(tmp_path / "values.yaml"), "--set", ONE))["agent"]["args"]
    here = [each.replace("/etc/grfleet/key", str(tmp_path / "key")) for each in arguments]
    validate(command._config(command._parser().parse_args(here)))
    assert f"--id-header={texts['idHeader']}" in arguments
    assert "idHeader" in helm.refusal("--set", f"{ONE},gateway.idHeader={'x' * 64}"), "nor does the agent take it"


def test_every_value_arrives(helm: Helm) -> None:
    pod, other = (pod_of(helm, "--values", GATEWAYS, name=name) for name in ("ranker-gateway", "recall-gateway"))
    arguments = containers(pod)["agent"]["args"]
    assert {"--id-header=x-member", "--check-path=/ready", "--threads=4", "--drain-seconds=30", "--ignore-choices"} <= {
        *arguments
    }
    assert {"--max-connections=20000", "--key-id=user-key", "--bind=:8443", "--agents=https://{host}:9443"} <= {*arguments}
    assert "--retriable-bytes=1048576" in arguments
    assert "--check-path=/healthz" in containers(other)["agent"]["args"]
    assert other["volumes"][1]["secret"]["items"] == [{"key": "current", "path": "key"}]
    assert pod["terminationGracePeriodSeconds"] == 30 + 10 + 5
    assert containers(pod)["haproxy"]["lifecycle"] == {"preStop": {"sleep": {"seconds": 10}}}
    assert containers(pod)["haproxy"]["image"] == "registry.example.com/team/haproxy:2.6"
    assert (pod["nodeSelector"], pod["imagePullSecrets"]) == ({"kubernetes.io/os": "linux"}, [{"name": "pull-secret"}])
    at_once = containers(pod_of(helm, "--set", f"{ONE},gateway.stopDelaySeconds=0"))["haproxy"]
    assert "lifecycle" not in at_once, "a sleep of 0 s is refused before Kubernetes 1.33"
    service = the(gateways(helm, "--values", GATEWAYS), "Service", "ranker-gateway")
    assert (service["spec"]["type"], service["spec"]["ports"][0]["port"]) == ("LoadBalancer", 8000)


def test_authorities_are_mounted_wherever_they_are_read_and_nowhere_unless_named(helm: Helm) -> None:
    pod = pod_of(helm, "--values", GATEWAYS, name="recall-gateway")
    (volume,) = (each for each in pod["volumes"] if each["name"] == "ca")
    assert volume["secret"] == {"secretName": "shop-tls", "defaultMode": 0o440, "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    (argument,) = (each for each in containers(pod)["agent"]["args"] if each.startswith("--ca-file="))
    for name, each in containers(pod).items():  # HAProxy reads the same file, at the same place
        (mount,) = (mount for mount in each["volumeMounts"] if mount["name"] == "ca")
        assert mount["readOnly"] is True
        assert f"--ca-file={mount['mountPath']}/ca.crt" == argument, name
    assert command._parser().parse_args(containers(pod)["agent"]["args"]).ca_file == "/etc/grfleet-ca/ca.crt"
    without = pod_of(helm, "--values", GATEWAYS)
    assert "ca" not in {each["name"] for each in without["volumes"]}
    assert not [each for each in containers(without)["agent"]["args"] if "ca-file" in each]


def test_the_values_of_the_page_make_a_gateway_that_verifies_instances(helm: Helm, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    (values,) = (block.removeprefix("yaml") for block in page.split("```") if block.startswith("yaml") and "ca:" in block)
    (tmp_path / "values.yaml").write_text(values)
    pod = pod_of(helm, "--values", str(tmp_path / "values.yaml"))
    assert next(each for each in pod["volumes"] if each["name"] == "ca")["configMap"]["name"] == "feed-ca"


def test_hot_users_are_followed_unless_nobody_says_where_agents_are(helm: Helm) -> None:
    assert "--agents=http://{host}:9001" in containers(pod_of(helm, "--set", ONE))["agent"]["args"]
    without = containers(pod_of(helm, "--set", f"{ONE},gateway.hotUsers.agents="))["agent"]["args"]
    assert not [each for each in without if "agents" in each or "hot-user" in each]


def ports_for(policy: dict[str, Any], peer: dict[str, Any] | None) -> set[Any]:
    """Ports at which a NetworkPolicy lets a peer in; None for anybody."""
    rules = policy["spec"]["ingress"]
    return {port["port"] for rule in rules if "from" not in rule or peer in rule["from"] for port in rule["ports"]}


@pytest.mark.parametrize("part", ["gateway", "picker"])
def test_clients_read_hot_users_at_a_service_that_never_leaves_the_cluster_and_are_let_in(helm: Helm, part: str) -> None:
    objects = [each for each in helm.render("--values", GATEWAYS) if each["metadata"]["name"].startswith(f"ranker-{part}")]
    policy = the(objects, "NetworkPolicy")
    assert f"{part}-metrics" in ports_for(policy, {"podSelector": {"matchLabels": {"app": "feed"}}})
    assert {"to": [{"podSelector": {"matchLabels": {"grfleet.dev/pool": "ranker"}}}]} in policy["spec"]["egress"], "agents too"
    pools = ONE.replace("gateway.", f"{part}.")
    least = [each for each in helm.render("--set", pools) if each["metadata"]["name"].startswith(f"ranker-{part}")]
    service, pod = the(least, "Service", f"ranker-{part}-agent"), the(least, "Deployment")["spec"]["template"]
    assert service["spec"]["type"] == "ClusterIP"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    ports = {each["name"]: each["containerPort"] for one in pod["spec"]["containers"] for each in one.get("ports", ())}
    assert (port["port"], ports[port["targetPort"]]) == (8081, 8081)
    without = helm.render("--set", f"{pools},{part}.hotUsers.agents=")
    assert not [each for each in without if each["metadata"]["name"] == f"ranker-{part}-agent"]


def test_the_longest_names_of_pools_make_names_of_services_that_differ(helm: Helm) -> None:
    longest = "x" * 55
    named = [part.replace("ranker", longest) for part in (ONE, ONE.replace("gateway.", "picker."))]
    names = [each["metadata"]["name"] for each in of_kind(helm.render("--set", ",".join(named)), "Service")]
    assert len({name for name in names if longest in name}) == 4
    assert max(map(len, names)) <= 63


def test_replicas_keep_away_from_each_other_and_go_one_by_one(helm: Helm) -> None:
    objects = gateways(helm, "--set", ONE)
    deployment = the(objects, "Deployment")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    (rule,) = deployment["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert rule["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert the(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("gateway.pools[0].keySecret=null", "keySecret"),
        ("gateway.pools[0].name=Ranker", "name"),
        (f"gateway.pools[0].name={'x' * 56}", "name"),
        ("gateway.pools[0].secret=x", "secret"),
        ("gateway.port=80", "port"),
        ("gateway.idHeader=x-gr-user", "idHeader"),
        ("gateway.idHeader=content-length", "idHeader"),
        ("gateway.port=8081", "port"),
        ("gateway.port=8082", "port"),
        ("gateway.hotUsers.agents=http://\\{pod}:9001", "agents"),
        ("gateway.haproxy.image.tag=", "tag"),
        ("gateway.boundedLoadPercent=300", "boundedLoadPercent"),
        ("gateway.hotUsers.max=5", "max"),
        ("gateway.haproxy.image.repository=", "repository"),
        ("gateway.checkPath=ready", "checkPath"),
        ("gateway.pools[0].ca.key=ca.crt", "ca"),
        ("gateway.pools[0].ca.configMap=a,gateway.pools[0].ca.secret=b", "ca"),
        ("gateway.pools[0].ca.file=/etc/ca.crt", "file"),
    ],
    ids=lambda value: value if "=" in value else "",
)
def test_a_bad_value_is_refused_with_its_name(helm: Helm, value: str, named: str) -> None:
    assert named in helm.refusal("--set", f"{ONE},{value}")


@pytest.mark.parametrize("part", ["gateway", "picker"])
def test_no_header_that_is_needed_for_something_else_can_be_named_for_ids(part: str) -> None:
    place = json.loads((CHART / "values.schema.json").read_text())["properties"][part]["properties"]["idHeader"]
    assert [each for each in _HEADERS_OF_OTHERS if not re.search(place["not"]["pattern"], each)] == []
    assert not re.search(place["not"]["pattern"], "x-host")
