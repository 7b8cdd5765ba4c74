"""The plan of a recompute: the offsets of the inputs, the changelogs, and the state to begin with.

The replay ends at the group's committed offsets, since they say which records are handled, also those that wrote
nothing; where the group has no offset any more, at the highest source offset in the changelogs. The offsets are read
first and the changelogs' ends after them, so that all that belongs to the offsets is before the ends: writes of later
records are told by their source offset and left out. So it doesn't matter that workers go on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.apps import load_replayer
from spark_replay.errors import AppError, InputError, LogTooShortError, TargetError, UnknownTopicError
from spark_replay.fold.rebuilt import SUMMARY, read_rebuild, read_summary
from spark_replay.sources.brokers.topic import CommittedOffset, Topic, asking
from spark_replay.sources.changelog import input_of, metadata_fields, read_rows
from spark_replay.sources.columns import by_input, by_partition
from spark_replay.sources.kafka import KafkaSource, kafka
from spark_replay.sources.reading import reading
from stores._core.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SETTLE_S = 15.0
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The offsets of one input, by partition.

    Attributes:
        topic: The input as it is now.
        starts: The first offset that is replayed.
        bounds: The offset that the replay stops before.
        bound_by: The origin of the bound: `committed` or `changelog`.
        metadata: That of the group's committed offset.
    """

    topic: Topic
    starts: tuple[int, ...]
    bounds: tuple[int, ...]
    bound_by: tuple[str, ...]
    metadata: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """The plan of a recompute; made by `plan_recompute`.

    Attributes:
        kafka: Kafka, as a source of any topic.
        module: The app's.
        actor: The actor's name.
        inputs: Its inputs in the order of their declaration.
        group: The workers' consumer group.
        changelogs: By store, those that are compared.
        until_ms: By partition, Unix milliseconds up to which timers and expiries are replayed, None where time changes
            nothing.
        from_state: By store, the rebuild that the replay begins with; empty if with nothing.
        turns: By input, what goes first among records of one timestamp, lowest first.
        timed: The inputs whose values have their time in a field.
    """

    kafka: KafkaSource
    module: str
    actor: str
    inputs: tuple[Input, ...]
    group: str
    changelogs: Mapping[str, Topic]
    until_ms: tuple[int | None, ...]
    from_state: Mapping[str, Path]
    turns: tuple[int, ...] = ()
    timed: Collection[str] = ()

    @property
    def input(self) -> str:
        """The inputs' names."""
        return ", ".join(each.topic.name for each in self.inputs)

    @property
    def bounds(self) -> list[tuple[int, ...]]:
        """By input and partition, the offset that the replay stops before."""
        return [each.bounds for each in self.inputs]

    @property
    def offsets(self) -> int:
        """The number of offsets of the inputs that are read, markers and aborted records included."""
        return sum(sum(each.bounds) - sum(each.starts) for each in self.inputs)

    @property
    def summary(self) -> dict[str, Any]:
        """The plan for a machine."""
        return {
            "app": self.module,
            "actor": self.actor,
            "input": self.input,
            "changelogs": {store: topic.name for store, topic in self.changelogs.items()},
            "from_state": {store: str(folder) for store, folder in self.from_state.items()},
            "offsets": self.offsets,
            "changelog_offsets": sum(sum(topic.ends) - sum(topic.starts) for topic in self.changelogs.values()),
            "partitions": [
                {"topic": each.topic.name, "partition": number, "start": start, "end": end, "end_by": by}
                for each in self.inputs
                for number, (start, end, by) in enumerate(zip(each.starts, each.bounds, each.bound_by, strict=True))
            ],
        }


