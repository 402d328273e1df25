"""Fetch a program from its project's official release, verified by the checksum published beside it.

A download only pays where the network answers at once, so every wait is short and a host that did not answer is not
asked again. Nothing unverified is ever left behind; every failure is a `ReleaseError` and the caller goes on.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from testbed.versions import COREDNS, ETCD, HELM, KUBERNETES, KWOK, Program

_CONNECT_SECONDS, _READ_SECONDS, _TOTAL_SECONDS = 3.0, 8.0, 180.0
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class ReleaseError(RuntimeError):
    """The release cannot be had or does not match its checksum."""


@dataclass(frozen=True)
class Artifact:
    """One file of a release: its address, the file with its SHA-256, and the program's place if it is an archive."""

    url: str
    checksum_url: str
    member: str | None = None

    @property
    def file_name(self) -> str:
        """Name that the checksum file uses."""
        return self.url.rsplit("/", 1)[1]


def artifact(program: Program, machine: str) -> Artifact:
    """Where the official release of a program is, for a machine as `platform.machine` names it.

    Raises
    ------
    ReleaseError
        There is no release for that machine, or none with a checksum.
    """
    if program.module is KWOK:
        raise ReleaseError(f"{program.name}: no checksum is published beside its release")
    arch = _MACHINES.get(machine)
    if arch is None:
        raise ReleaseError(f"no release for {machine}")
    version = program.module.version
    if program.module is KUBERNETES:
        url = f"https://dl.k8s.io/v{version}/bin/linux/{arch}/{program.name}"
        return Artifact(url, f"{url}.sha256")
    if program.module is ETCD:
        stem = f"etcd-v{version}-linux-{arch}"
        base = f"https://github.com/etcd-io/etcd/releases/download/v{version}"
        return Artifact(f"{base}/{stem}.tar.gz", f"{base}/SHA256SUMS", f"{stem}/{program.name}")
    if program.module is COREDNS:
        url = f"https://github.com/coredns/coredns/releases/download/v{version}/coredns_{version}_linux_{arch}.tgz"
        return Artifact(url, f"{url}.sha256", program.name)
    assert program.module is HELM
    url = f"https://get.helm.sh/helm-v{version}-linux-{arch}.tar.gz"
    return Artifact(url, f"{url}.sha256sum", f"linux-{arch}/{program.name}")


def parse_checksum(text: str, file_name: str) -> str:
    """The SHA-256 of a file in either published form: the bare sum, or lines of ``sum  name``.

    Raises
    ------
    ReleaseError
        It holds no sum for that file.
    """
    for line in text.splitlines():
        words = line.split()
        if words and len(words[0]) == 64 and (len(words) == 1 or words[-1].lstrip("*").rsplit("/", 1)[-1] == file_name):
            return words[0].lower()
    raise ReleaseError(f"no checksum for {file_name}")


class Downloader:
    """Fetches programs; remembers hosts that did not answer.

    Parameters
    ----------
    transport
        Replaces the network in tests.
    clock
        Monotonic seconds, for the limit on a whole download.
    """

    def __init__(self, transport: httpx.BaseTransport | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport = transport
        self._clock = clock
        self._silent: set[str] = set()

    @functools.cached_property
    def _client(self) -> httpx.Client:
        timeout = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
        try:
            return httpx.Client(transport=self._transport, timeout=timeout, follow_redirects=True)
        except (ImportError, ValueError) as error:  # what httpx raises for a proxy setting that it cannot use
            raise ReleaseError(f"the proxy setting cannot be used ({error})") from error

    def close(self) -> None:
        """Close connections, if any were made."""
        if "_client" in self.__dict__:
            self._client.close()

    def fetch(self, program: Program, destination: Path, *, machine: str | None = None) -> None:
        """Write the verified program to `destination`, executable.

        Raises
        ------
        ReleaseError
            It cannot be had, or fails its check; `destination` does not exist then.
        """
        source = artifact(program, machine or platform.machine())
        host = httpx.URL(source.url).host
        if host in self._silent:
            raise ReleaseError(f"{host} did not answer")
        archive = destination.with_name(destination.name + ".download")
        try:
            answer = self._client.get(source.checksum_url).raise_for_status()
            expected = parse_checksum(answer.text, source.file_name)
            found = self._download(source.url, archive)
            if found != expected:
                raise ReleaseError(f"{source.file_name} has checksum {found}, published is {expected}")
            self._unpack(archive, source.member, destination)
            destination.chmod(0o755)
        except httpx.TransportError as error:
            self._silent.add(host)
            raise ReleaseError(f"{host} does not answer ({type(error).__name__})") from error
        except (httpx.HTTPError, OSError, tarfile.TarError) as error:
            destination.unlink(missing_ok=True)
            raise ReleaseError(f"{source.url}: {error}") from error
        finally:
            archive.unlink(missing_ok=True)

    def _download(self, url: str, path: Path) -> str:
        digest, deadline = hashlib.sha256(), self._clock() + _TOTAL_SECONDS
        with self._client.stream("GET", url) as answer, path.open("wb") as output:
            answer.raise_for_status()
            for chunk in answer.iter_bytes(1 << 20):
                digest.update(chunk)
                output.write(chunk)
                if self._clock() > deadline:
                    raise ReleaseError(f"{url} takes more than {_TOTAL_SECONDS:.0f} s; building is faster")
        return digest.hexdigest()

    @staticmethod
    def _unpack(archive: Path, member: str | None, destination: Path) -> None:
        if member is None:
            archive.replace(destination)
            return
        with tarfile.open(archive) as opened:
            try:
                stream = opened.extractfile(member)
            except KeyError:
                stream = None
            if stream is None:
                raise ReleaseError(f"{archive.name} does not hold {member}")
            with destination.open("wb") as output:
                while chunk := stream.read(1 << 20):
                    output.write(chunk)
