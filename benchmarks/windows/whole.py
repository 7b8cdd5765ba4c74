"""What a record costs a worker without a broker: from fetched batches to packed ones, and rows on disk.

A worker of the app, as it is, on 4 partitions of a cluster in memory. Its input is in batches of Kafka's format, which
aiokafka's parser reads as it does those of a fetch; what it commits is packed, as for a broker, and then thrown away;
its rows are in RocksDB. Time is virtual: it goes by the records that were fetched, `--rate` a second, and a transaction
takes `--commit-ms` of it, so commits are as large as at that rate, and two runs do the same. The jobs and their records
are those of the scenarios of `benchmarks.peers` with these names.

    python -m benchmarks.windows.whole --only session,stream_join

The last line is JSON: microseconds of CPU time per record, the best of `--repeat` rounds, in which the jobs take turns.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from struct import Struct
from typing import Any

import click
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from actors import App, Context, Hopping, Session, Tumbling, aggregates
from actors._core.partitioner import partition_for
from actors._core.windows.kinds import Windows
from actors._kafka.admin.owners import KafkaOwners, encode_owner
from actors._kafka.produce.batches import by_partition, changelog_records, output_records, pack
from actors.ports import CommitBatch, CommitReceipt, Identity, TopicPartition
from actors.runtime.committer import Committer
from actors.runtime.spec import TaskServices
from actors.runtime.state.restore import Restorer
from actors.runtime.state.stores import StoreCache
from actors.runtime.worker import LateSource, Worker
from actors.testing.fakes.ports import FakeGroupView, FakeLogs, FakeWriter
from actors.testing.machine import Machine, last_full_hour
from benchmarks.peers.scenarios import SCENARIOS, Scenario
from stores.rocks import RocksStore
from stores.rocks_options import RocksResources

PARTITIONS, BATCH_RECORDS, POLLED_RECORDS = 4, 500, 500
GRACE, RETENTION = timedelta(seconds=10), timedelta(hours=1)
JOBS = "exactly_once_raw", "distinct", "hot_counters", "tumbling", "hopping", "session", "stream_join", "table_join"
WINDOWS: dict[str, Windows] = {
    "tumbling": Tumbling(minutes=1),
    "hopping": Hopping(timedelta(minutes=1), advance=timedelta(seconds=10)),
    "session": Session(timedelta(seconds=30)),
}
Handler = Callable[[Context, bytes], Awaitable[None]]
Batches = dict[TopicPartition, list[tuple[int, bytes]]]
"""By partition the batches that weren't fetched, the first one last, each with the number of its records."""
_two = Struct(">qq").pack


@click.command()
@click.option("--records", default=40_000, show_default=True, help="Of all inputs together.")
@click.option("--repeat", default=5, show_default=True)
@click.option("--rate", default=40_000, show_default=True, help="Records per second of virtual time.")
@click.option("--commit-ms", default=30, show_default=True, help="How long a transaction takes.")
@click.option("--only", default=",".join(JOBS), show_default=True, help="Which jobs.")
def main(*, records: int, repeat: int, rate: int, commit_ms: int, only: str) -> None:
    """Measure a record's whole way."""
    best: dict[str, float] = {}
    for _ in range(repeat):
        for name in only.split(","):
            scenario = next(one for one in SCENARIOS if one.name == name)
            took_us = measure(scenario, records, records_per_s=rate, commit_s=commit_ms / 1000)
            best[name] = min(best.get(name, took_us), took_us)
    click.echo(json.dumps({name: round(took_us, 2) for name, took_us in best.items()}))


def measure(scenario: Scenario, records: int, *, records_per_s: int, commit_s: float) -> float:
    """Return the microseconds of CPU time per record of a job."""
    with tempfile.TemporaryDirectory() as folder:
        machine = _Machine(scenario, records, Path(folder), records_per_s=records_per_s, commit_s=commit_s)
        with machine:
            # As in a worker: see `actors._faust.service`.
            gc.collect()
            gc.freeze()
            gc.set_threshold(100_000, 50, 100)
            try:
                return machine.measure()
            finally:
                gc.unfreeze()


