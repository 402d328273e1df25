"""Write layers and image archives with tarfile alone, in both forms at once, as ``docker save`` does: OCI and manifest.json.

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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
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
    stop_signal: str = ""


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


def write_archive(destination: Path, images: Sequence[Image], *, omit: Collection[str] = ()) -> None:
    """Write images into one archive; layers that they share are in it once.

    Parameters
    ----------
    omit
        Digests of layers that every reader of the archive has already; they are named but not in it.

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
                if layer.digest not in omit:
                    _add(archive, layer.path, _blob_name(layer.digest))
            described = [_add_image(archive, image) for image in images]
            _add_json(archive, "oci-layout", {"imageLayoutVersion": "1.0.0"})
            _add_json(archive, "index.json", {"schemaVersion": 2, "manifests": [manifest for manifest, _ in described]})
            _add_json(archive, "manifest.json", [entry for _, entry in described])
        part.replace(destination)
    finally:
        part.unlink(missing_ok=True)


def _add_image(archive: tarfile.TarFile, image: Image) -> tuple[dict[str, object], dict[str, object]]:
    """Add configuration and manifest of an image; returns its entries in the two indexes."""
    config = _add_blob(archive, _config(image), "application/vnd.oci.image.config.v1+json")
    layers = [
        {"mediaType": _LAYER, "digest": f"sha256:{layer.digest}", "size": layer.path.stat().st_size} for layer in image.layers
    ]
    body = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": layers}
    names = {"io.containerd.image.name": image.reference, "org.opencontainers.image.ref.name": image.reference.rpartition(":")[2]}
    manifest = {**_add_blob(archive, body, _MANIFEST), "annotations": names}
    entry: dict[str, object] = {
        "Config": _blob_name(str(config["digest"]).removeprefix("sha256:")),
        "RepoTags": [image.reference],
        "Layers": [_blob_name(layer.digest) for layer in image.layers],
    }
    return manifest, entry


def _blob_name(digest: str) -> str:
    return f"blobs/sha256/{digest}"


def _add_blob(archive: tarfile.TarFile, value: object, media_type: str) -> dict[str, object]:
    data = json.dumps(value, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    _add_bytes(archive, _blob_name(digest), data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _add_json(archive: tarfile.TarFile, name: str, value: object) -> None:
    _add_bytes(archive, name, json.dumps(value).encode())


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
            **({"StopSignal": image.stop_signal} if image.stop_signal else {}),
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
