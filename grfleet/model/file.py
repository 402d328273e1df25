"""Reads a model from a file that somebody named on the command line."""

from pathlib import Path

from grfleet.access import Failed
from policies.allocation.model_file import MAX_FILE_BYTES, ModelRefused, TrainedModel, read_model


def read_file(file: Path, *, sha256: str | None = None) -> tuple[bytes, TrainedModel]:
    """Return the bytes of a file and the model that they are.

    Raises
    ------
    Failed
        It cannot be read, or is no model that this release runs; the message begins with the reason that the API would show.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        return data, read_model(data, sha256=sha256)
    except OSError as error:
        raise Failed(f"{file}: {error.strerror}") from error
    except ModelRefused as error:
        raise Failed(f"{file}: {error.reason.value}: {error}") from error
