"""One real Kubernetes node on this machine: kubelet, containerd, pod network and kube-proxy, without Docker.

It runs in process, mount and network namespaces of its own, so killing one process (the namespaces' first) undoes all of
it. :class:`testbed.node.cluster.LocalCluster` is the entry; it needs root.
"""
