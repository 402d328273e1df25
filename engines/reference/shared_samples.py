"""The producer of the ring file: copies new access samples from the core into the file that an agent reads.

The core keeps its samples for GET /samples. What is new goes into the ring before any answer that could tell of it, so that the
ring never knows less than the answers do.
"""

import re
from pathlib import Path

from contract.engine import FILE_NAME
from contract.ring import SUPPORTED, RingWriter
from contract.samples import SampleBuffer


class SharedSamples:
    """The ring of one engine process, once it is open.

    Parameters
    ----------
    samples : SampleBuffer
        Where the core puts them.
    start_id : str
        Of the process.
    """

    def __init__(self, samples: SampleBuffer, *, start_id: str) -> None:
        self._samples = samples
        self._start_id = start_id
        self._cursor = 0
        self._ring: RingWriter | None = None
        self.name: str | None = None

    def open(self, path: Path) -> None:
        """Put the file there and fill it with what there is; nothing happens where it could not be offered.

        Raises
        ------
        OSError
            When the file cannot be made.
        """
        if SUPPORTED and re.search(FILE_NAME, path.name):
            self._ring = RingWriter(path, start_id=self._start_id)
            self.publish()
            self.name = path.name

    def publish(self) -> None:
        """Copy what has come since the last call."""
        if self._ring is None:
            return
        payload, following, _ = self._samples.read(self._cursor)
        if payload:
            self._ring.write(payload, following)
        self._cursor = following

    def close(self) -> None:
        """Take the file away."""
        if self._ring is not None:
            self._ring.close()
        self._ring = self.name = None
