"""Write layers and docker archives (the format of ``docker save``, which containerd and kind load) with tarfile alone.

A layer is the same bytes whenever its files are the same: names are sorted, owners are root, times are zero. So its
digest names its content, and what has once been unpacked is not unpacked again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Layer:
    """An uncompressed tar of files, and the SHA-256 of it."""

    path: Path
    digest: str


@dataclass(frozen=True)
class Image:
    """Name, layers from the bottom up, and what runs by default."""

    reference: str
    layers: Sequence[Layer]
    entrypoint: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "65532:65532"
    working_directory: str = "/tmp"


def write_layer(source: Path, destination: Path, *, prefix: str = "") -> Layer:
    """Pack everything below `source`, at `prefix` of the image's root; modes stay, owners become root.

    A directory that a stranger of the container must enter has to be readable for all: directories and files get the
    owner's read and search bits for everybody, a sticky ``tmp`` stays what it is.
    """
    part = destination.with_name(f".{destination.name}.{os.getpid()}.part")
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
            for name in _parents(prefix):
                archive.addfile(_directory(name))
            for path in sorted(source.rglob("*")):
                _add(archive, path, str(Path(prefix) / path.relative_to(source)))
        digest = _digest(part)
        _digest_file(destination).write_text(digest)
        part.replace(destination)
    finally:
        part.unlink(missing_ok=True)
    return Layer(destination, digest)


def read_layer(path: Path) -> Layer:
    """A layer that `write_layer` wrote before."""
    return Layer(path, _digest_file(path).read_text())


def _digest_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def write_archive(destination: Path, images: Sequence[Image]) -> None:
    """Write images into one docker archive; layers that they share are in it once.

    Raises
    ------
    ValueError
        Two images have one reference, or one of them has no layer.
    """
    if len({image.reference for image in images}) != len(images) or not all(image.layers for image in images):
        raise ValueError("every image needs a reference of its own and at least one layer")
    part = destination.with_name(f".{destination.name}.{os.getpid()}.part")
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
            for layer in {layer.digest: layer for image in images for layer in image.layers}.values():
                _add(archive, layer.path, f"{layer.digest}.tar")
            manifest = []
            for image in images:
                config = json.dumps(_config(image), sort_keys=True).encode()
                name = f"{hashlib.sha256(config).hexdigest()}.json"
                _add_bytes(archive, name, config)
                files = [f"{layer.digest}.tar" for layer in image.layers]
                manifest.append({"Config": name, "RepoTags": [image.reference], "Layers": files})
            _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
        part.replace(destination)
    finally:
        part.unlink(missing_ok=True)


def _config(image: Image) -> dict[str, object]:
    return {
        "architecture": _MACHINES.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Entrypoint": list(image.entrypoint),
            "Env": [f"{key}={value}" for key, value in image.environment.items()],
            "User": image.user,
            "WorkingDir": image.working_directory,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in image.layers]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "grfleet testbed"} for _ in image.layers],
    }


def _parents(prefix: str) -> list[str]:
    parts = Path(prefix).parts
    return [str(Path(*parts[: end + 1])) for end in range(len(parts))]


def _directory(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    found = path.lstat()
    info = tarfile.TarInfo(name)
    mode = stat.S_IMODE(found.st_mode) | ((found.st_mode & 0o500) >> 3) | ((found.st_mode & 0o500) >> 6)
    info.mode = mode if mode & stat.S_ISVTX else mode & 0o755
    if stat.S_ISLNK(found.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        archive.addfile(info)
    elif stat.S_ISDIR(found.st_mode):
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    elif stat.S_ISREG(found.st_mode):
        info.size = found.st_size
        with path.open("rb") as stream:
            archive.addfile(info, stream)


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    archive.addfile(info, io.BytesIO(data))


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
