"""What a broker can deliver and a worker can't use: each stops its own partition, and nothing else."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from aiokafka import AIOKafkaProducer
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from actors._core.partitioner import partition_for
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, unique

MODULE = "tests.kafka.apps.unreadable_app"
PARTITIONS = 2


async def produce_with_a_bad_header(producer: AIOKafkaProducer, topic: str, key: bytes, values: list[bytes]) -> None:
    """Send a batch to partition 0 whose second record has a header name that isn't UTF-8, as C programs can."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for number, value in enumerate(values):
        builder.append(number, 1_700_000_000_000, key, value, [("name", b"x")] if number == 1 else [])
    raw = bytearray(bytes(builder.build()).replace(b"name", b"na\xff\xfe"))
    raw[17:21] = calc_crc32c(bytes(raw[21:])).to_bytes(4, "big")
    await producer.partitions_for(topic)
    leader = next(part.leader for part in producer.client.cluster._partitions[topic].values() if part.partition == 0)
    response = await producer.client.send(leader, ProduceRequest(None, -1, 10_000, [(topic, [(0, bytes(raw))])]))
    [(_, [(_, error, *_)])] = response.topics
    assert error == 0


def key_in(partition: int) -> bytes:
    return next(key for n in range(100) if partition_for(key := b"key-%d" % n, PARTITIONS) == partition)


async def test_what_cannot_be_used_stops_its_own_partition_and_nothing_else(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name, first, second = unique("unreadable"), key_in(0), key_in(1)
    plain = [f"{name}-{one}" for one in ("out", "stopping", "skipping", "keyless", "misplaced", "viewing")]
    await make_topics(brokers, *plain, partitions=PARTITIONS)
    # The broker compresses what it gets.
    await make_topics(brokers, f"{name}-packed", partitions=PARTITIONS, config={"compression.type": "zstd"})
    config = {"compression.type": "zstd", "cleanup.policy": "compact"}
    await make_topics(brokers, f"{name}-packed-view", partitions=PARTITIONS, config=config)
    wrong = next(key for n in range(100) if crc32(key := b"key-%d" % n) % PARTITIONS != partition_for(key, PARTITIONS))
    async with producing(brokers) as producer:
        for one in ("stopping", "skipping"):
            await produce_with_a_bad_header(producer, f"{name}-{one}", first, [b"1", b"bad", b"3"])
            await producer.send_and_wait(f"{name}-{one}", b"4", second, partition=1)
        await producer.send_and_wait(f"{name}-packed", b"1" * 1_000, first, partition=0)
        await producer.send_and_wait(f"{name}-packed-view", b"1" * 1_000, b"a", partition=0)
        await producer.send_and_wait(f"{name}-keyless", b"1", None, partition=0)
        await producer.send_and_wait(f"{name}-misplaced", b"1", wrong, partition=crc32(wrong) % PARTITIONS)
        await producer.send_and_wait(f"{name}-viewing", b"read the view", first, partition=0)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name).start()
    workers.append(worker)
    stopped = {
        f"{name}-stopping[0] offset 1": "the name of the header b'na\\xff\\xfe' isn't UTF-8",
        f"{name}-packed[0] offset 0": "pip install 'faust-actors[compression]'",
        f"{name}-misplaced[{crc32(wrong) % PARTITIONS}] offset 0": "crc32 puts this key where it is",
        f"{name}-viewing[0] offset 0": "ViewFailedError",
    }
    handled = {
        f"stopping 0 {first.decode()} 1",
        f"stopping 1 {second.decode()} 4",
        f"skipping 0 {first.decode()} 1",
        f"skipping 0 {first.decode()} 3",
        f"skipping 1 {second.decode()} 4",
        "keyless 0 None 1",
    }

    def lines(text: str) -> list[str]:
        return [line for line in worker.log().splitlines() if text in line]

    await eventually(lambda: len(lines("is stopped on")) >= len(stopped), what=lambda: worker.log()[-4000:])

    async def found() -> set[str]:
        return {record.value.decode() for record in await read_all(brokers, f"{name}-out")}

    async def all_handled() -> bool:
        return await found() >= handled

    await eventually(all_handled, what=lambda: worker.log()[-4000:])
    assert await found() == handled
    for where, why in stopped.items():
        [line] = [line for line in lines("is stopped on") if where in line]
        assert why in line
    [line] = lines(f"the view of {name}-packed-view can't be opened")
    assert "compressed with zstd" in line
    assert lines("skipped after 1 attempts")
    assert worker.is_running()
    assert worker.terminate() == 0, worker.log()[-2000:]
