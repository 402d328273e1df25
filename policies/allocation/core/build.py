"""Compiles the decision core: what `python -m policies.allocation.core` and installing grfleet call.

cffi writes the glue, the C compiler that this Python knows of makes one file of it (abi3: the same for every later Python). The
file carries the digest of the source it was made from, so that one left over from older source is never used.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

MODULE = "_split_core"
FOLDER = Path(__file__).resolve().parent
SOURCES = ("split_core.h", "split_core.c", "reuse_core.c")
# Without -march=native: the file may be copied to another machine. -ffp-contract=off and no -ffast-math: see split_core.c.
# -O2, as small code is back sooner in the cache of a processor that decides ten times a second: 2 us less of 20 than with -O3.
_FLAGS = (
    "-O2",
    "-ftree-vectorize",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-Wall",
)


class CannotCompile(Exception):
    """There is no compiler, no cffi or no Python header, or the compiler refused; the message says which."""


def source_digest(folder: Path = FOLDER) -> str:
    """Return what identifies the source: the first 16 hex digits of a SHA-256 over all of it.

    Raises
    ------
    OSError
        If the source is not there.
    """
    return hashlib.sha256(b"\0".join((folder / name).read_bytes() for name in SOURCES)).hexdigest()[:16]


def file_name() -> str:
    """Name of the compiled file for this Python."""
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    limited = sys.implementation.name == "cpython" and not hasattr(sys, "gettotalrefcount")
    limited = limited and not sysconfig.get_config_var("Py_GIL_DISABLED")
    return f"{MODULE}.abi3.so" if limited else f"{MODULE}{suffix}"


def compile_core(into: Path = FOLDER) -> Path:
    """Compile the core into the folder `into` and return the file's path; a file of that name is replaced in one step.

    Raises
    ------
    CannotCompile
        If that is not possible here.
    """
    if sys.platform == "win32":
        raise CannotCompile("building on Windows is not supported")
    try:
        cffi: Any = import_module("cffi")  # it has no types
    except ImportError as why:
        raise CannotCompile("cffi is not installed") from why
    builder = cffi.FFI()
    builder.cdef(_declarations())
    builder.set_source(MODULE, '#include "split_core.c"\n#include "reuse_core.c"')
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into, prefix=".core-") as work:
        glue, made = Path(work) / f"{MODULE}.c", Path(work) / file_name()
        with redirect_stdout(StringIO()):  # it tells what it writes
            builder.emit_c_code(str(glue))
        shared = ("-bundle", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared",)
        digest = f'-DGR_SOURCE_DIGEST="{source_digest()}"'
        include = (f"-I{FOLDER}", f"-I{sysconfig.get_path('include')}")
        _run([*_compiler(), *_FLAGS, digest, *include, *shared, str(glue), "-o", str(made), "-lm"])
        return made.replace(into / made.name)


def _declarations() -> str:
    """The header as cffi reads it: without lines for the preprocessor, but for constants."""
    lines = (FOLDER / "split_core.h").read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith(("#include", "#ifndef", "#endif", "#define GR_SPLIT_CORE_H")))


def _compiler() -> list[str]:
    for named in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        command = shlex.split(str(named)) if named else []
        if command and shutil.which(command[0]):
            return command
    raise CannotCompile("no C compiler found (looked for $CC, cc, gcc, clang)")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as why:
        raise CannotCompile(f"the C compiler did not run: {why}") from why
    if done.returncode != 0:
        raise CannotCompile(f"the C compiler refused:\n{done.stderr[-2000:]}")


def main() -> None:
    """Compile the core beside its source and print where it lies, or say why not."""
    try:
        sys.stdout.write(f"{compile_core()}\n")
    except CannotCompile as why:
        sys.exit(f"not compiled: {why}")


if __name__ == "__main__":  # by its path too, without the packages that the rest of grfleet needs
    main()