def plan_recompute(
    spark: SparkSession,
    brokers: str,
    module: str,
    *,
    actor: str | None = None,
    store: str | None = None,
    from_state: Path | None = None,
    accept_missing_input: bool = False,
    kafka_options: Mapping[str, str] | None = None,
) -> Recompute:
    """Look what there is, and decide what is read; nothing is replayed.

    Args:
        spark: A session with the Kafka connector, as `spark_session` returns it.
        brokers: `host:port,…`.
        module: The app's module, `package.module` or `package.module:app`, as `faust -A` takes it.
        actor: Whose input is replayed; may be left out if the app has one actor only.
        store: Which of its stores is compared; all that follow from the input if left out.
        from_state: A folder with a rebuild of each of the actor's stores, made at one point of the input: the replay
            begins there.
        accept_missing_input: Whether to go on if the first inputs, or those behind the state, are deleted.
        kafka_options: Settings of the Kafka client, such as `security.protocol`.

    Raises:
        AppError: There is no such module, app, actor or store.
        InputError: Inputs are missing, or topics and offsets contradict each other.
        TargetError: `from_state` isn't what it has to be.
        BrokerError: The brokers don't answer.
        UnknownTopicError: They don't have the input, or a changelog.
    """
    log = kafka(spark, brokers, "", kafka_options)
    replayer = load_replayer(module, actor)
    chosen = _chosen(replayer, store)
    topics = [_described(log, name, f"the input of actor {replayer.actor}") for name in replayer.topics]
    with asking(spark, brokers, log.options, f"the offsets of group {replayer.group}") as admin:
        committed = admin.committed(replayer.group, topics)
    folders = {} if from_state is None else _rebuilds(from_state, replayer)
    wanted = chosen | ({**replayer.changelogs, **replayer.others} if folders or replayer.follows_time else {})
    changelogs = {name: _settled(log, topic, f"the changelog of store {name}") for name, topic in wanted.items()}
    facts, inputs = _Facts(log, changelogs), list[Input]()
    for place, (source, offsets) in enumerate(zip(topics, committed, strict=True)):
        _require_fitting(source, changelogs, folders)
        require_same_topics(replayer, source, changelogs, offsets, facts.first_epoch)
        bounds, bound_by = _bounds(replayer, source, offsets, facts, place)
        kept = facts.next_kept(folders)
        starts = tuple(kept.get((number,), 0) for number in range(source.partition_count))
        _require_inputs(replayer, source, starts, bounds, is_from_state=bool(folders), accepted=accept_missing_input)
        starts = tuple(max(first, start) for first, start in zip(source.starts, starts, strict=True))
        ends = tuple(max(start, bound) for start, bound in zip(starts, bounds, strict=True))
        metadata = tuple(offset.metadata for offset in offsets)
        inputs.append(Input(topic=source, starts=starts, bounds=ends, bound_by=bound_by, metadata=metadata))
    ends_of_all = [each.bounds for each in inputs]
    if not any(map(any, ends_of_all)):
        raise InputError(
            f"group {replayer.group} has committed nothing of {', '.join(replayer.topics)} and there is no state: did "
            "a worker ever run?"
        )
    return Recompute(
        kafka=log,
        module=module,
        actor=replayer.actor,
        inputs=tuple(inputs),
        group=replayer.group,
        changelogs={name: changelogs[name] for name in chosen},
        until_ms=facts.last_ms(ends_of_all) if replayer.follows_time else (None,) * len(ends_of_all[0]),
        from_state=folders,
        turns=tuple(replayer.turns),
        timed=replayer.timed,
    )


def _require_fitting(source: Topic, changelogs: Mapping[str, Topic], folders: Mapping[str, Path]) -> None:
    """Check that the changelogs have the input's partitions, and that the rebuilds are of these changelogs."""
    for name, topic in changelogs.items():
        if topic.partition_count != source.partition_count:
            raise InputError(
                f"{source.name} has {counted(source.partition_count, 'partition')} and {topic.name}, the changelog of "
                f"{name}, has {topic.partition_count}: one of them was re-created"
            )
        if name in folders and (kept_id := read_summary(folders[name]).topic_id) not in ("", topic.topic_id):
            raise TargetError(
                f"{folders[name]} is a rebuild of a topic {topic.name} with the id {kept_id}, and now it has the id "
                f"{topic.topic_id}: the topic was re-created since, or this is another cluster"
            )


