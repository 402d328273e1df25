"""The ring of access samples: nothing repeated, nothing lost unsaid, whatever the pace of the reader."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ProtocolViolation
from contract.samples import (
    KIND_EMB,
    KIND_KV,
    MAX_BATCH_RECORDS,
    MAX_SIZE,
    RECORD_BYTES,
    WANTED_KEYS,
    SampleBuffer,
    is_sampled,
    sampling_of,
    unpack,
)


@given(steps=st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=40))
@settings(deadline=None)
def test_received_plus_lost_is_what_was_produced_in_order(steps: list[tuple[int, bool]]) -> None:
    buffer, cursor, produced, seen, lost_in_all = SampleBuffer(capacity=16), 0, 0, [], 0
    for count, one_by_one in steps:
        keys = list(range(produced, produced + count))
        if one_by_one:
            for key in keys:
                buffer.append(kind=KIND_KV, size=2, key=key, time_us=key)
        else:
            buffer.extend(kind=KIND_EMB, size=1, keys=keys, time_us=7)
        produced += count
        if count % 3 == 0:
            payload, following, lost = buffer.read(cursor)
            records = unpack(payload)
            assert following == produced == cursor + len(records) + lost
            assert records["key"].tolist() == list(range(cursor + lost, produced))
            assert records["sequence"].tolist() == records["key"].tolist()
            assert len(records) <= 16
            seen += records["key"].tolist()
            cursor, lost_in_all = following, lost_in_all + lost
    assert len(seen) + lost_in_all == cursor
    assert seen == sorted(set(seen))


def test_a_reader_that_is_lapped_is_told_how_many_it_lost() -> None:
    buffer = SampleBuffer(capacity=10)
    buffer.extend(kind=KIND_EMB, size=1, keys=range(25), time_us=1)
    payload, cursor, lost = buffer.read(0)
    assert (cursor, lost) == (25, 15)
    assert unpack(payload)["key"].tolist() == list(range(15, 25))


@pytest.mark.parametrize("cursor", [-1, 1_000_000])
def test_a_cursor_that_was_never_given_starts_over_at_the_oldest(cursor: int) -> None:
    buffer = SampleBuffer(capacity=10)
    buffer.extend(kind=KIND_EMB, size=1, keys=range(25), time_us=1)
    payload, following, lost = buffer.read(cursor)
    assert (len(unpack(payload)), following, lost) == (10, 25, 0)


def test_kind_and_size_share_a_word_and_a_huge_size_is_clipped() -> None:
    buffer = SampleBuffer(capacity=4)
    buffer.append(kind=KIND_EMB, size=1 << 40, key=(1 << 64) - 1, time_us=(1 << 63))
    record = unpack(buffer.read(0)[0])[0]
    assert (int(record["kind_size"]) >> 30, int(record["kind_size"]) & MAX_SIZE) == (KIND_EMB, MAX_SIZE)
    assert (int(record["key"]), int(record["time_us"])) == ((1 << 64) - 1, 1 << 63)


def test_sequence_numbers_wrap_at_32_bits_and_cursors_do_not() -> None:
    buffer = SampleBuffer(capacity=4)
    buffer._next = (1 << 32) - 1
    buffer.extend(kind=KIND_EMB, size=1, keys=[1, 2], time_us=1)
    payload, cursor, _ = buffer.read((1 << 32) - 1)
    assert unpack(payload)["sequence"].tolist() == [0xFFFF_FFFF, 0]
    assert cursor == (1 << 32) + 1


@pytest.mark.parametrize("size", [1, RECORD_BYTES + 1, (MAX_BATCH_RECORDS + 1) * RECORD_BYTES])
def test_a_payload_that_is_no_batch_is_a_violation(size: int) -> None:
    with pytest.raises(ProtocolViolation, match="samples"):
        unpack(bytes(size))


@given(key=st.integers(0, (1 << 64) - 1), one_in=st.integers(1, 1 << 20), factor=st.integers(1, 16))
def test_a_thinner_sample_is_part_of_a_thicker_one(key: int, one_in: int, factor: int) -> None:
    if is_sampled(key, one_in * factor):
        assert is_sampled(key, one_in)


def test_one_key_in_n_is_sampled() -> None:
    keys = np.random.default_rng(1).integers(0, 1 << 64, size=100_000, dtype=np.uint64)
    assert sum(is_sampled(key, 50) for key in keys.tolist()) == pytest.approx(2000, rel=0.1)


@pytest.mark.parametrize(("keys", "one_in"), [(0, 1), (3000, 1), (8191, 1), (8192, 2), (70_000, 16), (10_000_000, 2048)])
def test_few_keys_are_all_reported_and_of_many_at_least_four_thousand(keys: int, one_in: int) -> None:
    assert sampling_of(keys) == one_in
    assert one_in == 1 or keys / one_in >= WANTED_KEYS
