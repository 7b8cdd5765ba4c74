"""The plan of a recompute: the offsets of the inputs, the changelogs, and the state to begin with.

The replay ends at the group's committed offsets, since they say which records are handled, also those that wrote
nothing; where the group has no offset any more, at the highest source offset in the changelogs. The offsets are read
first and the changelogs' ends after them, so that all that belongs to the offsets is before the ends: writes of later
records are told by their source offset and left out. So it doesn't matter that workers go on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.apps import load_replayer
from spark_replay.errors import AppError, InputError, LogTooShortError, ReadError, TargetError, UnknownTopicError
from spark_replay.fold.rebuilt import SUMMARY, Rebuilt, read_rebuild, read_summary
from spark_replay.sources.brokers.topic import CommittedOffset, Topic, asking
from spark_replay.sources.changelog import input_of, metadata_fields, read_rows
from spark_replay.sources.columns import by_input
from spark_replay.sources.kafka import kafka
from spark_replay.sources.reading import reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

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
        brokers, kafka_options: Where Kafka is.
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

    brokers: str
    kafka_options: Mapping[str, str]
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
            "changelog_offsets": sum(
                end - start
                for topic in self.changelogs.values()
                for start, end in zip(topic.starts, topic.ends, strict=True)
            ),
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
    options = dict(kafka_options or {})
    replayer = load_replayer(module, actor)
    chosen = _chosen(replayer, store)
    what = f"the input of actor {replayer.actor}"
    topics = [_described(spark, brokers, name, options, what) for name in replayer.topics]
    with asking(spark, brokers, options, f"the offsets of group {replayer.group}") as admin:
        committed = admin.committed(replayer.group, topics)
    folders = {} if from_state is None else _rebuilds(from_state, replayer)
    wanted = chosen | (_all_stores(replayer) if folders or replayer.follows_time else {})
    changelogs = {name: _settled(spark, brokers, topic, options, name) for name, topic in wanted.items()}
    facts = _Facts(spark, brokers, changelogs, options)
    inputs = []
    for place, (source, offsets) in enumerate(zip(topics, committed, strict=True)):
        _require_fitting(source, changelogs, folders)
        require_same_topics(replayer, source, changelogs, offsets, facts.first_epoch)
        bounds, bound_by = _bounds(replayer, source, offsets, partial(facts.next_source, place))
        starts = tuple(facts.next_kept(number, folders) if folders else 0 for number in range(source.partition_count))
        _require_inputs(replayer, source, starts, bounds, is_from_state=bool(folders), accepted=accept_missing_input)
        starts = tuple(max(first, start) for first, start in zip(source.starts, starts, strict=True))
        ends = tuple(max(start, bound) for start, bound in zip(starts, bounds, strict=True))
        metadata = tuple(offset.metadata for offset in offsets)
        inputs.append(Input(topic=source, starts=starts, bounds=ends, bound_by=bound_by, metadata=metadata))
    ends_of_all = [each.bounds for each in inputs]
    _require_some(replayer, ends_of_all)
    return Recompute(
        brokers=brokers,
        kafka_options=options,
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


def _require_some(replayer: Any, ends: Sequence[Sequence[int]]) -> None:
    """Check that something was handled."""
    if not any(map(any, ends)):
        raise InputError(
            f"group {replayer.group} has committed nothing of {', '.join(replayer.topics)} and there is no state: did "
            "a worker ever run?"
        )


def _require_fitting(source: Topic, changelogs: Mapping[str, Topic], folders: Mapping[str, Path]) -> None:
    """Check that the changelogs have the input's partitions, and that the rebuilds are of these changelogs."""
    for name, topic in changelogs.items():
        if topic.partition_count != source.partition_count:
            raise InputError(
                f"{source.name} has {source.partition_count} partitions and {topic.name}, the changelog of {name}, "
                f"has {topic.partition_count}: one of them was re-created"
            )
        if name in folders and (kept_id := _summary(folders[name]).topic_id) not in ("", topic.topic_id):
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

    Args:
        replayer: What `spark_replay.apps` describes.
        source: The input as it is now.
        changelogs: By store, its changelog as it is now.
        committed: The group's offset of each partition.
        first_epoch: Returns the lowest owner's epoch in a partition of the changelogs, None if there is no state.

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
    stores = _all_stores(replayer)
    if store not in stores:
        raise AppError(f"actor {replayer.actor} has no store {store!r}, it has {', '.join(stores) or 'none'}")
    return {store: stores[store]}


def _all_stores(replayer: Any) -> dict[str, str]:
    return {**replayer.changelogs, **replayer.others}


def _described(spark: SparkSession, brokers: str, name: str, options: Mapping[str, str], what: str) -> Topic:
    try:
        return kafka(spark, brokers, name, options).describe()
    except UnknownTopicError as error:
        raise UnknownTopicError(
            f"{brokers} has no topic {name!r}, {what}: is this the right cluster, did a worker of the app ever run?"
        ) from error


