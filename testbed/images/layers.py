"""Layers made from what runs on this machine: its Python, the packages of its environment, and a checkout.

What a pod runs is therefore what the tests ran, byte for byte, and making it needs no network. The interpreter goes to
``/opt/python`` wherever the machine has it: Python finds its library from its own place, and the loader finds shared
objects in its default folder. Byte code is compiled once, since a pod with a read-only root would compile at each start.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from testbed.binaries import cache_directory
from testbed.images.archive import Layer, read_layer, write_layer

_FORMAT = "2"  # part of every key: a change of what layers hold makes new ones
PYTHON_HOME = "/opt/python"
PACKAGES_FOLDER = "/opt/grfleet/lib"
_NOT_NEEDED = ("site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3")
# What wheels take for granted on every Linux (the manylinux rule), beyond what the interpreter itself links to.
_SYSTEM_LIBRARIES = (
    *("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libutil.so.1", "libresolv.so.2"),
    *("libnss_files.so.2", "libnss_dns.so.2", "libgcc_s.so.1", "libstdc++.so.6"),
)


def layer_directory() -> Path:
    """Where finished layers are kept, outside the work tree."""
    return cache_directory().parent / "layers"


def _cached(name: str, key: str, fill: Callable[[Path], None]) -> Layer:
    """The layer of that key, made by `fill` when the cache has none; older ones of the same name go."""
    digest = hashlib.sha256(f"{_FORMAT}\n{key}".encode()).hexdigest()[:16]
    path = layer_directory() / f"{name}-{digest}.tar"
    with contextlib.suppress(FileNotFoundError):
        if path.exists():
            return read_layer(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}-") as part:
        fill(Path(part))
        layer = write_layer(Path(part), path)
    for old in path.parent.glob(f"{name}-*.tar"):
        if old != path and old.stat().st_mtime < path.stat().st_mtime - 86_400:  # somebody may be packing it right now
            old.unlink(missing_ok=True)
            old.with_name(f"{old.name}.sha256").unlink(missing_ok=True)
    return layer


def file_layer(name: str, files: dict[str, Path]) -> Layer:
    """A layer of single files: place in the image (absolute) to place on this machine."""
    key = "\n".join(f"{target} {hashlib.sha256(source.read_bytes()).hexdigest()}" for target, source in sorted(files.items()))

    def fill(root: Path) -> None:
        for target, source in files.items():
            _copy_file(source, root / target.lstrip("/"))

    return _cached(name, key, fill)


def program_layer(name: str, program: Path, environment: Mapping[str, str]) -> Layer:
    """A layer with one program in `/usr/bin` and every shared object it needs in `environment`, beside the C library."""
    found = sorted(Path(path) for path in _ldd([program], environment))
    files = {f"/usr/bin/{program.name}": program} | {f"/{_place(library, found)}": library for library in found}
    return file_layer(name, files)


def interpreter_layer() -> Layer:
    """This machine's Python with its standard library and every shared object it needs, and the files a C library expects."""
    executable = Path(sys.executable).resolve()
    libraries = _shared_objects(executable)
    key = "\n".join([sys.version, str(executable), *(f"{p} {p.stat().st_mtime_ns} {p.stat().st_size}" for p in libraries)])

    def fill(root: Path) -> None:
        home = root / PYTHON_HOME.lstrip("/")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        _copy_file(executable, home / "bin" / version)
        for link in ("python3", "python"):
            (home / "bin" / link).symlink_to(version)
        ignore = shutil.ignore_patterns("__pycache__", "config-*", *_NOT_NEEDED)
        shutil.copytree(sysconfig.get_path("stdlib"), home / "lib" / version, ignore=ignore, symlinks=False)
        for library in libraries:
            _copy_file(library, root / _place(library, libraries))
        _system_files(root)
        _compile(home / "lib" / version, f"{PYTHON_HOME}/lib/{version}")

    return _cached("interpreter", key, fill)


