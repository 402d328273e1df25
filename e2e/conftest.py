"""Fixtures of the end-to-end tests: a cluster that runs pods, our images on it, and the chart installed on that.

``pytest e2e --cluster local`` brings its own node; the tests ask the cluster only for what
:class:`testbed.node.provider.ClusterProvider` promises.
"""

from __future__ import annotations

import pytest
from e2e_release import Release, install

from testbed.binaries import find_binaries
from testbed.images import product
from testbed.node.cluster import LocalCluster

pytest_plugins = ["testbed.pytest_plugin"]
PROVIDERS = ("local",)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the pods run."""
    parser.addoption(
        "--cluster", choices=PROVIDERS, default="local", help="provider of the cluster; local: a node on this machine"
    )


@pytest.fixture(scope="session")
def images(node_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> product.ProductImages:
    """The images of this checkout, loaded into the cluster."""
    built = product.build(tmp_path_factory.mktemp("images"), omit=node_cluster.base_layers)
    node_cluster.load_image(built.archive)
    built.archive.unlink()
    return built


@pytest.fixture(scope="session")
def release(node_cluster: LocalCluster, images: product.ProductImages, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The chart, installed as documented in a namespace that refuses pods which are not restricted."""
    helm = find_binaries(["helm"]).paths.get("helm")
    if helm is None:
        pytest.skip("no Kubernetes node: helm missing; run `grfleet testbed build`")
    return install(node_cluster, images, helm=helm, home=tmp_path_factory.mktemp("helm"))
