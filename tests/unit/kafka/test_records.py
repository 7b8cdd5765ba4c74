"""Records that aiokafka's parser made, against what aiokafka itself hands out."""

import random

import pytest
from aiokafka.consumer import fetcher
from aiokafka.consumer.subscription_state import Assignment
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition

from actors._kafka.client import RAW
from actors._kafka.consume import damaged
from actors._kafka.consume.records import CHUNK_RECORDS, FETCHES, readable
from actors.errors import UnreadableLogError
from actors.ports import RefusedRecord

READ_COMMITTED = 1
ABORT_MARKER = b"\x00\x00\x00\x00"


def batch(base, offsets, *, producer=None, control=None, compression=0):
    builder = DefaultRecordBatchBuilder(2, compression, producer is not None, producer or -1, 0, 0, 1 << 24)
    for offset in offsets:
        key = ABORT_MARKER if control else b"key-%d" % offset
        builder.append(offset - base, 1_700_000_000_000, key, b"value-%d" % offset, [("h", b"%d" % offset)])
    raw = bytearray(builder.build())
    raw[0:8] = base.to_bytes(8, "big")
    if control:
        raw[21:23] = (int.from_bytes(raw[21:23], "big") | 0x20).to_bytes(2, "big")
    return raw


def fetched(raw, begin, aborted, deserializer, *, crc=False):
    partition = TopicPartition("in", 0)
    return fetcher.PartitionRecords(
        partition, fetcher.MemoryRecords(bytes(raw)), aborted, begin, deserializer, None, crc, READ_COMMITTED
    )


def drained(records, limit):
    taken, has_more, ends = [], True, []
    while has_more:
        some, has_more = records.take(limit())
        taken += some
        ends.append(records.next_fetch_offset)
    return taken, ends


def plain(one):
    return one.offset, one.key, one.value, tuple(one.headers)


LOG = b"".join(
    (
        batch(0, range(2_500)),
        batch(2_500, range(2_500, 2_510), producer=7),
        batch(2_510, [2_510], producer=7, control=True),
        batch(2_511, (2_513, 2_517), compression=1),
        batch(2_520, range(2_520, 2_530), producer=8),
        batch(2_530, [2_530], producer=8, control=True),
        batch(2_531, [2_531]),
    )
)
ABORTED = [(7, 2_500)]


@pytest.mark.parametrize("begin", [0, 1, 999, 1_000, 2_499, 2_503, 2_515, 2_517, 2_525, 2_531])
def test_they_are_the_same_records_with_the_same_next_offset(begin):
    reference = fetched(LOG, begin, ABORTED, None)
    expected = [plain(record) for record in reference]
    for seed in range(5):
        records = fetched(LOG, begin, ABORTED, RAW)
        taken, ends = drained(records, lambda seed=seed: random.Random(seed).choice((1, 7, 700, 5_000)))
        assert [plain(record) for record in taken] == expected
        assert ends == sorted(ends)
        assert records.next_fetch_offset == reference.next_fetch_offset
    assert expected[-1][0] == 2_531


def test_after_a_part_the_next_offset_is_behind_its_last_record():
    records = fetched(LOG, 0, ABORTED, RAW)
    for limit in (1, CHUNK_RECORDS - 1, CHUNK_RECORDS, 10):
        some, has_more = records.take(limit)
        assert (len(some), has_more) == (limit, True)
        assert records.next_fetch_offset == some[-1].offset + 1


@pytest.mark.parametrize("compression", [0, 1])
@pytest.mark.parametrize(("magic", "timestamps"), [(0, [-1, -1, -1]), (1, [5, -1, 7])])
def test_records_of_older_formats_have_timestamps(magic, timestamps, compression):
    builder = LegacyRecordBatchBuilder(magic, compression, 1 << 20)
    for offset, timestamp in enumerate(timestamps):
        builder.append(offset, timestamp=timestamp if magic else None, key=b"k", value=b"v%d" % offset)
    raw = builder.build()
    if compression:
        # The broker gives compressed messages the offset of the last one.
        raw[0:8] = (2).to_bytes(8, "big")
    for begin in (0, 1):
        taken, _ = drained(fetched(raw, begin, (), RAW), lambda: 2)
        assert [(one.timestamp, *plain(one)) for one in taken] == [
            (timestamp, offset, b"k", b"v%d" % offset, ()) for offset, timestamp in enumerate(timestamps)
        ][begin:]


