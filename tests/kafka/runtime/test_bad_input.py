"""Bad input: one clear error that says where and what to do, and nothing lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import TopicPartition

from tests.kafka.helpers import (
    WorkerProcess,
    add_partitions,
    delete,
    eventually,
    make_topics,
    producing,
    read_all,
    unique,
)

MODULE = "tests.kafka.apps.bad_app"
TASKS = 64
CASES = {
    "bad json": (b"{not json", "doesn't decode"),
    "bad type": (b'{"do": 7}', "doesn't decode"),
    "null value": (None, "the value is null"),
    "null key": (b'{"do": "write"}', "the key is null"),
    "raise": (b'{"do": "raise"}', "raised KeyError: 'of the handler'"),
    "unknown store": (b'{"do": "unknown store"}', "list it in @app.actor(..., stores=[...])"),
    "foreign key": (b'{"do": "foreign key"}', "send its own actor a message"),
    "large value": (b'{"do": "large value"}', "max.message.bytes"),
    "large output": (b'{"do": "large output"}', "max.message.bytes"),
    "no such partition": (b'{"do": "no such partition"}', "-out has the partitions 0 to"),
    "no key": (b'{"do": "no key"}', "is compacted, so its records need a key"),
    "text header": (b'{"do": "text header"}', "a header is a pair of str and bytes"),
    "float time": (b'{"do": "float time"}', "Unix milliseconds are a whole number"),
    "faust send": (b'{"do": "faust send"}', "use ctx.send"),
    "unknown topic": (b'{"do": "unknown topic"}', "wasn't on the broker"),
}


async def committed_offsets(brokers: str, name: str) -> dict[int, int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(f"{name}-actors")
        return {part.partition: found.offset for part, found in offsets.items()}
    finally:
        await admin.close()


async def test_a_record_that_cannot_be_handled_stops_its_partition_only(brokers: str, tmp_path: Path) -> None:
    """Partition n gets a good record, the bad one of case n, another good one; the last partition only good ones."""
    name = unique("bad")
    partitions = len(CASES) + 1
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=partitions)
    await make_topics(brokers, f"{name}-compacted", config={"cleanup.policy": "compact"})
    good = b'{"do": "write"}'
    async with producing(brokers) as producer:
        for number, (case, (value, _)) in enumerate(CASES.items()):
            key = await key_of(number, partitions)
            await producer.send_and_wait(f"{name}-in", good, key, partition=number)
            await producer.send_and_wait(f"{name}-in", value, None if case == "null key" else key, partition=number)
            await producer.send_and_wait(f"{name}-in", good, key, partition=number)
        for _ in range(3):
            await producer.send_and_wait(
                f"{name}-in", good, await key_of(partitions - 1, partitions), partition=partitions - 1
            )
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name).start()
    try:
        await eventually(
            lambda: worker.log().count("is stopped on") >= len(CASES),
            what="all partitions stopped: " + worker.log(),
        )

        async def all_committed() -> bool:
            wanted = {**dict.fromkeys(range(partitions - 1), 1), partitions - 1: 3}
            return await committed_offsets(brokers, name) == wanted

        await eventually(all_committed, what="good records before the bad ones are committed")
        for number, (_, message) in enumerate(CASES.values()):
            line = next(line for line in worker.log().splitlines() if f"is stopped on {name}-in[{number}]:" in line)
            assert message in line
            assert f"{name}-in[{number}] offset 1 key" in line
            assert "Mend the handler" in line
        outputs = await read_all(brokers, f"{name}-out")
        assert len(outputs) == len(CASES) + 3
        assert {record.value for record in outputs} == {b"write"}
        assert {record.value for record in await read_all(brokers, f"{name}--mine-changelog")} == {b"write"}
    finally:
        assert worker.terminate() == 0, worker.log()[-2000:]


async def key_of(partition: int, partitions: int) -> bytes:
    """A key that lives in `partition`."""
    from actors._core.partitioner import partition_for

    return next(key for n in range(10_000) if partition_for(key := b"key-%d" % n, partitions) == partition)


async def refused(worker: WorkerProcess, *, spawned: bool = False) -> str:
    """The one line of a worker that doesn't start."""
    assert worker.start(spawned=spawned).wait() == 1, worker.log()[-2000:]
    lines = [line for line in worker.log().splitlines() if "CRITICAL" in line]
    assert len(lines) == 1, worker.log()[-3000:]
    assert "Traceback" not in worker.log()
    return lines[0]


async def test_an_input_topic_that_is_missing(brokers: str, tmp_path: Path) -> None:
    name = unique("bad")
    line = await refused(WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name), spawned=True)
    assert f"topic {name}-in, the input of actor obey, isn't on the broker" in line
    assert "--create" in line


