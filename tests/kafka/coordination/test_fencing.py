"""Guarded resources on a real broker: a holder that is stopped past its lease, and what a fenced topic takes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from actors import ConfigurationError, UnknownTopicError
from actors._core.partitioner import partition_for
from actors.coordination import (
    Coordination,
    CoordinationError,
    CoordinationTimeoutError,
    Fence,
    FencedReader,
    FencedRecord,
    FencedSqlite,
    FencedTopic,
    FenceLostError,
    StaleTokenError,
)
from actors.coordination.fences.log import headers_of
from actors.errors import RecordTooLargeError
from dev.kafka import Cluster
from examples import fenced_ledger
from tests.kafka.coordination.test_coordination import wait_until_up
from tests.kafka.helpers import ROOT, WorkerProcess, eventually, make_topics, producing, read_all, send, unique

TTL_S, PAUSE_S = 2, 3
RESOURCE = fenced_ledger.RESOURCE


# --- two processes, one of which stands still ------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def service(brokers: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The lock service, in a process of its own."""
    name = unique("locks")
    folder = tmp_path_factory.mktemp("service") / "one"
    worker = WorkerProcess("actors.coordination.app", brokers, folder, COORDINATION_APP=name).start()
    try:
        async with Coordination(brokers, app=name, call_timeout=60) as client:
            await wait_until_up(client)
        yield name
    finally:
        worker.kill()


class Holder:
    """An example in a process of its own; what it says goes to a file."""

    def __init__(self, folder: Path, brokers: str, service: str) -> None:
        self._folder = folder
        self._environment = {**os.environ, "KAFKA_URL": brokers, "COORDINATION_APP": service}
        self._process: subprocess.Popen[bytes] | None = None
        self.name = ""

    def start(self, name: str, example: str, where: str, *, is_fenced: bool = True) -> Holder:
        self.name = name
        command = [sys.executable, "-m", *([] if is_fenced else ["tests.kafka.apps.unfenced"]), example]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, name, where, str(TTL_S), str(PAUSE_S)],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def said(self) -> str:
        return (self._folder / f"{self.name}.log").read_text()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)

    async def says(self, words: str) -> None:
        await eventually(lambda: words in self.said(), what=lambda: f"{self.name} said {self.said()!r}, not {words!r}")


@pytest.fixture
def holders(brokers: str, service: str, tmp_path: Path) -> Iterator[list[Holder]]:
    made = [Holder(tmp_path, brokers, service) for _ in range(2)]
    yield made
    for holder in made:
        holder.end()


@dataclass(frozen=True)
class Guarded:
    """An example, where it writes, and how to see what counts there as (token, line)."""

    example: str
    where: str
    content: Callable[[], Awaitable[list[tuple[int, str]]]]


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.nightly), "topic"])
def guarded(request: pytest.FixtureRequest, brokers: str, service: str, tmp_path: Path) -> Guarded:
    """Depends on the service, which has a name of its own for each run, so that the topic has too."""
    path, topic = tmp_path / "ledger.db", unique("lines")

    async def from_database() -> list[tuple[int, str]]:
        with FencedSqlite.open(path, RESOURCE) as ledger:
            return fenced_ledger.lines(ledger)

    async def from_topic() -> list[tuple[int, str]]:
        return [(record.token, record.value.decode()) for record in await counting(brokers, topic)]

    if request.param == "sqlite":
        return Guarded("examples.fenced_ledger", str(path), from_database)
    return Guarded("examples.fenced_topic", topic, from_topic)


async def sleep_through_a_lease(guarded: Guarded, holders: list[Holder], *, is_fenced: bool, says: str) -> None:
    """The first one writes and is stopped, the second one writes; the first one goes on and `says` what it met."""
    first, second = holders
    first.start("first", guarded.example, guarded.where, is_fenced=is_fenced)
    await first.says("first wrote 0 ")
    first.signal(signal.SIGSTOP)
    second.start("second", guarded.example, guarded.where)
    await second.says("second wrote 0 ")
    first.signal(signal.SIGCONT)
    await first.says(says)
    await second.says("second wrote 1 ")