def require_same_topics(
    replayer: Any,
    source: Topic,
    changelogs: Mapping[str, Topic],
    committed: Sequence[CommittedOffset],
    first_epoch: Callable[[int], int | None],
) -> None:
    """Check that the group's last commits were of these topics, and the state is of this input only.

    Raises:
        InputError: A topic was re-created after the commit. The error names both ids.
    """
    for number, (_, metadata) in enumerate(committed):
        mark = replayer.topics_of(metadata)
        topics = [(source, mark.input_id), *((topic, mark.changelog_id(name)) for name, topic in changelogs.items())]
        for topic, known_id in topics:
            if known_id and topic.topic_id and known_id != topic.topic_id:
                raise InputError(
                    f"when group {replayer.group} made its last commit of {source.name} partition {number}, "
                    f"{topic.name} had the id {known_id}, and now it has the id {topic.topic_id}: the topic was "
                    "re-created since, or this is another cluster. Offsets of one don't apply to the other"
                )
        if mark.is_recreated and (first := first_epoch(number)) is not None and first < mark.since:
            raise InputError(
                f"{source.name} with the id {source.topic_id} replaces another topic: partition {number} has "
                f"state of the owners' epochs {first} to {mark.since - 1}, whose input offsets are of the former "
                "topic. That state can't be compared with a replay of the new topic alone"
            )


def _chosen(replayer: Any, store: str | None) -> dict[str, str]:
    if store is None:
        if not replayer.changelogs:
            raise AppError(f"actor {replayer.actor} keeps no state: there is nothing to compare")
        return dict(replayer.changelogs)
    stores = {**replayer.changelogs, **replayer.others}
    if store not in stores:
        raise AppError(f"actor {replayer.actor} has no store {store!r}, it has {', '.join(stores) or 'none'}")
    return {store: stores[store]}


def _described(log: KafkaSource, name: str, what: str) -> Topic:
    try:
        return replace(log, topic=name).describe()
    except UnknownTopicError as error:
        raise UnknownTopicError(
            f"{log.brokers} has no topic {name!r}, {what}: is this the right cluster, did a worker of the app ever run?"
        ) from error


def _settled(log: KafkaSource, name: str, what: str) -> Topic:
    """Describe a changelog when all transactions that were open at the first look are over.

    Raises:
        InputError: One of them stays open.
    """
    topic = _described(log, name, what)
    wanted, until_s = topic.high_watermarks, time.monotonic() + _SETTLE_S
    while any(end < high for end, high in zip(topic.ends, wanted, strict=True)):
        if time.monotonic() > until_s:
            raise InputError(f"{name}, {what}, has a transaction that stays open: try again when it is over")
        time.sleep(_LOOK_S)
        topic = _described(log, name, what)
    return topic


