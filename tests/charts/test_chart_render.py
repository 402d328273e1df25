"""What the chart renders, for every variant in ci/: least rights, restricted pods, consistent selectors, values that arrive."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_tools import CHART, CLAIM, MONITORING_KINDS, POLICY_KINDS, ROOT, VARIANTS, Helm, grants_of, of_kind, the

from controllers.metrics_source.queries import Labels
from controllers.runtime.rbac import RULES, Scope, grants
from controllers.runtime.resources import AGENT_PORT, MODEL_VERSION_LABEL, POOL_LABEL, SERVING_PORT
from controllers.runtime.settings import parse_settings
from crds.hbm_policy import HBMPolicySpec
from crds.preinference_policy import PreInferencePolicySpec
from crds.routing_policy import RoutingPolicySpec
from crds.types import ApiModel
from testbed.versions import HELM

ROLES = ("Role", "ClusterRole")
WORKLOADS = ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor")
AGENT_IMAGE = "GRFLEET_AGENT_IMAGE"
EVERYTHING, NAMESPACED, MINIMAL = (str(CHART / "ci" / f"{name}-values.yaml") for name in ("everything", "namespaced", "minimal"))
EACH_VARIANT = pytest.mark.parametrize("values", VARIANTS, ids=lambda path: path.name.removesuffix("-values.yaml"))
SPECS: dict[str, type[ApiModel]] = {
    "HBMPolicy": HBMPolicySpec,
    "RoutingPolicy": RoutingPolicySpec,
    "PreInferencePolicy": PreInferencePolicySpec,
}


def table(scope: Scope) -> set[tuple[str, str, str]]:
    return {(rule.group, rule.resource, verb) for rule, verb in grants(rule for rule in RULES if rule.scope is scope)}


def operator_roles(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    roles = [role for role in of_kind(objects, *ROLES) if role["metadata"]["name"] != CLAIM]
    return [role for role in roles if not any("aggregate-to" in name for name in role["metadata"]["labels"])]


def variables(objects: list[dict[str, Any]]) -> dict[str, str]:
    container = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


@EACH_VARIANT
def test_lint_finds_nothing(helm: Helm, values: Path) -> None:
    done = helm.run("lint", "--strict", str(CHART), "--kube-version", "1.34.0", "--values", str(values))
    assert done.returncode == 0, done.stdout + done.stderr


@EACH_VARIANT
def test_pods_are_restricted_and_write_only_to_tmp(helm: Helm, values: Path) -> None:
    pod = the(helm.render("--values", str(values)), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]
    assert all(set(volume) == {"name", "emptyDir"} for volume in pod["volumes"])
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


@EACH_VARIANT
def test_no_role_has_a_wildcard_or_reads_all_secrets(helm: Helm, values: Path) -> None:
    for role in of_kind(helm.render("--values", str(values)), *ROLES):
        for group, resource, verb in grants_of(role):
            assert "*" not in (group, resource, verb), role["metadata"]["name"]
            assert resource != "secrets" or verb not in ("list", "watch", "delete"), role["metadata"]["name"]
            assert verb not in ("escalate", "bind", "impersonate")


@EACH_VARIANT
def test_every_object_is_labelled_and_every_selector_meets_the_pods(helm: Helm, values: Path) -> None:
    objects = helm.render("--values", str(values))
    pods = the(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    for each in objects:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "grfleet", each["kind"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
    for each in of_kind(objects, *WORKLOADS):
        spec = each["spec"]
        selector = spec.get("selector") or spec.get("podSelector")
        wanted = selector.get("matchLabels", selector)
        assert set(wanted) == {f"app.kubernetes.io/{name}" for name in ("name", "instance", "component")}, each["kind"]
        assert wanted.items() <= pods.items(), each["kind"]


@EACH_VARIANT
def test_every_namespaced_object_has_its_namespace_and_no_name_is_taken_twice(helm: Helm, values: Path) -> None:
    objects = helm.render("--values", str(values))
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))
    cluster_wide = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    assert {kind for kind, namespace, _ in names if namespace is None} <= cluster_wide
    assert not {kind for kind, namespace, _ in names if namespace is not None} & cluster_wide


def test_the_rules_of_a_cluster_wide_operator_are_those_of_the_table(helm: Helm) -> None:
    roles = operator_roles(helm.render())
    assert [grants_of(role) for role in roles if role["kind"] == "ClusterRole"] == [table(Scope.SERVED)]
    assert [grants_of(role) for role in roles if role["kind"] == "Role"] == [table(Scope.OPERATOR)]


def test_a_namespaced_operator_has_roles_where_it_serves_and_in_its_own_namespace_and_nothing_wider(helm: Helm) -> None:
    objects = helm.render("--values", NAMESPACED)
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    allowed = {(role["metadata"]["namespace"], frozenset(grants_of(role))) for role in operator_roles(objects)}
    served, own = frozenset(table(Scope.SERVED)), frozenset(table(Scope.OPERATOR))
    assert allowed == {("team-a", served), ("team-b", served), ("grfleet-system", served), ("grfleet-system", own)}


def test_the_own_namespace_among_the_served_ones_gets_its_role_once(helm: Helm) -> None:
    objects = helm.render("--set", "watchNamespaces={grfleet-system}")
    assert len(operator_roles(objects)) == 2


@EACH_VARIANT
def test_every_role_is_bound_to_the_operator_s_account_in_its_own_place(helm: Helm, values: Path) -> None:
    objects = helm.render("--values", str(values))
    account = the(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    bound = set()
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "grfleet-system"}]
        bound.add((binding["roleRef"]["kind"], binding["metadata"].get("namespace"), binding["roleRef"]["name"]))
    roles = {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in operator_roles(objects)}
    assert bound == roles


def test_people_s_roles_aggregate_and_nobody_but_administrators_deletes_what_the_operator_writes(helm: Helm) -> None:
    clusterwide = of_kind(helm.render(), "ClusterRole")
    roles = {each["metadata"]["name"].rsplit("-", 1)[-1]: each for each in clusterwide if each["metadata"]["name"] != CLAIM}
    targets = {
        name: {label.rsplit("-", 1)[-1] for label in roles[name]["metadata"]["labels"] if "aggregate-to" in label}
        for name in ("viewer", "editor", "admin")
    }
    assert targets == {"viewer": {"view", "edit", "admin"}, "editor": {"edit", "admin"}, "admin": {"admin"}}
    viewer, editor, admin = (grants_of(roles[name]) for name in ("viewer", "editor", "admin"))
    assert viewer < editor < admin
    assert {verb for _, _, verb in viewer} == {"get", "list", "watch"}
    assert ("grfleet.dev", "grservingpools", "create") in editor
    assert ("grfleet.dev", "grinstances", "delete") not in editor
    assert ("grfleet.dev", "grinstances", "delete") in admin
    assert not [grant for grant in admin if grant[1].endswith("/status") and grant[2] != "get"]


def test_the_kinds_are_copies_with_labels_and_the_keep_annotation(helm: Helm) -> None:
    objects = helm.render()
    for crd in of_kind(objects, "CustomResourceDefinition"):
        assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert crd["metadata"].pop("labels")
        plural = crd["spec"]["names"]["plural"]
        assert crd == yaml.load((ROOT / "crds" / "manifests" / f"{plural}.yaml").read_text(), Loader=yaml.CSafeLoader)
    assert len(of_kind(objects, "CustomResourceDefinition")) == 7
    dropped = of_kind(helm.render("--set", "crds.keep=false"), "CustomResourceDefinition")
    assert [crd["metadata"].get("annotations") for crd in dropped] == [None] * 7
    assert not of_kind(helm.render("--set", "crds.enabled=false"), "CustomResourceDefinition")


def test_the_default_policies_say_what_the_built_in_defaults_say(helm: Helm) -> None:
    objects = helm.render()
    for kind, spec in SPECS.items():
        policy = the(objects, kind)
        assert policy["metadata"]["name"] == "default"
        assert policy["spec"] == spec().to_wire()


def test_every_field_of_every_policy_can_be_set_by_values(helm: Helm) -> None:
    wanted = yaml.safe_load(Path(EVERYTHING).read_text())["policies"]
    objects = helm.render("--values", EVERYTHING)
    for kind, name in zip(POLICY_KINDS, ("hbm", "routing", "preInference"), strict=True):
        spec = the(objects, kind)["spec"]
        assert spec == wanted[name]
        assert SPECS[kind].model_validate(spec).to_wire() == spec
        assert not same_leaves(spec, SPECS[kind]().to_wire()), "the variant leaves these at their defaults"


def same_leaves(left: Any, right: Any, path: str = "") -> list[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        return [found for name in left.keys() & right.keys() for found in same_leaves(left[name], right[name], f"{path}.{name}")]
    return [path] if left == right else []


def test_the_policies_wait_until_the_kinds_are_served_or_are_left_to_others(helm: Helm) -> None:
    assert not of_kind(helm.render(kinds_served=False), *POLICY_KINDS)
    assert not of_kind(helm.render("--set", "policies.create=false"), *POLICY_KINDS)


def test_the_operator_is_told_what_the_values_say(helm: Helm) -> None:
    arguments = the(helm.render("--values", EVERYTHING), "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--lease-name=gr-lease", "--log-level=DEBUG", "--workers=16", "--metrics-port=9090", "--leader-elect=on"} <= {
        *arguments
    }
    assert not [each for each in arguments if each.startswith("--namespace=")]
    arguments = the(helm.render("--values", NAMESPACED), "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [each for each in arguments if each.startswith("--namespace=")] == ["--namespace=team-a", "--namespace=team-b"]


def test_a_digest_wins_over_the_tag_and_the_tag_over_the_version_of_the_chart(helm: Helm) -> None:
    def image(*flags: str) -> str:
        deployment = the(helm.render(*flags), "Deployment")
        return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])

    digest = "sha256:" + "0" * 64
    assert image() == "grfleet/operator:0.2.0"
    assert image("--set", "image.tag=1.2") == "grfleet/operator:1.2"
    assert image("--set", "image.tag=1.2", "--set", f"image.digest={digest}") == f"grfleet/operator@{digest}"


def test_what_operators_of_clusters_set_arrives_in_the_pod(helm: Helm) -> None:
    values = yaml.safe_load(Path(EVERYTHING).read_text())
    deployment = the(helm.render("--values", EVERYTHING), "Deployment")
    template = deployment["spec"]["template"]
    for name in (
        "nodeSelector",
        "tolerations",
        "affinity",
        "topologySpreadConstraints",
        "priorityClassName",
        "terminationGracePeriodSeconds",
        "imagePullSecrets",
    ):
        assert template["spec"][name] == values[name], name
    assert template["spec"]["containers"][0]["resources"] == values["resources"]
    assert deployment["spec"]["replicas"] == 3
    assert values["podLabels"].items() <= template["metadata"]["labels"].items()
    assert template["metadata"]["annotations"] == {**values["podAnnotations"], **values["commonAnnotations"]}
    assert values["commonLabels"].items() <= deployment["metadata"]["labels"].items()


def test_probes_ask_what_the_operator_answers(helm: Helm) -> None:
    container = the(helm.render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert {container[f"{name}Probe"]["httpGet"]["port"] for name in paths} == {"metrics"}


def test_one_pod_has_no_disruption_budget(helm: Helm) -> None:
    assert of_kind(helm.render(), "PodDisruptionBudget")
    assert not of_kind(helm.render("--set", "replicas=1"), "PodDisruptionBudget")


def test_pods_overlap_in_an_update_only_when_a_lease_keeps_them_apart(helm: Helm) -> None:
    assert the(helm.render(), "Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"
    alone = helm.render("--set", "leaderElection.enabled=false,replicas=1")
    assert the(alone, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def test_optional_objects_are_there_only_when_asked_for(helm: Helm) -> None:
    optional = (*MONITORING_KINDS, "NetworkPolicy")
    assert not of_kind(helm.render(), *optional)
    objects = helm.render("--values", EVERYTHING)
    assert sorted(each["kind"] for each in of_kind(objects, *optional)) == sorted(optional)
    policy = the(objects, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for rule in policy["egress"] for port in rule.get("ports", ())} == {53, 6443, 9001, 9002, 9443}
    assert [each["kind"] for each in helm.render("--values", MINIMAL)] == ["Deployment"]


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://prometheus.monitoring.svc:9090", 9090),
        ("http://prometheus.monitoring", 80),
        ("https://thanos.example.com/team/a", 443),
        ("http://[fd00::1]:9091/", 9091),
        ("", None),
    ],
)
def test_the_operator_may_reach_the_prometheus_that_it_is_told_to_ask(helm: Helm, url: str, port: int | None) -> None:
    peers = "networkPolicy.prometheusTo[0].podSelector.matchLabels.app=prometheus"
    objects = helm.render("--set", f"networkPolicy.enabled=true,prometheus.url={url},{peers}")
    assert variables(objects).get("GRFLEET_PROMETHEUS_URL", "") == url
    rules = [rule for rule in the(objects, "NetworkPolicy")["spec"]["egress"] if "to" in rule]
    to = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    assert rules == ([] if port is None else [{"ports": [{"port": port, "protocol": "TCP"}], "to": to}])


def test_the_operator_knows_the_image_of_the_agent_or_that_there_is_none(helm: Helm) -> None:
    digest = "sha256:" + "0" * 64
    assert variables(helm.render()) == {AGENT_IMAGE: "grfleet/agent:0.2.0", "GRFLEET_AGENT_PULL_POLICY": "IfNotPresent"}
    assert variables(helm.render("--set", "agent.image.tag=1.2"))[AGENT_IMAGE] == "grfleet/agent:1.2"
    said = variables(helm.render("--set", f"agent.image.digest={digest},agent.image.pullPolicy=Never"))
    assert said == {AGENT_IMAGE: f"grfleet/agent@{digest}", "GRFLEET_AGENT_PULL_POLICY": "Never"}
    assert variables(helm.render("--set", "agent.image.repository=")) == {}


def test_what_the_chart_says_by_variable_the_operator_understands(helm: Helm) -> None:
    said = variables(helm.render("--values", EVERYTHING))
    settings = parse_settings([], said)
    assert settings.agent_image == said[AGENT_IMAGE] != ""
    assert settings.agent_pull_policy == "Never"
    assert settings.prometheus_url == "https://prometheus.example.com:9443/select/0"


def test_the_pod_monitor_gives_series_the_labels_that_the_operator_asks_for(helm: Helm) -> None:
    labels = Labels()
    spec = the(helm.render("--set", "podMonitor.enabled=true"), "PodMonitor")["spec"]
    made = {"namespace", "pod", *(re.sub(r"[^a-zA-Z0-9_]", "_", name) for name in spec["podTargetLabels"])}
    assert {labels.namespace, labels.pool, labels.instance} <= made
    assert [each["port"] for each in spec["podMetricsEndpoints"]] == [SERVING_PORT, AGENT_PORT]
    assert spec["podTargetLabels"] == [POOL_LABEL, MODEL_VERSION_LABEL]
    assert not any(each["honorLabels"] for each in spec["podMetricsEndpoints"]), "an engine must not name itself"
    assert spec["selector"] == {"matchExpressions": [{"key": POOL_LABEL, "operator": "Exists"}]}
    assert spec["namespaceSelector"] == {"any": True}
    narrow = the(helm.render("--set", "podMonitor.enabled=true,watchNamespaces={team-a}"), "PodMonitor")["spec"]
    assert narrow["namespaceSelector"] == {"matchNames": ["grfleet-system", "team-a"]}, "its own is served too"


def test_a_release_says_once_for_each_place_that_it_serves_there(helm: Helm) -> None:
    def places(*flags: str) -> set[tuple[str, str | None]]:
        claims = [role for role in of_kind(helm.render(*flags), *ROLES) if role["metadata"]["name"] == CLAIM]
        assert all(role["rules"] == [] for role in claims)
        return {(role["kind"], role["metadata"].get("namespace")) for role in claims}

    assert places() == {("ClusterRole", None)}
    assert places("--values", NAMESPACED) == {("Role", each) for each in ("team-a", "team-b", "grfleet-system")}
    assert places("--values", MINIMAL) == set()


def test_without_a_cluster_helm_takes_a_kubernetes_that_the_chart_accepts_and_no_older_one(helm: Helm) -> None:
    assert helm.run("template", "grfleet", str(CHART)).returncode == 0
    assert helm.run("lint", "--strict", str(CHART)).returncode == 0
    older = helm.run("template", "grfleet", str(CHART), "--kube-version", "1.29.9")
    assert "requires kubeVersion" in older.stderr


def test_the_kubernetes_stamped_into_helm_is_that_of_its_client() -> None:
    client = re.search(r"k8s.io/client-go v0\.(\d+)\.", (HELM.directory / "go.mod").read_text())
    assert client is not None
    stamped = {flag.rpartition("=")[2] for flag in HELM.linker_flags if "k8sVersionMinor" in flag}
    assert stamped == {client[1]}


def test_versions_of_chart_and_package_agree() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == package
