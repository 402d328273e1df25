"""The ring file: received plus lost is what was produced, whoever dies, and a bad file never becomes samples."""

import asyncio
import os
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.ring import CLAIM_AT, HEAD_AT, RECORDS_AT, SUPPORTED, RingBroken, RingReader, RingWriter
from contract.samples import KIND_EMB, RECORD_BYTES, SampleBuffer

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="this machine does not keep stores and loads in order: no ring is offered")


class Pair:
    """A buffer as an engine has it, its ring, and a reader."""

    def __init__(self, path: Path, *, capacity: int = 16) -> None:
        self.path = path
        self.buffer = SampleBuffer(capacity=capacity)
        self.writer = RingWriter(path, start_id="one", capacity=capacity)
        self.reader = RingReader(path, start_id="one")
        self.written = self.produced = 0

    def produce(self, count: int) -> None:
        keys = np.arange(self.produced, self.produced + count, dtype=np.uint64)
        self.buffer.extend(kind=KIND_EMB, size=1, keys=keys, time_us=3)
        self.produced += count
        payload, self.written, _ = self.buffer.read(self.written)
        self.writer.write(payload, self.written)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    both = Pair(tmp_path / "samples")
    yield both
    both.reader.close()
    both.writer.close()


@given(steps=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=40))
@settings(deadline=None, max_examples=60)
def test_received_plus_lost_is_what_was_produced_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]]
) -> None:
    both = Pair(tmp_path_factory.mktemp("ring") / "samples")
    cursor, seen, lost_in_all = 0, [], 0
    for count, look in steps:
        both.produce(count)
        if look:
            records, following, lost = both.reader.read(cursor)
            assert following == both.produced == cursor + len(records) + lost
            assert records["key"].tolist() == list(range(cursor + lost, following))
            seen += records["key"].tolist()
            cursor, lost_in_all = following, lost_in_all + lost
    assert len(seen) + lost_in_all == cursor
    assert seen == sorted(set(seen))
    both.reader.close()


def test_a_reader_that_was_lapped_goes_on_half_a_ring_behind(pair: Pair) -> None:
    pair.produce(10)
    pair.produce(15)
    records, following, lost = pair.reader.read(0)
    assert (len(records), following, lost) == (8, 25, 17)


def test_cursors_are_those_of_get_samples_so_that_a_reader_may_change_between_the_two(pair: Pair) -> None:
    pair.produce(9)
    records, cursor, _ = pair.reader.read(0)
    pair.produce(4)
    payload, following, lost = pair.buffer.read(cursor)
    found, reached, missed = pair.reader.read(cursor)
    assert found.tobytes() == payload
    assert (reached, missed) == (following, lost) == (13, 0)
    assert len(records) == 9


def test_a_cursor_that_was_never_given_starts_over_with_nothing_lost(pair: Pair) -> None:
    pair.produce(20)
    records, following, lost = pair.reader.read(10**9)
    assert (records["key"].tolist(), following, lost) == (list(range(12, 20)), 20, 0)


def test_what_a_dead_producer_had_claimed_is_lost_and_what_it_had_published_is_not(pair: Pair) -> None:
    pair.produce(16)
    # It died between the claim for five more and their head: the oldest five may be overwritten.
    with pair.path.open("r+b") as file:
        file.seek(CLAIM_AT)
        file.write(struct.pack("<Q", 21))
        file.seek(RECORDS_AT)
        file.write(b"\xff" * (5 * RECORD_BYTES))
    records, following, lost = pair.reader.read(0)
    assert (records["key"].tolist(), following, lost) == (list(range(5, 16)), 16, 5)


def test_records_that_leave_out_what_the_ring_could_hold_are_refused(pair: Pair) -> None:
    pair.produce(4)
    with pytest.raises(ValueError, match="0 records between 4 and 7"):
        pair.writer.write(b"", 7)


@pytest.mark.parametrize("capacity", [0, 1, 3, 1 << 22])
def test_a_ring_is_a_power_of_two_and_bounded(tmp_path: Path, capacity: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        RingWriter(tmp_path / "samples", start_id="one", capacity=capacity)


def test_the_file_is_its_owners_and_gone_with_the_writer_but_never_another_writers(tmp_path: Path) -> None:
    first = RingWriter(tmp_path / "samples", start_id="one", capacity=8)
    assert (tmp_path / "samples").stat().st_mode & 0o777 == 0o600
    second = RingWriter(tmp_path / "samples", start_id="two", capacity=8)
    first.close()
    RingReader(tmp_path / "samples", start_id="two").close()
    second.close()
    assert list(tmp_path.iterdir()) == []


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, b"elsewise"),
        (8, struct.pack("<I", 2)),
        (12, struct.pack("<I", 25)),
        (16, struct.pack("<Q", 17)),
        (16, struct.pack("<Q", 0)),
        (16, struct.pack("<Q", 1 << 62)),
        (16, struct.pack("<Q", 1 << 20)),
        (24, b"\0" * 32),
    ],
)
def test_a_file_that_is_not_this_ring_is_not_opened(pair: Pair, at: int, data: bytes) -> None:
    overwrite(pair.path, at, data)
    with pytest.raises(RingBroken):
        RingReader(pair.path, start_id="one")