async def test_a_changelog_that_deletes(brokers: str, tmp_path: Path) -> None:
    name = unique("bad")
    await make_topics(brokers, f"{name}-in")
    await make_topics(brokers, f"{name}--mine-changelog", config={"cleanup.policy": "delete"})
    line = await refused(WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name))
    assert f"topic {name}--mine-changelog has cleanup.policy=delete" in line
    assert "--alter" in line


async def test_a_changelog_with_other_partitions_than_the_input(brokers: str, tmp_path: Path) -> None:
    name = unique("bad")
    await make_topics(brokers, f"{name}-in")
    await make_topics(brokers, f"{name}--mine-changelog", partitions=3, config={"cleanup.policy": "compact"})
    line = await refused(WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name))
    assert f"topic {name}--mine-changelog has 3 partitions, its actor's input has 2" in line


async def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    line = await refused(WorkerProcess(MODULE, "127.0.0.1:1", tmp_path / "data", APP_NAME="bad"))
    said = "bad can't start: no broker answers at 127.0.0.1:1: Connection refused. Check that the broker runs, and the"
    assert f"{said} app's setting `broker` (BROKER_URL in the environment)" in line


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"app": "another", "format": 1, "id": "f"}, "belongs to the app 'another'"),
        ({"app": None, "format": 99, "id": "f"}, "use the release that made it"),
    ],
)
async def test_a_data_folder_of_another_app_or_format(
    brokers: str, tmp_path: Path, about: dict[str, object], message: str
) -> None:
    name = unique("bad")
    await make_topics(brokers, f"{name}-in")
    folder = tmp_path / "data" / "v1" / "actors"
    folder.mkdir(parents=True)
    (folder / "worker.json").write_text(json.dumps({**about, "app": about["app"] or name}))
    line = await refused(WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name))
    assert message in line
    assert str(folder) in line


@pytest.mark.nightly
async def test_a_second_worker_on_the_same_data_folder(brokers: str, tmp_path: Path) -> None:
    name = unique("bad")
    await make_topics(brokers, f"{name}-in")
    first = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name).start()
    try:
        await eventually(lambda: "owns" in first.log(), what=first.log())
        second = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name)
        second.log_file = tmp_path / "second.log"
        line = await refused(second)
        assert f"is in use by process {first.pid}" in line
        assert first.is_running()
    finally:
        assert first.terminate() == 0


async def test_an_operator_who_resets_offsets_is_asked_what_is_meant(brokers: str, tmp_path: Path) -> None:
    name = unique("bad")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=1)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name).start()
    async with producing(brokers) as producer:
        for _ in range(3):
            await producer.send_and_wait(f"{name}-in", b'{"do": "write"}', b"a", partition=0)

    async def done() -> bool:
        return (await committed_offsets(brokers, name)).get(0) == 3

    await eventually(done, what=worker.log())
    assert worker.terminate() == 0
    await reset_offset(brokers, name, 1)
    worker.start()
    try:
        message = "the group's committed offset 1 was set by hand"
        await eventually(lambda: message in worker.log(), what=worker.log())
        assert "there is state up to input offset 3" in worker.log()
        assert worker.is_running()
        assert len(await read_all(brokers, f"{name}-out")) == 3
    finally:
        assert worker.terminate() == 0


async def test_a_commit_is_cut_to_what_its_topics_take(brokers: str, tmp_path: Path) -> None:
    name = unique("bad")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=1)
    await make_topics(brokers, f"{name}-small", partitions=1, config={"max.message.bytes": "20000"})
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name).start()
    try:
        async with producing(brokers) as producer:
            await producer.send_and_wait(f"{name}-in", b'{"do": "many"}', b"a", partition=0)

        async def sent() -> bool:
            return len(await read_all(brokers, f"{name}-small")) == 1000

        await eventually(sent, what=worker.log)
    finally:
        assert worker.terminate() == 0


@pytest.mark.parametrize(
    ("topic", "config", "refused"),
    [
        ("small", {"max.message.bytes": "5000"}, (b'{"do": "to small"}', None)),
        pytest.param(
            "out",
            {"message.timestamp.after.max.ms": "3600000"},
            (b'{"do": "write"}', 1 << 50),
            marks=pytest.mark.nightly,
        ),
    ],
)
async def test_a_record_that_the_broker_refuses_is_found_and_named(
    brokers: str, tmp_path: Path, topic: str, config: dict[str, str], refused: tuple[bytes, int | None]
) -> None:
    """The topic's limit is lowered while the worker runs; what shares a commit with the refused record isn't lost."""
    name = unique("bad")
    await make_topics(brokers, f"{name}-out", f"{name}-small", partitions=1)
    await make_topics(
        brokers, f"{name}-in", partitions=TASKS, config={"message.timestamp.after.max.ms": "9223372036854775807"}
    )
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name).start()
    try:
        await eventually(lambda: worker.log().count("owns") == TASKS, what=worker.log)
        await set_topic(brokers, f"{name}-{topic}", config)
        keys = [await key_of(number, TASKS) for number in range(TASKS)]
        async with producing(brokers) as producer:
            good = (b'{"do": "write"}', None)
            waiting = [
                await producer.send(f"{name}-in", order, key, partition=number, timestamp_ms=timestamp_ms)
                for order, timestamp_ms in (good, good, good, refused, good)
                for number, key in enumerate(keys)
                if number == 0 or (order, timestamp_ms) == good
            ]
            await asyncio.gather(*waiting)
        await eventually(lambda: "is stopped on" in worker.log(), what=worker.log)
        line = next(line for line in worker.log().splitlines() if "is stopped on" in line)
        assert f"{name}-in[0] offset 3 key '{keys[0].decode()}': the broker refuses what the handler" in line
        assert f"{name}-{topic}[0]: " in line
        wanted = {0: 3} | dict.fromkeys(range(1, TASKS), 4)

        async def others_went_on() -> bool:
            return await committed_offsets(brokers, name) == wanted

        await eventually(others_went_on, what=worker.log)
        assert len(await read_all(brokers, f"{name}-out")) == sum(wanted.values())
    finally:
        assert worker.terminate() == 0