# --- what can't be read ----------------------------------------------------------------------------------------------


def signed(raw):
    """A batch that was changed, with the checksum that it has now."""
    raw = bytearray(raw)
    raw[17:21] = calc_crc32c(bytes(raw[21:])).to_bytes(4, "big")
    return raw


def all_of(raw, begin=0, *, aborted=()):
    records = fetched(raw, begin, aborted, RAW, crc=True)
    taken, _ = drained(records, lambda: 1_000)
    return taken, records.next_fetch_offset


def shown(record):
    return (record.first_offset, record.offset) if isinstance(record, RefusedRecord) else record.offset


def with_a_bad_header(base, offsets, bad, **options):
    raw = batch(base, offsets, **options)
    # Of "h" and the offset: the name is one byte before the value's length.
    at = raw.index(b"value-%d" % bad) + len(b"value-%d" % bad)
    assert raw[at : at + 3] == b"\x02\x02h"
    raw[at + 2] = 0xFF
    return signed(raw)


@pytest.mark.parametrize("begin", [0, 2, 3, 4, 5])
def test_a_header_name_that_is_not_utf8_makes_one_record_unreadable(begin):
    raw = with_a_bad_header(0, range(6), 3) + batch(6, range(6, 9))
    taken, end = all_of(raw, begin)
    assert [shown(record) for record in taken] == [(3, 3) if one == 3 else one for one in range(begin, 9)]
    assert end == 9
    for record in taken:
        one = record.original if isinstance(record, RefusedRecord) else record
        assert (one.key, one.value) == (b"key-%d" % one.offset, b"value-%d" % one.offset)
        assert list(one.headers) == [("\\xff" if one is not record else "h", b"%d" % one.offset)]
        if one is not record:
            assert (record.key, record.value) == (None, None)
            assert "isn't UTF-8" in record.error.reason


def test_records_before_and_behind_it_are_those_of_the_parser():
    count = 2 * CHUNK_RECORDS + 10
    raw = with_a_bad_header(0, range(count), CHUNK_RECORDS + 5)
    taken, end = all_of(raw)
    whole, _ = all_of(batch(0, range(count)))
    assert end == count
    assert [plain(one) for one in taken if one.offset != CHUNK_RECORDS + 5] == [
        plain(one) for one in whole if one.offset != CHUNK_RECORDS + 5
    ]
    assert {one.timestamp for one in taken if not isinstance(one, RefusedRecord)} == {1_700_000_000_000}


@pytest.mark.parametrize("codec", [2, 3, 4])
def test_a_batch_whose_codec_is_missing_is_one_unreadable_record(codec, monkeypatch):
    for name in ("has_snappy", "has_lz4", "has_zstd"):
        monkeypatch.setattr(f"aiokafka.codec.{name}", lambda: False)
    raw = batch(4, range(4, 9))
    raw[22] = codec
    taken, end = all_of(batch(0, range(4)) + signed(raw) + batch(9, [9]))
    assert [shown(record) for record in taken] == [0, 1, 2, 3, (4, 8), 9]
    assert end == 10
    assert taken[4].stops
    assert "offsets 4 to 8 are compressed with" in taken[4].error.reason
    assert "faust-actors[compression]" in taken[4].error.remedy


@pytest.mark.parametrize("limit", [4_000, 200_000])
def test_a_batch_that_unpacks_to_too_much_is_unreadable(limit, monkeypatch):
    monkeypatch.setattr(damaged, "UNPACKED_BYTES", limit)
    taken, end = all_of(batch(0, range(3)) + batch(3, range(3, 2_000), compression=1) + batch(2_000, [2_000]))
    assert end == 2_001
    if limit == 4_000:
        assert [shown(record) for record in taken] == [0, 1, 2, (3, 1_999), 2_000]
        assert "unpacks to more than 4000" in taken[3].error.reason
    else:
        assert [shown(record) for record in taken] == list(range(2_001))


@pytest.mark.parametrize("place", [-1, 24, 60])
def test_a_damaged_batch_is_unreadable_and_ends_the_fetch(place):
    damaged = batch(3, range(3, 6))
    damaged[place] ^= 1
    taken, end = all_of(batch(0, range(3)) + damaged + batch(6, range(6, 9)))
    assert [shown(record) for record in taken] == [0, 1, 2, (3, 5)]
    assert end == 6
    assert "the checksum is wrong" in taken[3].error.reason