def _settled(spark: SparkSession, brokers: str, name: str, options: Mapping[str, str], store: str) -> Topic:
    """Describe a changelog when all transactions that were open at the first look are over.

    Raises:
        InputError: One of them stays open.
    """
    what = f"the changelog of store {store}"
    topic = _described(spark, brokers, name, options, what)
    wanted, until_s = topic.high_watermarks, time.monotonic() + _SETTLE_S
    while any(end < high for end, high in zip(topic.ends, wanted, strict=True)):
        if time.monotonic() > until_s:
            raise InputError(f"{name}, {what}, has a transaction that stays open: try again when it is over")
        time.sleep(_LOOK_S)
        topic = _described(spark, brokers, name, options, what)
    return topic


def _bounds(
    replayer: Any, source: Topic, committed: Sequence[CommittedOffset], next_source: Callable[[int], int]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    bounds, reasons = [], []
    for number, (offset, _) in enumerate(committed):
        bound = next_source(number) if offset is None else offset
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


@dataclass(slots=True)
class _Facts:
    """The facts of the changelogs that the replay needs; each is read at most once."""

    _spark: SparkSession
    _brokers: str
    _changelogs: Mapping[str, Topic]
    _options: Mapping[str, str]
    _next: dict[int, dict[int, int]] = field(default_factory=dict)
    _kept: dict[int, int] | None = None
    _epochs: dict[int, int] | None = None

    def next_source(self, place: int, partition: int) -> int:
        """Return the offset behind the last record of an input that a changelog names, 0 if none does."""
        if place not in self._next:
            self._next[place] = self._highest(self._rows().where(F.col("input") == place))
        return self._next[place].get(partition, 0)

    def first_epoch(self, partition: int) -> int | None:
        """Return the lowest epoch of an owner in a partition of the changelogs, None if no owner wrote there."""
        if self._epochs is None:
            owned = self._rows().where(F.col("epoch") > 0)
            self._epochs = self._by_partition(owned, F.min("epoch"))
        return self._epochs.get(partition)

    def next_kept(self, partition: int, folders: Mapping[str, Path]) -> int:
        """Return the offset behind the last input that the rebuilds know of."""
        if self._kept is None:
            epochs = []
            for store, folder in folders.items():
                ends = {part.partition: part.end_offset for part in _summary(folder).partitions}
                place = F.element_at(
                    F.create_map(*(F.lit(n) for pair in ends.items() for n in pair)), F.col("partition")
                )
                kept = read_rebuild(self._spark, folder)
                log = self._rows_of(store).where(F.col("offset") < place)
                epochs += [self._highest(log), self._highest(kept)]
            numbers = {number for highest in epochs for number in highest}
            self._kept = {number: max(highest.get(number, 0) for highest in epochs) for number in numbers}
        return self._kept.get(partition, 0)

    def last_ms(self, bounds: Sequence[Sequence[int]]) -> tuple[int | None, ...]:
        """Return when the last write was made that belongs to records before the inputs' bounds, by partition."""
        rows = self._rows().where(F.col("source_offset") < by_input(bounds, F.col("input")))
        last = self._by_partition(rows, F.unix_millis(F.max("timestamp")))
        return tuple(last.get(number) for number in range(len(bounds[0])))

    def _rows(self) -> DataFrame:
        frames = [self._rows_of(store) for store in self._changelogs]
        united = frames[0]
        for frame in frames[1:]:
            united = united.unionAll(frame)
        return united

    def _rows_of(self, store: str) -> DataFrame:
        changelog = self._changelogs[store]
        rows = read_rows(kafka(self._spark, self._brokers, changelog.name, self._options), changelog)
        metadata = metadata_fields(F.col("metadata"))
        return rows.select(
            "partition",
            "offset",
            "timestamp",
            input_of(F.col("metadata")).alias("input"),
            metadata["source_offset"].alias("source_offset"),
            metadata["epoch"].alias("epoch"),
        )

    def _highest(self, rows: DataFrame) -> dict[int, int]:
        return self._by_partition(rows, F.max("source_offset") + 1)

    def _by_partition(self, rows: DataFrame, value: Any) -> dict[int, int]:
        with reading(f"the changelogs {', '.join(topic.name for topic in self._changelogs.values())}"):
            values: list[Row] = rows.groupBy("partition").agg(value.alias("found")).collect()
        return {row["partition"]: row["found"] for row in values if row["found"] is not None}


def _rebuilds(folder: Path, replayer: Any) -> dict[str, Path]:
    """Find the rebuild of each store in a folder, or right below it."""
    if len(replayer.topics) > 1:
        raise TargetError(
            f"--from-state {folder}: actor {replayer.actor} reads {', '.join(replayer.topics)}. A changelog keeps the "
            "last write of each key, which is of one input: a state doesn't say how far the others had been handled. "
            "Leave it out: the replay begins with the inputs' first records"
        )
    summaries = sorted([*folder.glob(SUMMARY), *folder.glob(f"*/{SUMMARY}")])
    by_changelog = {_summary(path.parent).changelog: path.parent for path in summaries}
    wanted = _all_stores(replayer)
    missing = [topic for topic in wanted.values() if topic not in by_changelog]
    if missing:
        raise TargetError(
            f"{folder} has no rebuild of {', '.join(missing)}: --from-state takes a folder with a rebuild of each of "
            "the actor's stores, made at the same point"
        )
    return {store: by_changelog[topic] for store, topic in wanted.items()}


def _summary(folder: Path) -> Rebuilt:
    try:
        return read_summary(folder)
    except ReadError as error:
        raise TargetError(str(error)) from error