async def set_topic(brokers: str, topic: str, config: dict[str, str]) -> None:
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, config)])
    finally:
        await admin.close()


@pytest.mark.nightly
async def test_an_output_that_is_deleted_holds_up_the_message_that_needs_it_alone(brokers: str, tmp_path: Path) -> None:
    name = unique("bad")
    await make_topics(brokers, f"{name}-in", partitions=2)
    await make_topics(brokers, f"{name}-out", f"{name}-small", partitions=1)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "data", APP_NAME=name).start()
    keys = [await key_of(number, 2) for number in range(2)]
    sent = [0, 0]

    async def order(number: int, what: str) -> None:
        sent[number] += 1
        async with producing(brokers) as producer:
            value = json.dumps({"do": what}).encode()
            await producer.send_and_wait(f"{name}-in", value, keys[number], partition=number)

    async def all_but(*held: int) -> bool:
        done = await committed_offsets(brokers, name)
        return all(done.get(number) == count - (number in held) for number, count in enumerate(sent))

    try:
        await eventually(lambda: worker.log().count("owns") == 2, what=worker.log)
        await order(0, "to small")
        await order(1, "write")
        await eventually(all_but, what=worker.log)
        await delete(brokers, f"{name}-small")
        await order(0, "to small")
        await eventually(lambda: worker.log().count("Create it again") >= 2, what=worker.log)
        for _ in range(3):
            await order(1, "write")
            await eventually(lambda: all_but(0), what=worker.log)
        assert f"{name}-small: UnknownTopicOrPartitionError" in worker.log()
        assert f"{name}-in[1]: " not in worker.log()
        await make_topics(brokers, f"{name}-small", partitions=1)
        await eventually(all_but, what=worker.log)
        assert len(await read_all(brokers, f"{name}-small")) == 1
        assert len(await read_all(brokers, f"{name}-out")) == sum(sent)
    finally:
        assert worker.terminate() == 0


@pytest.mark.nightly
async def test_more_partitions_are_taken_up_without_state_and_stop_an_actor_with_state(
    brokers: str, tmp_path: Path
) -> None:
    """The partitions of the other actor go on, and nothing that was written meanwhile is left out."""
    name = unique("grown")
    await make_topics(brokers, f"{name}-in", f"{name}-plain", f"{name}-out", partitions=1)
    worker = WorkerProcess("tests.kafka.apps.grown_app", brokers, tmp_path / "data", APP_NAME=name).start()
    await eventually(lambda: worker.log().count("owns") == 2, what=worker.log)
    topics = f"{name}-in", f"{name}-plain"
    await add_partitions(brokers, *topics, total=2)
    try:
        async with producing(brokers) as producer:
            for partition in (0, 1):
                for topic in topics:
                    await producer.send_and_wait(topic, b'"%d"' % partition, b"a", partition=partition)

        async def passed_on() -> bool:
            return len(await read_all(brokers, f"{name}-out")) == 2

        await eventually(passed_on, what=worker.log)
        await eventually(lambda: worker.log().count("actor keep is stopped on") >= 2, what=worker.log)
        refusal = f"topic {name}-in, the input of actor keep, was given more partitions than 1, it has 2"
        errors = [line for line in worker.log().splitlines() if refusal in line and "ERROR" in line]
        assert len(errors) == 1, worker.log()
        assert "page 'Snapshots'" in errors[0]
    finally:
        assert worker.terminate() == 0


async def reset_offset(brokers: str, name: str, offset: int) -> None:
    """Do what `kafka-consumer-groups --reset-offsets` does."""
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(bootstrap_servers=brokers, group_id=f"{name}-actors", enable_auto_commit=False)
    await consumer.start()
    part = TopicPartition(f"{name}-in", 0)
    consumer.assign([part])
    await consumer.commit({part: offset})
    await consumer.stop()