def _app(work: str) -> App:
    """Return the job's app: those of `benchmarks.peers.apps` with the same names."""
    app = App("whole", broker="kafka://127.0.0.1:1")
    source, other, target = (app.topic(name, key_type=bytes, value_type=bytes) for name in ("input", "other", "output"))
    if work == "stream_join":
        within = timedelta(minutes=1)
        app.join(source, other, within=within, how="inner", grace=GRACE, name="work")(_sender(target))
        return app
    if work == "table_join":
        state, handler = _looking_up(app, other, target)
    elif work in WINDOWS:
        state, handler = _counting_windows(app, work, target)
    else:
        state, handler = _counting(app, target) if work == "counter" else _passing_first(app, target)
    app.actor(source, stores=[state], name="work")(handler)
    return app


def _sender(target: Any) -> Callable[[Context, bytes, bytes], Awaitable[None]]:
    async def send_both(ctx: Context, left: bytes, right: bytes) -> None:
        ctx.send(target, key=ctx.key, value=left + right)

    return send_both


def _looking_up(app: App, other: Any, target: Any) -> tuple[Any, Handler]:
    table, send_both = app.table(other), _sender(target)

    async def look_up(ctx: Context, value: bytes) -> None:
        found = table.get(ctx.key)
        if found is not None:
            await send_both(ctx, value, found)

    return table, look_up


def _counting_windows(app: App, work: str, target: Any) -> tuple[Any, Handler]:
    kind, count = WINDOWS[work], aggregates.count()
    state = app.window_store("state", kind, grace=GRACE, retention=RETENTION, key_type=bytes, aggregate=count)

    async def count_windows(ctx: Context, value: bytes) -> None:
        for window, count in state.add(ctx.key, value):
            ctx.send(target, key=ctx.key + _two(*window), value=b"%d" % count)

    return state, count_windows


def _counting(app: App, target: Any) -> tuple[Any, Handler]:
    state = app.store("state", key_type=bytes, value_type=int)

    async def count_per_key(ctx: Context, value: bytes) -> None:
        count = (state.get(ctx.key) or 0) + 1
        state.set(ctx.key, count)
        ctx.send(target, key=ctx.key, value=b"%d:%s" % (count, value))

    return state, count_per_key


def _passing_first(app: App, target: Any) -> tuple[Any, Handler]:
    state = app.store("state", key_type=bytes, value_type=bytes)

    async def pass_first(ctx: Context, value: bytes) -> None:
        if state.put_if_absent(ctx.key, value) is None:
            ctx.send(target, key=ctx.key, value=value)

    return state, pass_first


def _batches(topic: str, records: Iterable[tuple[bytes, bytes, int]]) -> Batches:
    """Return records, with their times, as batches of their partitions."""
    parts: dict[int, list[tuple[bytes, bytes, int]]] = defaultdict(list)
    for key, value, at_ms in records:
        parts[partition_for(key, PARTITIONS)].append((key, value, at_ms))
    batches: Batches = {}
    for partition, part in parts.items():
        packed = batches[TopicPartition(topic, partition)] = []
        for first in range(0, len(part), BATCH_RECORDS):
            sent = part[first : first + BATCH_RECORDS]
            builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
            for place, (key, value, at_ms) in enumerate(sent):
                builder.append(place, at_ms, key, value, [])
            # The base offset is in front of what the checksum covers.
            packed.append((len(sent), first.to_bytes(8) + bytes(builder.build())[8:]))
        packed.reverse()
    return batches