def packages_layer(distribution: str, *, extra: str = "") -> Layer:
    """Everything that an installed distribution requires, as this environment has it, without the distribution itself.

    With an extra, what that one adds, and nothing else: a layer for above the other one.

    Raises
    ------
    importlib.metadata.PackageNotFoundError
        This environment does not have all of it.
    """
    found = _closure(distribution)
    if extra:
        below = {dist.metadata["Name"] for dist in found}
        found = [dist for dist in _closure(distribution, extra=extra) if dist.metadata["Name"] not in below]
    key = "\n".join([sys.version, *(f"{dist.metadata['Name']}=={dist.version}" for dist in found)])

    def fill(root: Path) -> None:
        folder = root / PACKAGES_FOLDER.lstrip("/")
        for dist in found:
            for file in dist.files or ():
                outside = file.is_absolute() or ".." in file.parts  # scripts and manual pages
                if not outside and "__pycache__" not in file.parts:
                    _copy_file(Path(str(file.locate())), folder / file)
        _compile(folder, PACKAGES_FOLDER)

    return _cached(f"{extra}-packages" if extra else "packages", key, fill)


def tree_layer(name: str, sources: dict[str, Path], scripts: dict[str, str], *, compile_below: str) -> Layer:
    """A layer of Python folders (place in the image to folder) and executable scripts (place to text)."""
    digest = hashlib.sha256(sys.version.encode())
    for target, source in sorted(sources.items()):
        for path in _source_files(source):
            digest.update(f"{target}/{path.relative_to(source)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    digest.update(repr(sorted(scripts.items())).encode())

    def fill(root: Path) -> None:
        for target, source in sources.items():
            for path in _source_files(source):
                _copy_file(path, root / target.lstrip("/") / path.relative_to(source))
        for target, text in scripts.items():
            script = root / target.lstrip("/")
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(text)
            script.chmod(0o755)
        _compile(root / compile_below.lstrip("/"), compile_below)

    return _cached(name, digest.hexdigest(), fill)


def _source_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target, follow_symlinks=True)


def _compile(folder: Path, shown_as: str) -> None:
    """Byte code that is valid whatever the files' times are; sources that are not valid Python (templates) are passed over."""
    command = [sys.executable, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    subprocess.run(
        [*command, "-s", folder, "-p", shown_as, folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )


# Shared objects ------------------------------------------------------------------------------------------------------


def _shared_objects(executable: Path) -> list[Path]:
    extensions = sorted(Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("*.so"))
    found = {Path(p) for p in _ldd([executable, *extensions])}
    known = dict(re.findall(r"^\s*(\S+) .*=> (\S+)$", _output(["ldconfig", "-p"]), re.MULTILINE)[::-1])  # the first one wins
    found |= {Path(known[name]) for name in _SYSTEM_LIBRARIES if name in known}
    return sorted(found)


def _ldd(files: Iterable[Path], environment: Mapping[str, str] | None = None) -> set[str]:
    found = _output(["ldd", *map(str, files)], environment)
    return set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", found, re.MULTILINE))


def _place(library: Path, libraries: Sequence[Path]) -> str:
    """The loader's own path is fixed in every program; everything else goes to the folder of the C library."""
    if library.name.startswith("ld-"):
        return str(library).lstrip("/")
    standard = next(path.parent for path in libraries if path.name == "libc.so.6")
    return str(standard / library.name).lstrip("/")


def _output(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    base = os.environ if environment is None else environment
    path = f"{base.get('PATH', '')}:/usr/sbin:/sbin"
    return subprocess.run(command, capture_output=True, text=True, env={**base, "PATH": path, "LC_ALL": "C"}, check=False).stdout


def _system_files(root: Path) -> None:
    etc = root / "etc"
    etc.mkdir()
    (etc / "passwd").write_text("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n")
    (etc / "group").write_text("root:x:0:\nnonroot:x:65532:\n")
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)


# Distributions -------------------------------------------------------------------------------------------------------


def _closure(name: str, *, extra: str = "") -> list[importlib.metadata.Distribution]:
    """Every distribution below `name`, or below its `extra`, sorted; extras are followed where a requirement asks for them."""
    from packaging.requirements import Requirement  # comes with the test tools, not with the product

    found: dict[str, importlib.metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(name, extra)]
    while waiting:
        current, wanted_extra = waiting.pop()
        normal = re.sub(r"[-_.]+", "-", current).lower()
        if (normal, wanted_extra) in seen:
            continue
        seen.add((normal, wanted_extra))
        dist = importlib.metadata.distribution(current)
        found[normal] = dist
        for text in dist.requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": wanted_extra}):
                waiting += [(needed.name, wanted) for wanted in ("", *sorted(needed.extras))]
    found.pop(re.sub(r"[-_.]+", "-", name).lower())
    return [found[key] for key in sorted(found)]
