"""The commands ``up``, ``down``, ``status``, ``build``, ``images`` and ``load``; mounted as ``grfleet testbed``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from testbed import processes, state
from testbed.binaries import BinariesMissingError, ensure_binaries
from testbed.control_plane import ControlPlane, ControlPlaneError
from testbed.debian import DebianError, ensure_debian_tree
from testbed.images import product
from testbed.kwok import FakeCluster
from testbed.node import loading
from testbed.node.cluster import PACKAGES, LocalCluster, why_never
from testbed.node.namespaces import NodeError
from testbed.versions import DEFAULT_PROGRAMS, FAKE_NODE_PROGRAMS, NODE_PROGRAMS

app = typer.Typer(no_args_is_help=True, add_completion=False, help="A real Kubernetes control plane on this machine.")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # standard output is for what a shell may evaluate


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End in order on SIGTERM exactly as on Ctrl-C, also where a script's background job has SIGINT ignored."""
    raise KeyboardInterrupt


@app.command()
def up(
    directory: Annotated[
        Path | None, typer.Option(help="Keep data here and continue with it next time; default: a temporary one.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "--keep", help="Return at once and leave it running until `down`.")] = False,
    node: Annotated[bool, typer.Option("--node", help="With one real node that runs pods (needs root).")] = False,
    kwok: Annotated[int, typer.Option("--kwok", min=0, max=5000, help="With so many fake nodes that run nothing.")] = 0,
) -> None:
    """Start a control plane, print its KUBECONFIG line, and stop it on Ctrl-C."""
    if node and kwok:
        raise typer.BadParameter("a cluster has one real node or fake ones", param_hint="--kwok")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    place = directory.resolve() if directory else None
    cluster = LocalCluster(place, progress=_say) if node else FakeCluster(kwok, place, progress=_say) if kwok else None
    plane = ControlPlane(place, progress=_say) if cluster is None else cluster.plane
    started = False
    try:
        plane.start() if cluster is None else cluster.create()
        started = True
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        if shutil.which("kubectl") is None:
            _say(f"kubectl is {plane.binaries['kubectl']}")
        if detach:
            plane.detach()
            return
        _say(f"Kubernetes API at {plane.url}; Ctrl-C stops it")
        while state.load(plane.name) is not None:  # `down` elsewhere ends it too
            time.sleep(1.0)
    except (BinariesMissingError, ControlPlaneError, NodeError, OSError) as error:
        _say(str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        if not started:
            raise
    finally:
        plane.stop()


@app.command()
def down(
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only the one with this kubeconfig, as `up` printed it; default: all.")
    ] = None,
) -> None:
    """Stop what this user's testbed has started, detached or not, also for tests and demonstrations that go on."""
    found = state.records()
    if kubeconfig is not None:
        found = [record for record in found if record.kubeconfig == str(kubeconfig.absolute())]
        if not found:
            _say(f"no control plane has the kubeconfig {kubeconfig}; `status` lists those that run")
            raise typer.Exit(1)
    for record in found:
        with state.locked():
            state.remove(record)
        print(f"stopped {record.url or record.name}")
    if not found:
        print("nothing is running")


@app.command()
def status() -> None:
    """List this user's control planes: address, process ids, age, kubeconfig."""
    found = state.records()
    for record in found:
        kept = "detached" if record.owner is None else "orphaned" if record.orphaned else f"owner {record.owner.pid}"
        print(f"{record.url or '(starting)'}  {kept}  KUBECONFIG={record.kubeconfig}")
        for process in record.processes:
            alive = processes.is_alive(process)
            age = f"{processes.age_seconds(process):.0f} s" if alive else "ended"
            print(f"  {process.name:<24} pid {process.pid:<8} {age}")
    if not found:
        print("nothing is running")


@app.command()
def build(
    node: Annotated[
        bool, typer.Option("--node", help="Also what a real node needs: kubelet, containerd and companions.")
    ] = False,
    node_if_possible: Annotated[
        bool, typer.Option("--node-if-possible", help="The same, but only where this machine gives this user a node.")
    ] = False,
    kwok: Annotated[bool, typer.Option("--kwok", help="Also what fake nodes need: kwok and the scheduler.")] = False,
) -> None:
    """Find, download or build every program, and print where each is and where it came from."""
    if node_if_possible and not node:
        reason = why_never()
        node = reason is None
        if reason is not None:
            _say(f"the programs of a real node are left out, for this machine cannot run one: {reason}")
    try:
        names = (*DEFAULT_PROGRAMS, *(NODE_PROGRAMS if node else ()), *(FAKE_NODE_PROGRAMS if kwok else ()))
        tree = ensure_debian_tree(PACKAGES, progress=_say) if node else None  # first, as it takes seconds and can fail
        found = ensure_binaries(tuple(dict.fromkeys(names)), progress=_say)
    except (BinariesMissingError, DebianError, OSError) as error:
        _say(str(error))
        raise typer.Exit(1) from error
    for name, path in found.paths.items():
        print(f"{name:<24} {found.origins[name]:<24} {path}")
    if tree is not None:
        print(f"{'containerd':<24} {'packages':<24} {tree.root}")


@app.command()
def images(
    archive: Annotated[Path, typer.Argument(help="File to write, about 430 MB.")],
    tag: Annotated[str | None, typer.Option(help="Tag of the images; default: the version of this checkout.")] = None,
) -> None:
    """Write operator, agent, picker and reference engine as one archive of images, without Docker, and print their names."""
    try:
        archive.resolve().parent.mkdir(parents=True, exist_ok=True)
        built = product.build_release(archive, tag=tag)
    except (OSError, subprocess.SubprocessError) as error:
        _say(f"cannot write the images: {error}")
        raise typer.Exit(1) from error
    for reference in built.references.values():
        print(reference)


@app.command()
def load(archive: Annotated[Path, typer.Argument(help="Docker or OCI archive, as `images` or `docker save` writes it.")]) -> None:
    """Load images into the node of `up --node` that KUBECONFIG names, or the only one, and print their names."""
    try:
        _, init = loading.choose_node(state.records(), kubeconfig=os.environ.get("KUBECONFIG", ""))
        names = loading.load(archive, init=init, tree=ensure_debian_tree(PACKAGES, progress=_say))
    except (NodeError, DebianError) as error:
        _say(str(error))
        raise typer.Exit(1) from error
    for name in names:
        print(name)
