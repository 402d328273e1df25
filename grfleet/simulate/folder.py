"""The folder of a result: all of it or nothing, and never in the place of something else.

Files are written beside the wanted place and moved there in one step. With `force` an older result makes way, and only one: a
folder that holds anything these commands did not write stays as it is.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grfleet.simulate.errors import BadInput

OURS = frozenset({"result.json", "summary.md", "latency.png", "timeline.png", "splits.png", "windows.png"})
Fill = Callable[[Path], None]


def check_free(out: Path, *, force: bool) -> None:
    """Refuse a place that a result must not take, before hours go into it.

    Raises
    ------
    BadInput
        When something is there that stays.
    """
    place = f"--out {out}"
    if not os.path.lexists(out):
        return
    if not out.is_dir() or out.is_symlink():
        raise BadInput(place, "is there and is no folder", then="name another one")
    held = sorted(each.name for each in out.iterdir())
    if not held:
        return
    foreign = [name for name in held if name not in OURS]
    if foreign:
        raise BadInput(place, f"holds {foreign[0]}, which is no part of a result", then="name another folder")
    if not force:
        raise BadInput(place, "holds a result", then="name another folder, or replace it with --force")


@contextmanager
def filled(out: Path, *, force: bool) -> Iterator[Path]:
    """Give a folder to write to; it becomes `out` when the block ends well, and goes when it does not.

    Raises
    ------
    BadInput
        When the place is taken or cannot be written.
    """
    check_free(out, force=force)
    new: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        yield new
        new.chmod(0o755)
        check_free(out, force=force)
        _replace(out, new)
        new = None
    except OSError as error:
        raise BadInput(f"--out {out}", f"cannot be written ({error.strerror})") from error
    finally:
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)


def _replace(out: Path, new: Path) -> None:
    """Move the new folder to its place; an older result stands beside it for that moment and goes afterwards."""
    if not os.path.lexists(out):
        os.rename(new, out)
        return
    old = new.with_name(f"{new.name}.old")
    os.rename(out, old)
    try:
        os.rename(new, out)
    except OSError:
        os.rename(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)
