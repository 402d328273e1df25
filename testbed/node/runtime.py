"""containerd inside the node, its images, and the template of its data that saves each run the unpacking.

Unpacking the interpreter and the packages takes seconds, so it happens once: the data of a containerd that has just
imported them, before any pod, is kept in the cache, and each node begins with a copy. Files are linked where the
file system allows, since containerd never changes one that it has written; its databases are copied.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed import processes
from testbed.binaries import cache_directory
from testbed.debian import Tree
from testbed.images.archive import Image, write_archive
from testbed.images.layers import file_layer
from testbed.images.product import base_layers
from testbed.node import configuration
from testbed.node.namespaces import Namespaces, NodeError, child_ids

Progress = Callable[[str], None]
_FORMAT = "2"  # part of the template's key: a change of how images are written makes a new one
_KEPT_SECONDS = 86_400  # a template that is not the newest goes after a day
BASE_IMAGE = "grfleet.dev/testbed/python:1"


class Runtime:
    """containerd of one node.

    Parameters
    ----------
    directory
        The node's directory; containerd's data lies below it.
    """

    def __init__(
        self, directory: Path, tree: Tree, namespaces: Namespaces, *, timeout_seconds: float, progress: Progress
    ) -> None:
        self._directory = directory
        self._tree = tree
        self._namespaces = namespaces
        self._timeout = timeout_seconds
        self._progress = progress
        self._child: subprocess.Popen[bytes] | None = None
        self._data = directory / "containerd"
        self.base_layers: frozenset[str] = frozenset()  # digests of what every node has before the first image is loaded

    def prepare(self) -> None:
        """Lay out configuration and data; makes the template when the cache has none."""
        snapshotter = "native" if _file_system(self._directory) == "overlay" else "overlayfs"
        (self._directory / "containerd.toml").write_text(
            configuration.containerd(self._directory, self._tree, snapshotter=snapshotter)
        )
        pause = Image(
            configuration.PAUSE_IMAGE,
            [file_layer("pause", {"/pause": self._tree.program("catatonit")})],
            entrypoint=["/pause", "-P"],
            working_directory="/",
        )
        base = Image(BASE_IMAGE, base_layers())
        self.base_layers = frozenset(layer.digest for layer in base.layers)
        digests = [layer.digest for image in (pause, base) for layer in image.layers]
        key = hashlib.sha256("\n".join([_FORMAT, snapshotter, self._tree.root.name, *digests]).encode()).hexdigest()[:12]
        template = cache_directory().parent / "node" / f"containerd-{key}"
        if template.is_dir():
            copy_data(template, self._data)
            return
        self._progress("unpack the base images once, for this and every later node")
        self._make_template(template, [pause, base])

    def _make_template(self, template: Path, images: Sequence[Image]) -> None:
        self.start()
        archive = self._directory / "base.tar"
        write_archive(archive, images)
        self.load(archive)
        archive.unlink()
        self.stop()
        template.parent.mkdir(parents=True, exist_ok=True)
        remove_old(template.parent, older_than_seconds=_KEPT_SECONDS)
        with tempfile.TemporaryDirectory(dir=template.parent, prefix=".part-") as part:
            copy_data(self._data, Path(part, "data"))
            if not template.is_dir():  # made by another node meanwhile
                Path(part, "data").replace(template)
                os.utime(template)

    def start(self) -> None:
        """Start containerd and wait until it answers.

        Raises
        ------
        NodeError
            It ended or did not answer in time.
        """
        log = self._directory / "logs" / "containerd.log"
        command: list[str | Path] = [self._tree.program("containerd"), "--config", self._directory / "containerd.toml"]
        self._child = self._namespaces.start_program("containerd", command, log=log)
        deadline = time.monotonic() + self._timeout
        while self._ctr("version", check=False).returncode != 0:
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise NodeError(f"containerd does not answer; the end of its log:\n{log.read_text(errors='replace')[-1500:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop containerd in order; containers run on."""
        self._end(grace_seconds=10)

    def kill(self) -> None:
        """Kill containerd as a crash would; containers run on."""
        self._end(grace_seconds=0)

    def _end(self, *, grace_seconds: float) -> None:
        if self._child is not None:
            end_inside(self._child, grace_seconds=grace_seconds)
            self._child = None

    def load(self, archive: Path) -> None:
        """Import every image of a docker archive.

        Raises
        ------
        NodeError
            containerd refused it.
        """
        with archive.open("rb") as stream:  # through a pipe of its own, for the node may not see the archive's folder
            self._namespaces.run(*self._ctr_command("images", "import", "-"), stdin=stream, timeout_seconds=300)

    def process_of(self, container_id: str) -> int:
        """First process of a running container, as the node numbers it.

        Raises
        ------
        NodeError
            No such container runs.
        """
        for line in self._ctr("tasks", "list").stdout.splitlines():
            words = line.split()
            if words[:1] == [container_id] and words[-1] == "RUNNING":
                return int(words[1])
        raise NodeError(f"container {container_id} does not run")

    def _ctr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self._namespaces.run(*self._ctr_command(*arguments), check=check)

    def _ctr_command(self, *arguments: str) -> list[str | Path]:
        return [self._tree.program("ctr"), "--address", configuration.SOCKET, "--namespace", "k8s.io", *arguments]


def end_inside(door: subprocess.Popen[bytes], *, grace_seconds: float) -> None:
    """End the program behind a door-keeper of `Namespaces.start_program`."""
    for pid in child_ids(door.pid):
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            processes.stop(processes.identify("program", pid), grace_seconds=grace_seconds)
    door.wait()


def remove_old(folder: Path, *, older_than_seconds: float) -> None:
    """Remove what has lain in a folder for that long: templates of other versions, and what a killed maker has left."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - older_than_seconds:
                shutil.rmtree(path, ignore_errors=True)


def copy_data(source: Path, destination: Path) -> None:
    """Copy containerd's data: links for what never changes, copies of the databases."""
    linked = subprocess.run(["cp", "--archive", "--link", source, destination], capture_output=True, check=False)
    if linked.returncode != 0:  # another file system
        shutil.rmtree(destination, ignore_errors=True)
        subprocess.run(["cp", "--archive", "--reflink=auto", source, destination], capture_output=True, check=True)
        return
    for path in destination.rglob("*.db"):
        if "snapshots" not in path.relative_to(destination).parts:
            part = path.with_suffix(".part")
            shutil.copy2(path, part)
            part.replace(path)


def _file_system(path: Path) -> str:
    """Type of the file system a folder is on."""
    best, kind = "", ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, found, *_ = line.split()
        if len(place) >= len(best) and path.resolve().is_relative_to(place):
            best, kind = place, found
    return kind