def _bounds(
    replayer: Any, source: Topic, committed: Sequence[CommittedOffset], facts: _Facts, place: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    bounds, reasons = [], []
    for number, (offset, _) in enumerate(committed):
        bound = facts.next_sources.get((number, place), 0) if offset is None else offset
        if bound > source.high_watermarks[number]:
            said = f"group {replayer.group} has committed" if offset is not None else "the state is of"
            raise InputError(
                f"{source.name} partition {number} ends at {source.high_watermarks[number]} and {said} offset {bound}: "
                "the topic was re-created, or this is another cluster"
            )
        bounds.append(bound)
        reasons.append("changelog" if offset is None else "committed")
    return tuple(bounds), tuple(reasons)


def _require_inputs(
    replayer: Any, source: Topic, starts: Sequence[int], bounds: Sequence[int], *, is_from_state: bool, accepted: bool
) -> None:
    """Check that the records from where the replay has to begin are there, or that it's `accepted` that they aren't.

    Raises:
        InputError: Some are gone; `LogTooShortError` if they are behind the state that the replay begins with.
    """
    deleted = ""
    if source.name in replayer.forwarded:
        deleted = " Workers delete from this topic what they have handled, each 30 seconds."
    for number, (start, bound) in enumerate(zip(starts, bounds, strict=True)):
        first = source.starts[number]
        if first <= start or not bound or accepted:
            continue
        if is_from_state:
            raise LogTooShortError(
                f"{source.name} partition {number} begins at offset {first}, after the state's {start}: the inputs in "
                f"between are gone.{deleted} Take a later state, or go on without them (--accept-missing-input), which "
                "changes nothing if they wrote nothing"
            )
        begin = "Begin with the state of that point or a later one (--from-state), or accept"
        if len(replayer.topics) > 1:
            begin = "Actors with several inputs can't begin with a state (--from-state). Accept"
        raise InputError(
            f"{source.name} partition {number} begins at offset {first}, not 0: the inputs before are gone.{deleted} "
            f"{begin} that the result isn't the same (--accept-missing-input)"
        )


@dataclass(frozen=True)
class _Facts:
    """The facts of the changelogs that the replay needs; each is read at most once."""

    log: KafkaSource
    changelogs: Mapping[str, Topic]

    @cached_property
    def next_sources(self) -> dict[tuple[int, ...], int]:
        """By partition and input, the offset behind the last record that a changelog names."""
        return self._grouped(self._rows(), F.max("source_offset") + 1, "partition", "input")

    @cached_property
    def _epochs(self) -> dict[tuple[int, ...], int]:
        return self._grouped(self._rows().where(F.col("epoch") > 0), F.min("epoch"))

    def first_epoch(self, partition: int) -> int | None:
        """Return the lowest epoch of an owner in a partition of the changelogs, None if no owner wrote there."""
        return self._epochs.get((partition,))

    def next_kept(self, folders: Mapping[str, Path]) -> dict[tuple[int, ...], int]:
        """Return by partition the offset behind the last input that the rebuilds know of."""
        frames = []
        for store, folder in folders.items():
            ends = by_partition([part.end_offset for part in read_summary(folder).partitions])
            frames += [self._rows_of(store).where(F.col("offset") < ends), read_rebuild(self.log.spark, folder)]
        sources = [rows.select("partition", "source_offset") for rows in frames]
        return self._grouped(_united(sources), F.max("source_offset") + 1) if frames else {}

    def last_ms(self, bounds: Sequence[Sequence[int]]) -> tuple[int | None, ...]:
        """Return when the last write was made that belongs to records before the inputs' bounds, by partition."""
        rows = self._rows().where(F.col("source_offset") < by_input(bounds, F.col("input")))
        last = self._grouped(rows, F.unix_millis(F.max("timestamp")))
        return tuple(last.get((number,)) for number in range(len(bounds[0])))

    def _rows(self) -> DataFrame:
        return _united([self._rows_of(store) for store in self.changelogs])

    def _rows_of(self, store: str) -> DataFrame:
        changelog = self.changelogs[store]
        metadata = F.col("metadata")
        fields = metadata_fields(metadata) | {"input": input_of(metadata)}
        return read_rows(replace(self.log, topic=changelog.name), changelog).withColumns(fields)

    def _grouped(self, rows: DataFrame, value: Column, *by: str) -> dict[tuple[int, ...], int]:
        with reading(f"the changelogs {', '.join(topic.name for topic in self.changelogs.values())}"):
            groups = rows.groupBy(*by or ("partition",)).agg(value.alias("value")).where("value IS NOT NULL").collect()
        return {tuple(row)[:-1]: row["value"] for row in groups}


def _united(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda left, right: left.unionAll(right), frames)


def _rebuilds(folder: Path, replayer: Any) -> dict[str, Path]:
    """Find the rebuild of each store in a folder, or right below it."""
    if len(replayer.topics) > 1:
        raise TargetError(
            f"--from-state {folder}: actor {replayer.actor} reads {', '.join(replayer.topics)}. A changelog keeps the "
            "last write of each key, which is of one input: a state doesn't say how far the others had been handled. "
            "Leave it out: the replay begins with the inputs' first records"
        )
    summaries = sorted([*folder.glob(SUMMARY), *folder.glob(f"*/{SUMMARY}")])
    by_changelog = {read_summary(path.parent).changelog: path.parent for path in summaries}
    wanted = {**replayer.changelogs, **replayer.others}
    missing = [topic for topic in wanted.values() if topic not in by_changelog]
    if missing:
        raise TargetError(
            f"{folder} has no rebuild of {', '.join(missing)}: --from-state takes a folder with a rebuild of each of "
            "the actor's stores, made at the same point"
        )
    return {store: by_changelog[topic] for store, topic in wanted.items()}
