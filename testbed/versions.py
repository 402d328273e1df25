"""The versions of every program the testbed runs, in one place.

Each program belongs to a *module*: a folder of `testbed/modules/` whose go.mod pins the sources it is built from.
The module and its version also name the folder of the cache that holds the finished programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODULES_DIRECTORY = Path(__file__).resolve().parent / "modules"
MINIMUM_GO = (1, 24)


@dataclass(frozen=True)
class Module:
    """One go.mod: its folder name, the version it pins, and the linker settings that stamp that version."""

    name: str
    version: str
    linker_flags: tuple[str, ...] = ()
    build: int = 1  # raised when the same version is built another way, so that an older program in the cache is not taken

    @property
    def cache_name(self) -> str:
        """Folder of the cache that holds this module's programs, such as ``etcd-v3.6.6``."""
        return f"{self.name}-v{self.version}" + (f"-{self.build}" if self.build > 1 else "")

    @property
    def directory(self) -> Path:
        """Folder with the go.mod and go.sum."""
        return MODULES_DIRECTORY / self.name


@dataclass(frozen=True)
class Program:
    """One executable and the Go package it is built from."""

    name: str
    module: Module
    package: str


def _kubernetes(version: str) -> Module:
    """Kubernetes says v0.0.0, and clients complain, unless its version is stamped at link time."""
    major, minor, _ = version.split(".")
    stamps = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "archive",
        "gitCommit": "unknown",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    flags = (f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamps.items())
    return Module("kubernetes", version, tuple(flags))


def _helm(version: str, *, client_go: str) -> Module:
    """Without a cluster Helm takes Kubernetes to be 1.20, and refuses a chart that needs more, unless its client's is stamped."""
    major, minor = client_go.split(".")
    packages = ("helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules")
    stamps = [f"-X {name}.k8sVersion{part}={value}" for name in packages for part, value in (("Major", major), ("Minor", minor))]
    return Module("helm", version, (f"-X helm.sh/helm/v3/internal/version.version=v{version}", *stamps), build=2)


KUBERNETES = _kubernetes("1.34.4")
ETCD = Module("etcd", "3.6.6")
COREDNS = Module("coredns", "1.12.4")
KWOK = Module("kwok", "0.7.0")
HELM = _helm("3.19.2", client_go="1.34")

PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        Program("etcd", ETCD, "go.etcd.io/etcd/server/v3"),
        Program("kube-apiserver", KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver"),
        Program("kube-controller-manager", KUBERNETES, "k8s.io/kubernetes/cmd/kube-controller-manager"),
        Program("kubectl", KUBERNETES, "k8s.io/kubernetes/cmd/kubectl"),
        Program("helm", HELM, "helm.sh/helm/v3/cmd/helm"),
        Program("kube-scheduler", KUBERNETES, "k8s.io/kubernetes/cmd/kube-scheduler"),
        Program("kubelet", KUBERNETES, "k8s.io/kubernetes/cmd/kubelet"),
        Program("kube-proxy", KUBERNETES, "k8s.io/kubernetes/cmd/kube-proxy"),
        Program("coredns", COREDNS, "."),
        Program("kwok", KWOK, "sigs.k8s.io/kwok/cmd/kwok"),
    )
}
CONTROL_PLANE_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
# Only a real node needs these, and a real node needs root, so they are made on demand and never by default.
NODE_PROGRAMS = ("kube-scheduler", "kubelet", "kube-proxy", "coredns")
# Only a scale test needs these.
FAKE_NODE_PROGRAMS = ("kube-scheduler", "kwok")
DEFAULT_PROGRAMS = tuple(name for name in PROGRAMS if name not in (*NODE_PROGRAMS, *FAKE_NODE_PROGRAMS))