def test_how_far_a_damaged_batch_reaches_is_never_overrated():
    damaged = batch(3, range(3, 6))
    damaged[23] ^= 0x40
    assert all_of(damaged, 3)[1] == 4
    whole = batch(3, range(3, 6))
    whole[-1] ^= 1
    assert all_of(whole, 4)[1] == 6
    assert [shown(record) for record in all_of(whole, 4)[0]] == [(4, 5)]


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 1, 13, 14, 30, 49, 70, 90, 2**31 - 1])
def test_a_wrong_length_puts_no_records_behind_the_batch_among_the_damaged_ones(length):
    """The checksum doesn't cover the length. What follows by it may be taken for any offset."""
    damaged = batch(3, range(3, 6))
    damaged[8:12] = length.to_bytes(4, "big", signed=True)
    for log in (damaged, damaged + batch(6, range(6, 9))):
        partition = fetched(log, 3, [], RAW, crc=True)
        taken, _ = partition.take(1_000)
        assert partition.next_fetch_offset <= 6, [shown(record) for record in taken]
        assert not taken or shown(taken[0])[0] == 3


def test_a_damaged_end_of_a_transaction_doesnt_hide_the_committed_records_behind_it():
    marker = batch(2, [2], producer=7, control=True)
    marker[-1] ^= 1
    log = batch(0, range(2), producer=7) + marker + batch(3, [3], producer=7)
    taken, end = all_of(log, aborted=[(7, 0)])
    assert [shown(record) for record in taken] == [(2, 2)]
    assert end == 3
    assert [shown(record) for record in all_of(log[len(log) - len(batch(3, [3])) :], 3)[0]] == [3]


def test_a_batch_of_a_broken_structure_is_unreadable_from_there_on():
    raw = batch(0, range(4))
    at = raw.index(b"key-2")
    raw[at - 1] = 0x7E
    taken, end = all_of(signed(raw) + batch(4, [4]))
    assert [shown(record) for record in taken] == [0, 1, (2, 3), 4]
    assert end == 5


def test_lengths_that_lead_out_of_a_batch_are_refused_and_dont_end_the_process():
    for raw, at in ((b"\x14ab", 0), (b"abc", 10), (b"abc", 10**12)):
        with pytest.raises((CorruptRecordException, IndexError)):
            damaged._read_bytes(bytearray(raw), at)
    assert damaged._read_bytes(bytearray(b"\x04ab"), 0) == (b"ab", 3)


class Fetches:
    """Fetches of one partition, as aiokafka makes them one after the other."""

    def __init__(self, begin):
        self.partition = TopicPartition("in", 0)
        self.assignment = Assignment([self.partition])
        self.state = self.assignment.state_value(self.partition)
        self.state.seek(begin)

    def next(self, raw):
        result = fetcher.FetchResult(
            self.partition,
            partition_records=fetched(raw, self.state.position, [], RAW, crc=True),
            assignment=self.assignment,
            backoff=0,
        )
        return [shown(record) for record in result.getall(1_000)]


async def test_damage_is_fetched_again_before_it_counts():
    whole = batch(0, range(3)) + batch(3, range(3, 6))
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    fetches = Fetches(0)
    assert fetches.next(damaged) == [0, 1, 2]
    assert fetches.next(whole[len(batch(0, range(3))) :]) == [3, 4, 5]

    fetches = Fetches(0)
    found = [fetches.next(damaged), *(fetches.next(damaged[len(batch(0, range(3))) :]) for _ in range(FETCHES - 1))]
    assert found == [[0, 1, 2], *([[]] * (FETCHES - 2)), [(3, 5)]]
    assert fetches.state.position == 6


def test_a_log_is_read_through_bad_headers_and_not_through_batches_that_cannot_be_read():
    taken, _ = fetched(with_a_bad_header(0, range(3), 1), 0, [], RAW).take(10)
    assert [record.key for record in readable(("log", 2), taken)] == [b"key-0", b"key-1", b"key-2"]
    damaged = batch(0, range(3))
    damaged[-1] ^= 1
    with pytest.raises(UnreadableLogError, match=r"log\[2\]: the records at offsets 0 to 2 are damaged") as caught:
        readable(("log", 2), fetched(damaged, 0, [], RAW, crc=True).take(10)[0])
    assert caught.value.next_offset == 3
