"""Configuration files and command lines of the node's programs: containerd, pod network, kubelet, kube-proxy, scheduler.

Only what differs from the defaults appears. Two things make up most of it: nothing may lie outside the node's own
directory, and a machine of any age must do (either version of control groups, no capability over scheduling scores).
"""

from __future__ import annotations

import json
from pathlib import Path

from testbed.credentials import NODE_NAME
from testbed.debian import Tree
from testbed.node.namespaces import Addresses

PAUSE_IMAGE = "grfleet.dev/testbed/pause:1"
SOCKET = "/run/containerd/containerd.sock"  # /run is the node's own
CLUSTER_DOMAIN = "cluster.local"


def containerd(directory: Path, tree: Tree, *, snapshotter: str) -> str:
    """config.toml of containerd."""
    return f"""\
version = 2
root = "{directory / "containerd"}"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper"]

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
# Without the capability to raise scores a container would not start, as the kubelet asks for -998.
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{tree.program("runc")}"
SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{tree.root / "usr/lib/cni"}"
conf_dir = "{directory / "cni"}"
"""


def pod_network(addresses: Addresses) -> str:
    """The pod network: each pod has a routed link of its own, so all its traffic passes the node's packet filter.

    A bridge would need the kernel's bridge filter for services between pods of one node; this needs no module.
    """
    ranges = [[{"subnet": addresses.pods}]]
    routes = [{"dst": "0.0.0.0/0"}]
    plugins = [
        {"type": "ptp", "ipMasq": False, "ipam": {"type": "host-local", "ranges": ranges, "routes": routes}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}, indent=2)


def kubelet(directory: Path, *, ca_file: Path, cgroup: str, addresses: Addresses) -> str:
    """KubeletConfiguration: callers prove themselves by certificate or token and are authorised by the API server."""
    resolver = directory / "resolv.conf"
    resolver.write_text("# the testbed gives pods no resolver but the cluster's own\n")
    never = {"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"}
    value: dict[str, object] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": str(ca_file)}},
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "enforceNodeAllocatable": ["pods"],
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "failSwapOn": False,
        "failCgroupV1": False,
        "oomScoreAdj": 0,
        "podLogsDir": str(directory / "pod-logs"),
        "volumePluginDir": str(directory / "kubelet-plugins"),
        "resolvConf": str(resolver),
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [addresses.node],
        # A machine that is low on disk is its owner's concern; images are never collected, as nobody could pull them again.
        "evictionHard": never,
        "imageGCHighThresholdPercent": 100,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        # Signs of life often enough that the controllers may call the node lost after 12 s.
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "10s",
        "nodeLeaseDurationSeconds": 8,
        "maxPods": 200,
        "shutdownGracePeriod": "0s",
    }
    return json.dumps(value, indent=2)


def kubelet_command(program: Path, directory: Path, addresses: Addresses) -> list[str | Path]:
    """Command line of the kubelet."""
    return [
        program,
        f"--config={directory / 'kubelet.json'}",
        f"--kubeconfig={directory / 'kubelet.kubeconfig'}",
        f"--root-dir={directory / 'kubelet'}",
        f"--cert-dir={directory / 'kubelet-pki'}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={addresses.node}",
    ]


def corefile(directory: Path, addresses: Addresses) -> str:
    """Corefile of the cluster's names; every other name is answered at once, for there is nobody to ask.

    The answer stands in a block of its own, since within one block it would come before the cluster's names.
    """
    return f"""\
{CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
    bind {addresses.node}
    errors
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {directory / "coredns.kubeconfig"}
        ttl 5
    }}
}}
.:53 {{
    bind {addresses.node}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def coredns_command(program: Path, directory: Path, addresses: Addresses) -> list[str | Path]:
    """Command line of CoreDNS, which is a process of the node and not a pod."""
    return [program, "-conf", directory / "Corefile"]


def kube_proxy_command(program: Path, directory: Path, addresses: Addresses) -> list[str | Path]:
    """Command line of kube-proxy."""
    return [
        program,
        f"--kubeconfig={directory / 'kube-proxy.kubeconfig'}",
        f"--hostname-override={NODE_NAME}",
        "--proxy-mode=iptables",
        "--detect-local-mode=ClusterCIDR",
        f"--cluster-cidr={addresses.pods}",
        "--oom-score-adj=0",
        # A network namespace may not change these limits of the kernel.
        *("--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"),
    ]


def scheduler_command(program: Path, directory: Path) -> list[str | Path]:
    """Command line of the scheduler, which runs beside the control plane."""
    return [program, f"--kubeconfig={directory / 'kube-scheduler.kubeconfig'}", "--leader-elect=false", "--secure-port=0"]


def controller_manager_flags() -> list[str]:
    """Flags with which the controllers notice a lost node within seconds."""
    return ["--node-monitor-period=1s", "--node-monitor-grace-period=12s"]
