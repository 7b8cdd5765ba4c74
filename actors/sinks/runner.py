"""A sink in a worker: a member of the sink's consumer group, with a task for each of its partitions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from dataclasses import replace

from actors._core.backoff import Backoff
from actors._core.logs import error_text, escaping
from actors._faust.extensions import StartingWorker
from actors._kafka.client import Producer, producing
from actors._kafka.connection import broker_errors
from actors._kafka.consume.group import GroupReader
from actors._kafka.permissions import WRITE
from actors.declare.values.schemas import topic_codecs
from actors.errors import ConfigurationError, RestoreError
from actors.ports import LogRecord, TopicPartition
from actors.runtime.cancellation import end
from actors.runtime.message.outputs import ACTOR_HEADER, DEAD_LETTER_HEADERS, ERROR_HEADER, ORIGIN_HEADER
from actors.sinks.partition import PartitionSink, Rows, Sink, SinkServices

logger = escaping(logging.getLogger(__name__))

CHECK_S = 1.0
GRACE_S, CANCEL_S = 5.0, 1.0
"""How long a rebalance waits for batches that are being written, and for their end when they are cancelled then."""
STOP_S = 0.2
"""The same where the worker stops, which gives all extensions less than a second."""


class SinkRunner:
    """Runs a sink until it is stopped."""

    def __init__(self, sink: Sink, worker: StartingWorker) -> None:
        self._sink = sink
        self._topic = str(sink.topic.get_topic_name())
        self._setup = worker.setup
        self._control = worker.control
        self._parts: dict[PartitionSink, asyncio.Task[None]] = {}
        self._running: asyncio.Task[None] | None = None
        self._letters: Producer | None = None
        self._exits = contextlib.AsyncExitStack()
        key, value = topic_codecs(sink.topic)
        self._rows = Rows(key=key, value=value, row=sink.row, tombstones=sink.tombstones)
        self._group = replace(worker.setup.group_settings, group=sink.group, instance_id=None)

    @property
    def stopped(self) -> list[dict[str, str | int | None]]:
        """A row for each partition that doesn't get on."""
        return [
            {
                "sink": self._sink.name,
                "topic": part.source.topic,
                "partition": part.source.partition,
                "offset": part.offset,
                "error": type(part.failure).__name__,
            }
            for part in self._parts
            if part.failure is not None
        ]

    async def start(self) -> None:
        """Check the topic, and begin.

        Raises:
            ConfigurationError: the topic is missing.
        """
        name, setup = self._topic, self._setup
        if name not in await self._control.topics([name]):
            raise ConfigurationError(
                f"sink {self._sink.name}: topic {name} isn't on the broker: make it (kafka-topics.sh "
                f"--bootstrap-server {setup.connection.bootstrap[0]} --create --topic {name} --partitions 8)"
            )
        if self._sink.policy.dead_letters:
            replication_factor = setup.changelog_settings.replication_factor
            await setup.topics(self._control).ensure_plain({setup.dead_letter_topic: 1}, replication_factor)
        self._running = asyncio.create_task(self._run(), name=f"sink {self._sink.name}")

    async def stop(self) -> None:
        """Stop writing and leave the group; a thread that still writes isn't waited for. May be called twice."""
        running, self._running = self._running, None
        await self._end_parts(STOP_S)
        await end(running)
        await self._exits.aclose()
        await self._sink.target.close()

    async def _run(self) -> None:
        """Be a member of the group, and join it again after an error that the client doesn't handle itself."""
        backoff, failures = Backoff(), 0
        while True:
            try:
                reader = await GroupReader.open(
                    self._setup.connection, self._group, self._topic, assigned=self._assigned, revoked=self._revoked
                )
                failures = 0
                try:
                    while True:
                        await asyncio.sleep(CHECK_S)
                        reader.check()
                finally:
                    await self._revoked()
                    await reader.close()
            except Exception as error:
                failures += 1
                logger.warning("sink %s: %s; it is tried again", self._sink.name, error_text(error))
            await asyncio.sleep(backoff.delay_s(failures))

    def _assigned(self, reader: GroupReader, sources: list[TopicPartition], generation: int) -> None:
        services = SinkServices(
            reader=reader,
            rows=self._rows,
            identify=self._identify,
            start=functools.partial(self._start_of, reader),
            bury=self._bury,
        )
        for source in sources:
            part = PartitionSink(source, self._sink, services, generation=generation)
            self._parts[part] = asyncio.create_task(part.run(), name=f"sink {self._sink.name} {source}")

    async def _revoked(self) -> None:
        writing = [task for part, task in self._parts.items() if part.stop()]
        if writing:
            await asyncio.wait(writing, timeout=GRACE_S)
        await self._end_parts(CANCEL_S)

    async def _end_parts(self, timeout_s: float) -> None:
        """Cancel what writes, and wait for its end: a thread can't be cancelled, and others wait for the partition."""
        tasks = list(self._parts.values())
        self._parts.clear()
        for task in tasks:
            task.cancel()
        if tasks and (await asyncio.wait(tasks, timeout=timeout_s))[1]:
            logger.warning("sink %s: a batch is still being written, and comes again", self._sink.name)

    async def _identify(self) -> str:
        topics = await self._control.topics([self._topic])
        if self._topic not in topics:
            raise RestoreError(f"topic {self._topic} isn't on the broker any more")
        return str(topics[self._topic].topic_id)

    async def _start_of(self, reader: GroupReader, source: TopicPartition) -> int:
        """Return where a partition begins of which the target has no offset.

        That is the group's offset, unless the target keeps offsets itself: one that was emptied is written again.
        """
        is_latest = self._setup.app.conf.consumer_auto_offset_reset == "latest"
        committed = await reader.committed(source)
        if committed is not None and (is_latest or not self._sink.target.keeps_offsets):
            return committed
        bounds = await self._control.bounds(source)
        start = bounds.end if is_latest else bounds.start
        await reader.commit(source, start)
        return start

    async def _bury(self, source: TopicPartition, raw: LogRecord, reason: str) -> None:
        if self._letters is None or self._letters.is_spent:
            client = producing(
                "sending dead letters", self._setup.connection, "sink", acks="all", enable_idempotence=True
            )
            self._letters = await self._exits.enter_async_context(client)
        headers = [pair for pair in raw.headers if pair[0] not in DEAD_LETTER_HEADERS]
        headers += [
            (ERROR_HEADER, reason.encode()),
            (ORIGIN_HEADER, f"{source.topic}/{source.partition}/{raw.offset}".encode()),
            (ACTOR_HEADER, self._sink.name.encode()),
        ]
        with broker_errors("sending dead letters", self._setup.connection, WRITE):
            await self._letters.send_and_wait(self._setup.dead_letter_topic, raw.value, raw.key, headers=headers)
