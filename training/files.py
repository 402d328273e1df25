"""Files of a training: minutes of work, so a full disk or a kill leaves either the whole file in place or the old one."""

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write a file beside the old one, then put it in its place.

    Raises
    ------
    OSError
        When it cannot be written; the old file is as it was, and nothing lies beside it.
    """
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def make_folder(path: Path) -> None:
    """Make a folder, and see that files can be written there, before anything takes time.

    Raises
    ------
    OSError
        When they cannot.
    """
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path) as probe:
        probe.write(b"\0")
