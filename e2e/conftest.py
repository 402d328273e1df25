"""Fixtures of the end-to-end tests: a cluster that runs pods, our images on it, and the chart installed on that.

``pytest e2e --cluster local`` brings its own node, ``kind`` makes a cluster in Docker, ``current`` takes the cluster that kubectl
speaks to. The tests ask for nothing but what :class:`testbed.node.provider.ClusterProvider` promises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from e2e_release import Images, Release, find_helm

from testbed.images import product
from testbed.inference_api import ApiError, ensure_manifest
from testbed.node import current_cluster, kind_cluster
from testbed.node.cluster import LocalCluster
from testbed.node.provider import ClusterProvider, NotOfferedError

pytest_plugins = ["testbed.pytest_plugin"]
PROVIDERS = ("local", "testbed", "kind", "current")
NAMED_IMAGES = ("operator", "agent", "engine")
_HERE = Path(__file__).resolve().parent
_NO_CLUSTER, _NOT_OFFERED, _EARLIER = (
    "no cluster for the end-to-end tests",
    "not possible on this cluster",
    "an earlier step failed",
)
_FAILED_STEP = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the pods run, and from which images."""
    group = parser.getgroup("grfleet end-to-end")
    group.addoption(
        "--cluster",
        choices=PROVIDERS,
        default="local",
        help="local (or testbed): a node on this machine, needs root; kind: a cluster in Docker; current: the one that kubectl "
        "speaks to, which must not have grfleet yet and is left as it was",
    )
    group.addoption("--kind-image", help="with --cluster kind: image of the node; default: the one of this kind")
    for name in NAMED_IMAGES:
        group.addoption(f"--image-{name}", help=f"with --cluster current: image of the {name}, which the cluster can pull")


def pytest_configure(config: pytest.Config) -> None:
    """Say at once what is missing, before a cluster has been started."""
    config.addinivalue_line("markers", "journey: steps of one journey in their order; after a failed one the rest are skipped")
    missing = [f"--image-{name}" for name in NAMED_IMAGES if not config.getoption(f"image_{name}")]
    if config.getoption("cluster") == "current" and missing:
        raise pytest.UsageError(f"--cluster current needs {', '.join(missing)} as well")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a node, wherever it comes from."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.node)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip the steps of a journey that has come to an end."""
    if item.get_closest_marker("journey") and item.parent and (step := item.parent.stash.get(_FAILED_STEP, "")):
        pytest.skip(f"{_EARLIER}: {step}")
    try:
        return (yield)
    except NotOfferedError as error:  # of a fixture
        pytest.skip(f"{_NOT_OFFERED}: {error}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Turn what this cluster cannot do into a skip that the summary counts."""
    try:
        return (yield)
    except NotOfferedError as error:
        pytest.skip(f"{_NOT_OFFERED}: {error}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember the step at which a journey failed."""
    report = yield
    if report.failed and item.get_closest_marker("journey") and item.parent:
        item.parent.stash[_FAILED_STEP] = item.name
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly how many tests this cluster could not run."""
    reasons = [str(getattr(report, "longrepr", "")) for report in terminalreporter.stats.get("skipped", ())]
    for reason in (_NO_CLUSTER, _NOT_OFFERED, _EARLIER):
        if count := sum(reason in text for text in reasons):
            terminalreporter.section("end-to-end", sep="!", red=True, bold=True)
            terminalreporter.line(f"{count} tests did NOT run: {reason}; the reasons stand in the short summary")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[ClusterProvider]:
    """The cluster that ``--cluster`` names."""
    name: str = request.config.getoption("cluster")
    if name in ("local", "testbed"):
        yield request.getfixturevalue("node_cluster")
        return
    outside: AbstractContextManager[ClusterProvider]
    if name == "kind":
        reason, outside = kind_cluster.why_not(), kind_cluster.KindCluster(node_image=request.config.getoption("kind_image"))
    else:
        reason, outside = current_cluster.why_not(), current_cluster.CurrentCluster()
    if reason is not None:
        pytest.skip(f"{_NO_CLUSTER}: {name}: {reason}")
    with outside as running:
        yield running


@pytest.fixture(scope="session")
def images(request: pytest.FixtureRequest, cluster: ClusterProvider, tmp_path_factory: pytest.TempPathFactory) -> Images:
    """The images of this checkout, loaded into the cluster; on a cluster that takes none, those that were named."""
    if request.config.getoption("cluster") == "current":
        named = {name: request.config.getoption(f"image_{name}") for name in NAMED_IMAGES}
        return Images(named, pull_policy="IfNotPresent")
    omit = cluster.base_layers if isinstance(cluster, LocalCluster) else ()
    built = product.build(tmp_path_factory.mktemp("images"), omit=omit)
    cluster.load_image(built.archive)
    built.archive.unlink()
    references = {**built.references, "engine": built["reference-engine"]}
    return Images(references, pull_policy="Never")


@pytest.fixture(scope="session")
def release(
    request: pytest.FixtureRequest, cluster: ClusterProvider, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """The chart, installed as documented in a namespace that refuses pods which are not restricted."""
    helm = find_helm()
    if helm is None:
        pytest.skip(f"{_NO_CLUSTER}: helm missing; run `grfleet testbed build`")
    installed = Release(cluster=cluster, images=images, helm=helm, home=tmp_path_factory.mktemp("helm"))
    if request.config.getoption("cluster") != "current":  # the others end with everything on them
        with contextlib.suppress(ApiError):  # the tests that need that kind say so
            cluster.kubectl("apply", "--server-side", "-f", str(ensure_manifest()))
        installed.install()
        yield installed
        return
    if found := installed.traces():
        pytest.fail(f"the current cluster has grfleet already, which these tests would change and remove: {', '.join(found)}")
    try:
        installed.install()
        yield installed
    finally:
        installed.remove()
