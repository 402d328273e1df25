"""Programs of Debian (or Ubuntu) packages, unpacked into the cache and never installed.

Nothing of the machine changes: no service starts, no package database is written, no root is needed. A set of packages
is unpacked together with the libraries that this machine lacks into one tree; a program of it runs with the tree's
:meth:`Tree.environment`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.binaries import cache_directory, cache_lock

Progress = Callable[[str], None]
_PROGRAM_FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")
_TIMEOUT_SECONDS = 600
# What a package's installation script would have linked through update-alternatives, by the program behind it.
_ALTERNATIVES = {
    "usr/sbin/xtables-nft-multi": tuple(f"{v}{end}" for v in ("iptables", "ip6tables") for end in ("", "-save", "-restore"))
}


class DebianError(RuntimeError):
    """The packages cannot be had here; the message says what to do."""


@dataclass(frozen=True)
class Tree:
    """Unpacked packages."""

    root: Path

    def program(self, name: str) -> Path:
        """Path of one of its programs.

        Raises
        ------
        DebianError
            The packages hold no such program.
        """
        for folder in ("alternatives", *_PROGRAM_FOLDERS):
            path = self.root / folder / name
            if path.exists() and os.access(path, os.X_OK):
                return path
        raise DebianError(f"the packages in {self.root} hold no program {name}")

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """An environment in which the programs find each other and their libraries."""
        environment = dict(os.environ if base is None else base)
        folders = [str(self.root / folder) for folder in ("alternatives", *_PROGRAM_FOLDERS)]
        environment["PATH"] = ":".join([*folders, environment.get("PATH") or os.defpath, "/usr/sbin", "/sbin"])
        libraries = [str(path) for pattern in ("usr/lib/*-linux-gnu*", "lib/*-linux-gnu*") for path in self.root.glob(pattern)]
        environment["LD_LIBRARY_PATH"] = ":".join([*libraries, *filter(None, [environment.get("LD_LIBRARY_PATH")])])
        if extensions := next(self.root.glob("usr/lib/*/xtables"), None):
            environment["XTABLES_LIBDIR"] = str(extensions)
        return environment


def tree_path(packages: Sequence[str]) -> Path:
    """Where the cache keeps this set of packages for this release of the system, there or not."""
    release = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    wanted = "\n".join(
        [*sorted(line for line in release.splitlines() if line.startswith(("ID=", "VERSION_ID="))), *sorted(packages)]
    )
    return cache_directory().parent / "debian" / f"{packages[0]}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"


def find_debian_tree(packages: Sequence[str]) -> Tree | None:
    """The unpacked packages, if the cache has them."""
    path = tree_path(packages)
    return Tree(path) if path.is_dir() else None


def ensure_debian_tree(packages: Sequence[str], *, progress: Progress | None = None) -> Tree:
    """Unpack packages, with every library they need and this machine lacks, into the cache.

    Raises
    ------
    DebianError
        There is no apt here, it does not know a package, or it cannot reach its archive.
    """
    found = find_debian_tree(packages)
    if found is not None:
        return found
    say = progress or (lambda line: None)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise DebianError(f"{', '.join(packages)}: this machine has no apt-get and dpkg-deb; a real node needs Debian or Ubuntu")
    final = tree_path(packages)
    with cache_lock(say):
        if (found := find_debian_tree(packages)) is not None:  # made by another caller meanwhile
            return found
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=final.parent, prefix=".part-") as part:
            say(f"unpack the packages {' '.join(packages)} into the cache (nothing is installed)")
            unpacked = Path(part, "tree")
            _unpack(_download(_closure(packages, say), Path(part)), unpacked)
            unpacked.replace(final)
    return Tree(final)


def ensure_debian_program(package: str, binary: str, *, progress: Progress | None = None) -> Path:
    """Path of one program of one package, unpacked into the cache; it runs with the environment of its `Tree`.

    Raises
    ------
    DebianError
        The package cannot be had here, or holds no such program.
    """
    return ensure_debian_tree([package], progress=progress).program(binary)


def _apt(*arguments: str, directory: Path | None = None) -> str:
    """Run apt-get as this user, without the sandbox user that cannot write into private folders."""
    command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=true", *arguments]
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DebianError(f"{' '.join(command)} took more than {_TIMEOUT_SECONDS} s") from error
    if done.returncode != 0:
        raise DebianError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _closure(packages: Sequence[str], say: Progress) -> list[str]:
    """Names of the packages and of everything below them that is not installed here."""
    query = ("install", "--print-uris", "--reinstall", "--no-install-recommends", *packages)
    try:
        listed = _apt(*query)
    except DebianError:
        if os.geteuid() != 0:
            raise
        say("apt-get update: the package lists of this machine are missing or old")
        _apt("update")
        listed = _apt(*query)
    # One line a package: 'address' name_version_architecture.deb size checksum
    names = [line.split("' ", 1)[1].split("_", 1)[0] for line in listed.splitlines() if line.startswith("'")]
    missing = set(packages) - set(names)
    if missing:
        raise DebianError(f"apt-get offers no download of {', '.join(sorted(missing))}")
    return names


def _download(names: Sequence[str], directory: Path) -> list[Path]:
    _apt("download", *names, directory=directory)
    return sorted(directory.glob("*.deb"))


def _unpack(archives: Sequence[Path], root: Path) -> None:
    for archive in archives:
        done = subprocess.run(["dpkg-deb", "-x", archive, root], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DebianError(f"dpkg-deb -x {archive.name} failed: {done.stderr.strip()}")
    (root / "packages.txt").write_text("".join(f"{archive.stem}\n" for archive in archives))
    links = root / "alternatives"
    links.mkdir()
    for program, names in _ALTERNATIVES.items():
        if (root / program).exists():
            for name in names:
                (links / name).symlink_to(Path("..") / program)
