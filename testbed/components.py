"""The command lines of the control plane's components.

Only flags that differ from the defaults appear, each for a reason that stands beside it when it is not plain.
"""

from __future__ import annotations

from pathlib import Path

from testbed.credentials import SERVICE_CIDR, Credentials
from testbed.ports import LOOPBACK


def _command_line(flags: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def etcd(directory: Path, keys: Credentials, *, port: int, peer_port: int) -> list[str]:
    """Flags of a single-member etcd that answers only to holders of our client certificate."""
    url, peer = f"https://{LOOPBACK}:{port}", f"https://{LOOPBACK}:{peer_port}"
    certificate, key, authority = keys.file("etcd.crt"), keys.file("etcd.key"), keys.file("ca.crt")
    return _command_line(
        {
            "data-dir": directory / "etcd",
            "listen-client-urls": url,
            "advertise-client-urls": url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "cert-file": certificate,
            "key-file": key,
            "client-cert-auth": "true",
            "trusted-ca-file": authority,
            "peer-cert-file": certificate,
            "peer-key-file": key,
            "peer-client-cert-auth": "true",
            "peer-trusted-ca-file": authority,
            "socket-reuse-port": "true",
            "unsafe-no-fsync": "true",  # a power cut may lose data that nobody needs
            "log-level": "warn",
        }
    )


def api_server(directory: Path, keys: Credentials, *, port: int, etcd_port: int) -> list[str]:
    """Flags of the API server."""
    return _command_line(
        {
            "etcd-servers": f"https://{LOOPBACK}:{etcd_port}",
            "etcd-cafile": keys.file("ca.crt"),
            "etcd-certfile": keys.file("etcd.crt"),
            "etcd-keyfile": keys.file("etcd.key"),
            "bind-address": LOOPBACK,
            "secure-port": port,
            "permit-port-sharing": "true",
            # Endpoints may not name a loopback address, so nobody publishes one for the Service `kubernetes`.
            "advertise-address": LOOPBACK,
            "endpoint-reconciler-type": "none",
            "cert-dir": directory / "pki",
            "tls-cert-file": keys.file("apiserver.crt"),
            "tls-private-key-file": keys.file("apiserver.key"),
            "token-auth-file": keys.file("tokens.csv"),
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": keys.file("service-accounts.pub"),
            "service-account-signing-key-file": keys.file("service-accounts.key"),
            "service-cluster-ip-range": SERVICE_CIDR,
            "allow-privileged": "true",
            "kubelet-preferred-address-types": "InternalIP",
            # What the server shows to a kubelet, where there is one.
            "kubelet-client-certificate": keys.file("apiserver.crt"),
            "kubelet-client-key": keys.file("apiserver.key"),
            "profiling": "false",
        }
    )


def controller_manager(directory: Path, keys: Credentials) -> list[str]:
    """Flags of the controllers: garbage collection, namespaces, ServiceAccounts, workloads, autoscaling."""
    return _command_line(
        {
            "kubeconfig": directory / "controller-manager.kubeconfig",
            "service-account-private-key-file": keys.file("service-accounts.key"),
            "root-ca-file": keys.file("ca.crt"),
            "use-service-account-credentials": "true",
            "leader-elect": "false",
            # The default of 20 requests/s makes the first ServiceAccounts appear seconds later.
            "kube-api-qps": 300,
            "kube-api-burst": 600,
            "secure-port": 0,  # serves nothing, so needs no port
            "profiling": "false",
        }
    )