async def test_a_holder_that_was_stopped_past_its_lease_is_refused(guarded: Guarded, holders: list[Holder]) -> None:
    await sleep_through_a_lease(guarded, holders, is_fenced=True, says="first refused")
    content = await guarded.content()
    assert [line for _, line in content][:3] == ["first 0", "second 0", "second 1"]
    (old, _), (new, _) = content[:2]
    assert old < new
    assert [token for token, _ in content] == sorted(token for token, _ in content)
    assert f"token {old} is refused, since {new} was seen" in holders[0].said()
    assert "first wrote 1 " not in holders[0].said()


@pytest.mark.nightly
async def test_a_writer_without_the_fence_gets_into_what_cannot_check_for_itself(
    guarded: Guarded, holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    await sleep_through_a_lease(guarded, holders, is_fenced=False, says="first wrote 1 ")
    if guarded.example == "examples.fenced_topic":
        # Readers check for themselves: without the fence there, too, it counts.
        assert [line for _, line in await guarded.content()][:3] == ["first 0", "second 0", "second 1"]
        monkeypatch.setattr(Fence, "check", lambda *_: None)
    content = await guarded.content()
    found = [line for _, line in content]
    assert found[:2] == ["first 0", "second 0"]
    assert "first 1" in found[2:]
    assert [token for token, _ in content] != sorted(token for token, _ in content)


# --- a fenced topic --------------------------------------------------------------------------------------------------


async def counting(brokers: str, topic: str, **options: object) -> list[FencedRecord]:
    """What counts in a topic as it is now, as a reader from its start sees it."""
    async with FencedReader(brokers, topic, **options) as reader:
        return [record async for record in reader.until_end()]


@pytest.fixture
async def topic(brokers: str) -> str:
    """One that has nothing of anybody yet."""
    name = unique("fenced")
    async with FencedTopic(brokers, name, "ledger", partitions=2):
        pass
    return name


def opened(brokers: str, topic: str, resource: str = "ledger") -> FencedTopic:
    return FencedTopic(brokers, topic, resource, partitions=2)


async def delete_records(brokers: str, topic: str) -> None:
    """Have every log start at its end."""
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        doomed = {TopicPartition(topic, number): RecordsToDelete(before_offset=-1) for number in range(2)}
        await admin.delete_records(doomed)
    finally:
        await admin.close()


async def test_a_stale_record_is_in_the_log_and_counts_for_nobody(brokers: str, topic: str) -> None:
    async with opened(brokers, topic) as one, opened(brokers, topic) as two:
        assert (await one.append(3, b"one")).token == 3
        assert (await two.append(7, b"two")).value == b"two"
        with pytest.raises(StaleTokenError) as caught:
            await one.append(3, b"late")
        assert (caught.value.token, caught.value.greatest) == (3, 7)
        with pytest.raises(StaleTokenError):
            await one.append(6, b"known to be stale")
        await two.append(7, b"two again")
    # The second stale one wasn't written: the first one's verdict told that it is.
    assert [record.value for record in await read_all(brokers, topic)] == [b"one", b"two", b"late", b"two again"]
    for _ in range(2):
        found = await counting(brokers, topic, partitions=2)
        assert [(record.token, record.value) for record in found] == [(3, b"one"), (7, b"two"), (7, b"two again")]


async def test_a_claim_makes_what_came_before_it_final(brokers: str, topic: str) -> None:
    async with opened(brokers, topic) as one, opened(brokers, topic) as two:
        await one.append(3, b"one")
        offset = await two.claim(7)
        with pytest.raises(StaleTokenError):
            await one.append(3, b"late")
        (only,) = await counting(brokers, topic, partitions=2, resource="ledger")
        assert (only.value, only.offset < offset) == (b"one", True)


async def test_resources_of_one_topic_have_fences_of_their_own(brokers: str, topic: str) -> None:
    names = [f"resource-{number}" for number in range(6)]
    assert len({partition_for(name.encode(), 2) for name in names}) == 2
    for number, name in enumerate(reversed(names)):
        async with opened(brokers, topic, name) as resource:
            await resource.append(number + 1, name.encode())
    assert sorted(record.resource for record in await counting(brokers, topic, partitions=2)) == names
    only = await counting(brokers, topic, partitions=2, resource="resource-3")
    assert [(record.value, record.partition) for record in only] == [(b"resource-3", partition_for(b"resource-3", 2))]


async def test_appends_side_by_side_each_get_their_own_verdict_also_when_some_are_cancelled(
    brokers: str, topic: str
) -> None:
    async with opened(brokers, topic) as one, opened(brokers, topic) as two:
        tasks = [asyncio.create_task(one.append(3, b"%d" % number)) for number in range(200)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks[1::3]:
            task.cancel()
        await two.append(7, b"two")
        found = await asyncio.gather(*tasks, return_exceptions=True)
        late = await asyncio.gather(*(one.append(3, b"late") for _ in range(5)), return_exceptions=True)
        assert {type(result) for result in late} == {StaleTokenError}
    counted = {record.value: record.offset for record in await counting(brokers, topic, partitions=2)}
    given = [result for result in found if isinstance(result, FencedRecord)]
    assert given
    assert {type(result) for result in found} <= {FencedRecord, StaleTokenError, asyncio.CancelledError}
    assert {record.value: record.offset for record in given}.items() <= counted.items()
    refused = {b"%d" % number for number, result in enumerate(found) if isinstance(result, StaleTokenError)}
    assert not refused & counted.keys()


async def test_a_reader_goes_on_from_a_state_and_agrees(brokers: str, topic: str) -> None:
    async with opened(brokers, topic) as one, opened(brokers, topic) as two:
        await one.append(3, b"one")
        await two.append(7, b"two")
        with pytest.raises(StaleTokenError):
            await one.append(3, b"late")
        await two.append(7, b"three")
    everything = await counting(brokers, topic, partitions=2)
    async with FencedReader(brokers, topic, partitions=2) as reader:
        states = [reader.state] + [reader.state async for _ in reader.until_end()] + [reader.state]
    for passed, state in enumerate([*states[:-1], states[-1]]):
        # The last state is behind all of it, also behind what doesn't count.
        rest = everything[min(passed, len(everything)) :]
        assert await counting(brokers, topic, partitions=2, state=state) == rest
    ahead = msgspec.structs.replace(states[-1], positions={0: 99, 1: 99})
    with pytest.raises(FenceLostError, match="was read up to 99: the log lost records"):
        await counting(brokers, topic, partitions=2, state=ahead)
    # A log that was cut can be read by those who know what came before.
    await delete_records(brokers, topic)
    with pytest.raises(FenceLostError, match="the greatest tokens of what is deleted aren't known"):
        await counting(brokers, topic, partitions=2)
    with pytest.raises(FenceLostError, match="starts at offset 4, and would be read from 1"):
        await counting(brokers, topic, partitions=2, state=states[1])
    async with FencedTopic(brokers, topic, "ledger", partitions=2, state=states[-1]) as three:
        with pytest.raises(StaleTokenError):
            await three.append(6, b"late")
        await three.append(9, b"nine")
    assert [record.value for record in await counting(brokers, topic, partitions=2, state=states[-1])] == [b"nine"]


async def test_records_that_are_deleted_before_they_are_read_end_the_reading(brokers: str, topic: str) -> None:
    async with FencedReader(brokers, topic, partitions=2) as reader:
        async with opened(brokers, topic) as ledger:
            for _ in range(6):
                await ledger.append(3, b"x" * 900_000)
        await delete_records(brokers, topic)

        async def read_on() -> None:
            async for _ in reader:
                pass

        # What was fetched in advance is still given; then it is told, and told again.
        for _ in range(2):
            with pytest.raises(FenceLostError, match="deleted before they were read"):
                await asyncio.wait_for(read_on(), 30)


async def test_topics_that_cannot_be_judged_are_refused(brokers: str, topic: str) -> None:
    with pytest.raises(ConfigurationError, match="has 2 partitions, 3 are expected"):
        await counting(brokers, topic, partitions=3)
    with pytest.raises(ConfigurationError, match="has 2 partitions, 3 are expected"):
        async with FencedTopic(brokers, topic, "ledger", partitions=3):
            pass
    with pytest.raises(UnknownTopicError, match=r"--config retention\.ms=-1"):
        await counting(brokers, unique("missing"))
    for policy in ("compact", "compact,delete"):
        compacted = unique("compacted")
        await make_topics(brokers, compacted, config={"cleanup.policy": policy})
        with pytest.raises(ConfigurationError, match="would erase the one that it came too late for"):
            await counting(brokers, compacted, partitions=2)


async def test_a_topic_made_anew_is_not_taken_for_the_old_one(brokers: str, topic: str) -> None:
    async with opened(brokers, topic) as ledger:
        await ledger.append(3, b"one")
        state = ledger.state
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()
    await eventually(lambda: _gone(brokers, topic))
    await make_topics(brokers, topic)
    with pytest.raises(FenceLostError, match="was re-created since it was read"):
        await counting(brokers, topic, partitions=2, state=state)


async def _gone(brokers: str, topic: str) -> bool:
    try:
        await counting(brokers, topic, partitions=2)
    except UnknownTopicError:
        return True
    return False


async def test_what_others_write_into_the_topic_never_counts(brokers: str, topic: str) -> None:
    await send(brokers, topic, [(b"ledger", b"no headers"), (None, b"no key")])
    async with opened(brokers, topic) as ledger:
        await ledger.append(3, b"one")
    assert [record.value for record in await counting(brokers, topic, partitions=2)] == [b"one"]
    wrong = 1 - partition_for(b"ledger", 2)
    async with producing(brokers) as producer:
        await producer.send_and_wait(topic, b"x", b"ledger", partition=wrong, headers=headers_of("ledger", 5, b"id"))
    with pytest.raises(FenceLostError, match=rf"\[{wrong}\] offset \d key 'ledger'.*got partitions"):
        await counting(brokers, topic, partitions=2)


async def test_what_an_aborted_transaction_wrote_never_counts(brokers: str, topic: str) -> None:
    home = partition_for(b"ledger", 2)
    async with producing(brokers, transactional_id=unique("tx")) as producer:
        await producer.begin_transaction()
        sent = await producer.send(topic, b"x", b"ledger", partition=home, headers=headers_of("ledger", 9, b"id"))
        await sent
        async with opened(brokers, topic) as ledger:
            # It may still be committed, before ours: only then is it known whether ours counts.
            appending = asyncio.create_task(ledger.append(3, b"one"))
            await eventually(lambda: _written(brokers, topic, b"one"))
            assert not appending.done()
            await producer.abort_transaction()
            await appending
    assert [record.value for record in await counting(brokers, topic, partitions=2)] == [b"one"]


async def _written(brokers: str, topic: str, value: bytes) -> bool:
    return value in [record.value for record in await read_all(brokers, topic, isolation="read_uncommitted")]


async def test_a_record_that_is_too_large_is_told(brokers: str, topic: str) -> None:
    async with opened(brokers, topic) as ledger:
        with pytest.raises(RecordTooLargeError, match="key 'ledger': write less"):
            await ledger.append(3, b"x" * 2_000_000)
        await ledger.append(3, b"one")
    with pytest.raises(CoordinationError, match="isn't open"):
        await ledger.append(3, b"two")


async def test_a_batch_is_no_larger_than_what_the_topic_takes(brokers: str) -> None:
    topic = unique("small")
    await make_topics(brokers, topic, config={"max.message.bytes": "3000"})
    async with opened(brokers, topic) as ledger:
        found = await asyncio.gather(*(ledger.append(3, b"x" * 1_000) for _ in range(30)))
    assert len({record.offset for record in found}) == 30


@pytest.mark.nightly
async def test_it_goes_on_when_a_killed_broker_is_back(tmp_path: Path) -> None:
    with Cluster.up(tmp_path / "kafka") as cluster:
        topic, brokers, (broker,) = unique("fenced"), cluster.bootstrap, cluster.broker_ids
        async with opened(brokers, topic) as ledger, FencedReader(brokers, topic, partitions=2) as reader:
            await ledger.append(3, b"one")
            cluster.kill(broker)
            with pytest.raises(CoordinationTimeoutError, match="whether it counts isn't known"):
                await ledger.append(3, b"lost", timeout=2)
            cluster.start(broker)
            last = await ledger.append(3, b"two", timeout=60)
            seen: list[FencedRecord] = []

            async def read_on() -> None:
                async for record in reader:
                    seen.append(record)
                    if record.offset == last.offset:
                        return

            await asyncio.wait_for(read_on(), 60)
            assert [record.value for record in seen if record.value != b"lost"] == [b"one", b"two"]