def test_a_writer_that_finds_a_folder_in_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "samples.ring"
    path.mkdir()
    with pytest.raises(OSError):
        RingWriter(path, start_id="a", capacity=8)
    assert list(tmp_path.iterdir()) == [path]


def test_neither_link_nor_folder_nor_pipe_nor_empty_file_is_opened(tmp_path: Path) -> None:
    RingWriter(tmp_path / "samples", start_id="one", capacity=8)
    (tmp_path / "link").symlink_to(tmp_path / "samples")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name in ("link", "folder", "pipe", "empty", "nothing"):
        with pytest.raises(RingBroken):
            RingReader(tmp_path / name, start_id="one")


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (HEAD_AT, struct.pack("<Q", 3)),  # fell
        (HEAD_AT, struct.pack("<Q", 12)),  # beyond the claim
        (HEAD_AT, b"\xff" * 8),
        (CLAIM_AT, struct.pack("<Q", 1)),
        (CLAIM_AT, b"\xff" * 8),
        (RECORDS_AT + 10 * RECORD_BYTES, struct.pack("<I", 99)),  # a record out of its place
    ],
)
def test_a_ring_that_breaks_a_rule_gives_no_records(pair: Pair, at: int, data: bytes) -> None:
    pair.produce(8)
    _, cursor, _ = pair.reader.read(0)
    pair.produce(3)
    overwrite(pair.path, at, data)
    with pytest.raises(RingBroken):
        pair.reader.read(cursor)


def test_a_file_that_is_cut_short_under_its_reader_is_noticed_and_kills_nobody(pair: Pair) -> None:
    pair.produce(8)
    os.truncate(pair.path, RECORDS_AT + 10)
    with pytest.raises(RingBroken):
        pair.reader.read(0)


@given(noise=st.binary(min_size=1, max_size=64), at=st.integers(0, RECORDS_AT + 16 * RECORD_BYTES - 64))
@settings(deadline=None, max_examples=200)
def test_noise_anywhere_in_the_file_is_refused_or_bounded(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    both = Pair(tmp_path_factory.mktemp("ring") / "samples")
    both.produce(20)
    overwrite(both.path, at, noise)
    try:
        records, following, lost = RingReader(both.path, start_id="one").read(7)
        assert len(records) <= 16
        assert following == 7 + len(records) + lost
    except RingBroken:
        pass
    finally:
        both.reader.close()


PRODUCER = """
import sys
from pathlib import Path
import numpy as np
from contract.ring import RingWriter
from contract.samples import RECORD
ring, produced = RingWriter(Path(sys.argv[1]), start_id="one", capacity=4096), 0
print("ready", flush=True)
while True:
    records = np.zeros(37, dtype=RECORD)
    records["key"] = np.arange(produced, produced + 37) * 2654435761 % (1 << 61)
    records["sequence"] = np.arange(produced, produced + 37)
    records["time_us"] = records["key"] ^ 0x5555
    produced += 37
    ring.write(records.tobytes(), produced)
"""


async def start_producer(path: Path) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PRODUCER, str(path), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    assert (await asyncio.wait_for(process.stdout.readline(), 30)).strip() == b"ready"
    return process


def whole(records: np.ndarray, first: int) -> bool:
    """Every record is one that the producer wrote at this place, not a mixture of two."""
    position = np.arange(first, first + len(records), dtype=np.uint64)
    key = position * np.uint64(2654435761) % np.uint64(1 << 61)
    return bool(np.array_equal(records["key"], key) and np.array_equal(records["time_us"], key ^ np.uint64(0x5555)))


async def test_at_full_speed_nothing_is_torn_or_lost_unsaid_and_kill_9_of_the_producer_loses_nothing_published(
    tmp_path: Path,
) -> None:
    process = await start_producer(tmp_path / "samples")
    reader, cursor, received, lost_in_all, laps = RingReader(tmp_path / "samples", start_id="one"), 0, 0, 0, 0
    while received < 200_000 or laps < 3:
        if received % 5 == 0:
            await asyncio.sleep(0.01)  # long enough to be lapped now and then
        records, following, lost = reader.read(cursor)
        assert following == cursor + lost + len(records)
        assert whole(records, cursor + lost)
        received, lost_in_all, laps, cursor = received + len(records), lost_in_all + lost, laps + (lost > 0), following
    process.send_signal(signal.SIGKILL)
    await process.wait()
    records, following, lost = reader.read(cursor)
    assert whole(records, cursor + lost)
    assert received + len(records) + lost_in_all + lost == following
    assert reader.read(following)[1:] == (following, 0)
    reader.close()


async def test_a_reader_that_comes_back_from_the_dead_goes_on_and_counts_what_it_missed(tmp_path: Path) -> None:
    process = await start_producer(tmp_path / "samples")
    try:
        first = RingReader(tmp_path / "samples", start_id="one")
        _, cursor, _ = first.read(0)
        first.close()  # all that the death of a reader changes: it writes nothing
        await asyncio.sleep(0.05)
        second = RingReader(tmp_path / "samples", start_id="one")
        records, following, lost = second.read(cursor)
        assert following - cursor == len(records) + lost
        assert whole(records, cursor + lost)
        second.close()
    finally:
        process.kill()
        await process.wait()