class _Source:
    """`actors.ports.Source` of all partitions. Nothing is fetched before `begins` is set."""

    def __init__(self, batches: Batches, records_per_s: int, room: Any) -> None:
        self.begins = False
        self.ends = {source: sum(count for count, _ in waiting) for source, waiting in batches.items()}
        self._batches = batches
        self._positions = dict.fromkeys(batches, 0)
        self._records_per_s = records_per_s
        self._room = room

    async def poll(self, wanted: Iterable[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, Sequence[Any]]:
        found: dict[TopicPartition, Sequence[Any]] = {}
        for source in wanted if self.begins else ():
            if waiting := self._batches[source]:
                found[source] = records = list(DefaultRecordBatch(waiting.pop()[1]))
                self._positions[source] += len(records)
        count = sum(map(len, found.values()))
        await asyncio.sleep(count / self._records_per_s if count else timeout_s)
        return found

    def start_from(self, source: TopicPartition, offset: int, topic_id: str = "") -> None:
        self._room()

    def stop_delivery(self, source: TopicPartition) -> None: ...

    def has_room(self) -> None:
        self._room()

    def position(self, source: TopicPartition) -> int | None:
        return self._positions[source]

    def end_offset(self, source: TopicPartition) -> int | None:
        return self.ends[source]

    stable_offset = end_offset

    def check(self) -> None: ...


class _Writer(FakeWriter):
    """Packs commits as a writer to brokers does, and throws them away; those of takeovers go to the cluster."""

    def __init__(self, cluster: Any, network: Any, commit_s: float) -> None:
        super().__init__(cluster, network, transactional_id="whole:worker")
        self.committed: dict[TopicPartition, int] = {}
        self.bytes = 0
        self.is_packing = False
        self._commit_s = commit_s
        self._ends: dict[TopicPartition, int] = defaultdict(int)

    async def partitions_of(self, topic: str) -> Sequence[int]:
        return range(PARTITIONS)

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        if not self.is_packing:
            return await super().write(identity, batches)
        client: Any = self
        for batch in batches:
            for topic, writes in batch.changelogs.items():
                self._pack(topic, changelog_records(writes, 0))
                self._ends[TopicPartition(topic, batch.partition)] += len(writes)
            self.committed |= {source: place.offset for source, place in batch.offsets.items()}
        outputs = await by_partition(client, (output for batch in batches for output in batch.outputs))
        for partition, sent in outputs.items():
            self._pack(partition.topic, output_records(sent, 0))
        await asyncio.sleep(self._commit_s)
        return [
            CommitReceipt({topic: self._ends[TopicPartition(topic, batch.partition)] for topic in batch.changelogs})
            for batch in batches
        ]

    def _pack(self, topic: str, records: Iterable[Any]) -> None:
        self.bytes += sum(len(batch.encode(1, 0, 0)) for batch in pack(records, 1_000_000, 0))


class _Machine(Machine):
    """The worker of a job, with the job's input."""

    def __init__(self, scenario: Scenario, records: int, folder: Path, *, records_per_s: int, commit_s: float) -> None:
        super().__init__(_app(scenario.work), partitions=PARTITIONS, effects=None, now=None)
        self._folder, self._resources = folder, RocksResources(databases=PARTITIONS)
        self._opened: list[RocksStore] = []
        self._records_per_s, self._commit_s = records_per_s, commit_s
        count = records if scenario.other is None else records // 2
        begin_ms = int(last_full_hour().timestamp() * 1000) - 3_600_000
        self._input = _batches(
            "input",
            ((*one, scenario.at_ms(begin_ms, count, place)) for place, one in enumerate(scenario.records(count))),
        )
        if scenario.other is not None:
            others, begin_ms = list(scenario.other(count)), begin_ms + scenario.other_after_ms
            times = (scenario.at_ms(begin_ms, len(others), place) for place in range(len(others)))
            self._input |= _batches("other", ((*one, at_ms) for one, at_ms in zip(others, times, strict=True)))

    def measure(self) -> float:
        """Return the microseconds of CPU time per record."""
        self._writer.is_packing = self._source.begins = True
        began_s = time.process_time()
        self._run(self._all_committed())
        return (time.process_time() - began_s) / sum(self._source.ends.values()) * 1e6

    async def _all_committed(self) -> None:
        while self._writer.committed != self._source.ends:
            self._raise_failure()
            await asyncio.sleep(0.01)

    async def _main(self) -> None:
        late, logs = LateSource(), FakeLogs(self._cluster, self._network)
        owners_topic = self._setup.owners_topic
        self._writer = _Writer(self._cluster, self._network, self._commit_s)
        committer = Committer(self._writer, self._app.actor_options.commit_max_bytes, longest_rest_s=0.1)
        self._worker = worker = Worker(
            self._specs,
            source=late,
            services=TaskServices(
                group=FakeGroupView(self._cluster, self._network),
                logs=logs,
                owners=KafkaOwners(owners_topic, logs),
                restorer=Restorer(logs, self._clock, clock_skew_margin_ms=0),
                stores=StoreCache(self._open_store, lambda store, partition: None),
                sink=late,
                clock=self._clock,
                resolve_output=self._outputs,
                encode_owner=lambda record: encode_owner(owners_topic, record),
            ),
            task_settings=self._setup.task_settings("whole:worker"),
            revoke_s=5.0,
            member=committer.member,
            task_log=committer.new_log,
            on_failure=self._failures.append,
        )
        self._source = late.source = _Source(self._input, self._records_per_s, worker.room)
        worker.assigned(Identity("driver", self._lives), list(self._input))
        await worker.run()

    def _open_store(self, store: str, partition: int) -> RocksStore:
        opened = RocksStore.open(self._folder / f"{store}-{partition}", resources=self._resources)
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        super().close()
        for opened in self._opened:
            opened.close()


if __name__ == "__main__":
    main()
