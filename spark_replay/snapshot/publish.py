"""Writes a state into a new, empty changelog: on another cluster, with other partitions, or corrected.

The write metadata of the new records is no owner's: epoch 0 and input offset 0, whose meaning is "of no input", and
the expiry as it was. The offsets of the former input say nothing of the new one. A worker's takeover takes such a
state for one that no committed offset contradicts, so a fresh group begins where its settings say; and the first
owner's own writes have write metadata again by which an operator's reset is noticed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import gcd
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.apps import load_app, load_replayer
from spark_replay.errors import (
    AppError,
    PlacementError,
    PointError,
    ReadError,
    ReplayError,
    TargetError,
    UnknownTopicError,
    WrongTopicError,
)
from spark_replay.fold.fold import fields
from spark_replay.fold.placement import home_partition, message_key
from spark_replay.fold.points import AsOf
from spark_replay.fold.rebuild import folded_at
from spark_replay.fold.rebuilt import Rebuilt, read_rebuild, read_summary
from spark_replay.fold.windows import held_windows
from spark_replay.printing import printable
from spark_replay.session import first_line
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Settings, Topic, client_options
from spark_replay.sources.digests import digests
from spark_replay.sources.folders import Folder
from spark_replay.sources.kafka import KafkaSource
from spark_replay.sources.reading import keep, reading
from stores._core.layouts import KEYS, OWN, own_rows
from stores._core.printable import counted
from stores._core.record import METADATA_HEADER, NEVER
from stores._core.replay import NO_METADATA
from stores._core.windows import VALUES, with_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VISIBLE_S = 30.0
_EXPIRY_BYTES = 8
_OVERHEAD_BYTES = 1_024
_AS_THE_BROKERS_SAY = -1
_DIGEST_BYTES = 16
_CHANGELOG = re.compile(r".+--.+-changelog")
_TRANSFORMED = (None, "key", "task", "windows")
_OTHER_KEY = (
    "the transform returned another key for the key {} of windows or a join, or left out some of its values. What is "
    "closed is known by partition and key: return the same key, or leave out all values of a key"
)

Transform = Callable[[bytes, bytes], tuple[bytes, bytes] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The result of `publish_state`; of a dry run what it would be.

    Attributes:
        topic: The new changelog.
        partitions: How many it has.
        keys: How many were written.
        size_bytes: Of these keys and their values.
        left_out: How many keys the transform left out.
        refused: In a dry run, each reason for which nothing would be written.
        notes: What else has to be known of the state.
    """

    topic: str
    partitions: int
    keys: int
    size_bytes: int
    left_out: int
    refused: tuple[str, ...]
    notes: tuple[str, ...]


def publish_state(
    source: Source,
    target: KafkaSource,
    *,
    as_of: AsOf | str = "latest",
    rebuild: str | Path | None = None,
    partitions: int | None = None,
    layout: str | None = None,
    transform: Transform | None = None,
    dry_run: bool = False,
) -> Published:
    """Write the state that a changelog stands for into another topic.

    The topic is made like the changelog if it is missing. With another number of partitions each row goes where
    murmur2 puts the key of its message, and so does a key that the transform changed; others stay where they are.

    Args:
        source: The changelog. Of Kafka's, up to its end, no program writes to it: the app's workers are stopped.
        target: The new changelog.
        as_of: The point, as `--as-of` takes it.
        rebuild: A rebuild of the changelog, whose state is written in place of the log's.
        partitions: How many the new one has; as many as the old one if left out.
        layout: How a row has its message's key, as `decoder(store).layout` of an app says; None if that is unknown.
        transform: Executors call it with each key and value. It returns those to write, or None to leave the key out.
        dry_run: Whether to write nothing.

    Raises:
        TargetError: The new topic has records, or other settings or partitions than it needs.
        PlacementError: The rows can't be spread over other partitions.
        PointError: The state of some keys at the point is unknown.
        AppError: The transform failed, or returned something else, or a key twice.
        ReadError: Another program writes to a topic, or Spark couldn't read or write to the end.
        ReplayError: As `rebuild_state` and `read_rebuild`.
    """
    if source.spark.conf.get("spark.speculation", "false") == "true":
        raise TargetError("spark.speculation is on: a task that was given up may write old values later, switch it off")
    refused: list[str] = []

    def refuse(errors: Iterable[ReplayError]) -> None:
        for error in errors:
            if not dry_run:
                raise error
            refused.append(str(error))

    point, like = AsOf.of(as_of), _settings_of(source.live)
    summary = None if rebuild is None else read_summary(Folder(source.spark, rebuild, ReadError))
    topic = source.describe() if summary is None else _topic_of(source, summary)
    count, is_end = partitions or topic.partition_count, summary is None and source.live is not None and point == AsOf()
    refuse(_against_target(target, count, topic))
    if is_end and topic.ends != topic.high_watermarks:
        refuse([ReadError(f"a transaction is open in {topic.name}: stop the app's workers, and wait until it ends")])
    if summary is None or rebuild is None:
        rows, unknown, notes = _state(source, point)
    else:
        rows, unknown, notes = read_rebuild(source.spark, rebuild), summary.unknown, summary.notes
    is_same = transform is None and count == topic.partition_count
    with reading(str(source)):
        refuse(_against_state(rows, unknown, topic, layout, is_same=is_same, is_transformed=transform is not None))
        state = _with_own(_placed(rows, transform, topic, count, layout or "key"), rows, topic, count, layout, refuse)
        kept, sizes = state.where(F.col("key").isNotNull()), _sizes(state)
        refuse(_against_places(state, topic, count, layout))
        refuse(_against_rows(kept, sizes.pop("largest"), _settings_of(target) or like, is_same=is_same))
        if not dry_run:
            _write(kept, target, _ensure_target(target, count, topic, like))
            _require_published(kept, target)
    now = source.describe() if is_end else topic
    if (now.topic_id, now.high_watermarks) != (topic.topic_id, topic.high_watermarks):
        text = f"was written to while it was read: stop the app's workers, delete {target.topic}, start again"
        refuse([ReadError(f"{topic.name} {text}")])
    return Published(topic=target.topic, partitions=count, **sizes, refused=tuple(refused), notes=notes)


def publish_app(
    source_of: Callable[[str], Source],
    target: KafkaSource,
    app: str,
    *,
    live: KafkaSource | None,
    partitions: int,
    as_of: AsOf | str = "latest",
    transforms: Mapping[str, Transform] = MappingProxyType({}),
    dry_run: bool = False,
) -> tuple[Published, ...]:
    """Write the whole state of an app into changelogs of another app, with any number of partitions.

    Nothing is written if anything is refused. Workers of both apps are kept out of their groups until it is done.

    Args:
        source_of: Returns a changelog as a source.
        target: The new cluster; its topic is the new app's id.
        app: `module` or `module:app`.
        live: Any topic of the app's own cluster; None if the state isn't the newest one of that.
        partitions: How many each new changelog has.
        as_of: As of `publish_state`.
        transforms: Likewise, by store; of a window store also for what it keeps beside its windows. Those of windows
            and joins are called with a message's key and each value in a row, and return the same key.
        dry_run: As of `publish_state`.

    Raises:
        ReadError: A worker of one of the apps runs, or the app's inputs have records that aren't handled.
        ReplayError: As `publish_state`, and `AppError` if the app can't be imported or has no state.
    """
    loaded = load_app(app)
    replayers = [load_replayer(app, actor) for actor in loaded.actors]
    decoders = [loaded.decoder(store.name) for actor in loaded.actors.values() for store in actor.stores]
    if not decoders:
        raise AppError(f"app {app} has no state")
    for name in transforms.keys() - (wholes := {decoder.whole for decoder in decoders}):
        raise AppError(f"app {app} has no store {name!r} to transform, it has {', '.join(sorted(wholes))}")
    old_id, group, refused = str(loaded.conf.id), replayers[0].group, list[str]()

    def publish_all(*, is_trial: bool) -> list[Published]:
        options: dict[str, Any] = {"as_of": as_of, "partitions": partitions, "dry_run": is_trial}
        return [
            publish_state(
                source_of(log.changelog),
                replace(target, topic=f"{target.topic}--{log.changelog.removeprefix(f'{old_id}--')}"),
                layout=log.layout,
                transform=transforms.get(log.whole),
                **options,
            )
            for log in decoders
        ]

    with ExitStack() as stack:
        try:
            stack.enter_context(target.keep_out(target.topic + group.removeprefix(old_id)))
            if live is not None:
                stack.enter_context(live.keep_out(group))
                for topic in {topic for replayer in replayers for topic in replayer.topics}:
                    _require_handled(replace(live, topic=topic), group)
        except ReadError as error:
            if not dry_run:
                raise
            refused.append(str(error))
        done = publish_all(is_trial=True)
        refused += [reason for part in done for reason in part.refused]
        if refused and not dry_run:
            raise PlacementError(refused[0])
        if not dry_run:
            done = publish_all(is_trial=False)
    return (replace(done[0], refused=tuple(refused)), *(replace(part, refused=()) for part in done[1:]))


def _require_handled(source: KafkaSource, group: str) -> None:
    topic = source.describe()
    with source.asking() as admin:
        [offsets] = admin.committed(group, [topic])
    starts = tuple(at if done.offset is None else done.offset for at, done in zip(topic.starts, offsets, strict=True))
    if starts == topic.ends:
        return
    with reading(str(source)):
        behind = source.records(replace(topic, starts=starts)).groupBy("partition").count().limit(1).collect()
    for row in behind:
        number, count = row["partition"], row["count"]
        raise ReadError(
            f"not handled yet: {counted(count, 'record')} of {topic.name}[{number}], from offset {starts[number]} on. "
            "A topic with other partitions has other offsets: start the workers until the lag is 0"
        )


def _topic_of(source: Source, summary: Rebuilt) -> Topic:
    """Return the changelog of a rebuild, which may have outlived it, as it was at its point."""
    if summary.changelog != source.topic:
        raise WrongTopicError(f"it is a rebuild of {summary.changelog}, not of {source.topic}")
    ends = tuple(part.end_offset for part in summary.partitions)
    return Topic(source.topic, ends, ends, ends, deletes=summary.deletes)


def _state(source: Source, point: AsOf) -> tuple[DataFrame, int, tuple[str, ...]]:
    """Return a state as `read_rebuild` does, with expired keys, which their owner removes; unknown keys; and notes."""
    settled = folded_at(source, point, as_of_ms=0)
    writes = settled.writes(settled.marked.where(F.col("key").isNotNull() & ~F.col("unknown")))
    with reading(str(source)):
        unknown = settled.unknown.count()
    rows = fields(writes.where(F.col("last.value").isNotNull()))
    return rows, unknown, source.doubts(settled.point.ends(settled.topic))


def _placed(rows: DataFrame, transform: Transform | None, topic: Topic, count: int, layout: str) -> DataFrame:
    """Read a state, and return its new rows: `partition`, `key`, null if it is left out, `value`, `expires_at_ms`.

    `stray` has the former place of a key that moves and wasn't where murmur2 puts it: `partition` and `key`, else null.
    With another number of partitions, rows that a partition itself has are left out, and those past their retention.
    """
    before, pair = topic.partition_count, F.struct("key", "value")
    # where it is refused a dry run goes on without it
    if transform is not None and layout in _TRANSFORMED:
        apply = _applied(transform)
        if layout == "windows":
            # what is retained by no time is of a join of one with many
            apply = _applied_to_rows(apply, waits=not topic.deletes)
        # by Arrow, PySpark's default from 4.1 on, it would need pandas
        pair = F.udf(apply, "struct<key: binary, value: binary>", useArrow=False)("key", "value")
    if count != before and layout in OWN:
        rows = rows.where(~held_windows(rows, topic).past() & (F.col("key") != F.lit(OWN[layout][0])))
    expiry = F.coalesce("expires_at_ms", F.lit(NEVER)).alias("expires_at_ms")
    pairs = _with_message(rows, layout).select(
        F.struct("partition", "key", "message").alias("old"), expiry, pair.alias("pair")
    )
    pairs = keep(pairs.select("old", "expires_at_ms", "pair.*"))
    if transform is not None and layout == "windows":
        pairs = _without_keys(pairs)
    place, former = F.col("old.partition"), F.col("old.message")
    is_moved = F.lit(count != before) | (F.col("key") != F.col("old.key"))
    is_stray = is_moved & ~home_partition(former, before).eqNullSafe(place)
    homes = F.array(home_partition(F.col("key") if layout == "key" else former, count))
    if layout == "answers":
        # The key of the question's message is unknown: each partition that it may come to gets the answer.
        targets = F.sequence(F.lit(0), F.lit(count - 1))
        homes, is_stray = F.filter(targets, lambda home: (home - place) % gcd(before, count) == 0), F.lit(False)
    home = F.explode(F.when(is_moved, homes).otherwise(F.array(place))).alias("partition")
    return pairs.select(home, "key", "value", "expires_at_ms", F.when(is_stray, F.col("old")).alias("stray"))


def _without_keys(pairs: DataFrame) -> DataFrame:
    """Leave out all rows of each key of windows whose values the transform left out: their closes and headers too."""
    has_value = F.col("key").isNotNull() & F.substring("value", 1, 1).isin(*VALUES)
    counts = F.count_if(F.col("key").isNull()).alias("lost"), F.count_if(has_value).alias("kept")
    gone = keep(pairs.groupBy(F.col("old.message").alias("gone")).agg(*counts).where("lost > 0"))
    for row in gone.where("kept > 0").limit(1).collect():
        raise AppError(_OTHER_KEY.format(printable(row["gone"])))
    both = pairs.join(gone, F.col("old.message") == F.col("gone"), "left")
    return both.select("old", "expires_at_ms", F.when(F.col("gone").isNull(), F.col("key")).alias("key"), "value")


def _with_message(rows: DataFrame, layout: str) -> DataFrame:
    """Add `message`, the key of the message that a row is of, null if it is of none."""
    letter, message = F.substring("key", 1, 1), message_key(F.col("key"), layout if layout in KEYS else "key")
    rows = rows.withColumn("message", message)
    if layout != "parked":
        return rows
    # Slices of large messages have a digest of the key.
    digest = F.udf(lambda key: blake2b(bytes(key), digest_size=_DIGEST_BYTES).digest(), "binary", useArrow=False)
    lines = rows.select(F.col("message").alias("line")).distinct().where("line IS NOT NULL")
    is_slice = (letter == F.lit(b"s")) & (F.substring("key", 2, _DIGEST_BYTES) == F.col("digest"))
    joined = rows.join(lines.withColumn("digest", digest("line")), how="left", on=is_slice)
    return joined.withColumn("message", F.coalesce("message", "line"))


def _with_own(
    state: DataFrame,
    rows: DataFrame,
    topic: Topic,
    count: int,
    layout: str | None,
    refuse: Callable[[list[ReplayError]], None],
) -> DataFrame:
    """Add the rows that the partitions of another number themselves have, made of those of `rows`."""
    before = topic.partition_count
    if count == before or layout is None or layout not in OWN:
        return state
    key = OWN[layout][0]
    present = {row["partition"]: bytes(row["value"]) for row in rows.where(F.col("key") == F.lit(key)).collect()}
    merged: list[bytes | None] = []
    try:
        merged = own_rows(layout, [present.get(number) for number in range(before)], count)
    except ValueError as error:
        text = f"{topic.name}: what else its {counted(before, 'partition')} keep can't be merged into {count}: {error}"
        refuse([PlacementError(f"{text}. Publish to a multiple of {before}, where nothing is merged")])
    new = [(number, bytearray(key), bytearray(raw), NEVER) for number, raw in enumerate(merged) if raw is not None]
    own = state.sparkSession.createDataFrame(new, "partition int, key binary, value binary, expires_at_ms bigint")
    return state.unionByName(own, allowMissingColumns=True)


def _applied(transform: Transform) -> Callable[[bytes, bytes], Any]:
    def apply(key: bytes, value: bytes) -> Any:
        try:
            pair: Any = transform(bytes(key), bytes(value))
        except Exception as error:
            text = f"{type(error).__name__}: {first_line(error)}"
            raise AppError(f"the transform failed with the key {printable(key)}: {text}") from error
        if pair is None or (isinstance(pair, tuple) and [*map(type, pair)] == [bytes, bytes]):
            return pair
        raise AppError(f"the transform returned neither None nor (key, value), in bytes, for the key {printable(key)}")

    return apply


def _applied_to_rows(apply: Callable[[bytes, bytes], Any], *, waits: bool) -> Callable[[bytes, bytes], Any]:
    """Return a function of rows of windows, or of a join, that applies another one to each value of a message's key."""

    def apply_to_row(row: bytes, raw: bytes) -> Any:
        letter, pairs = bytes(row[:1]), list[Any]()
        key = bytes(row[KEYS["windows"].get(letter, (0, False))[0] :])

        def change(value: bytes) -> bytes:
            pairs.append(apply(key, value))
            return value if pairs[-1] is None else pairs[-1][1]

        value = with_values(bytes(raw), change, waits=waits and letter == b"j")
        keys = {pair and pair[0] for pair in pairs}
        if keys not in ({key}, {None}, set()):
            raise AppError(_OTHER_KEY.format(printable(key)))
        return None if None in keys else (row, value)

    return apply_to_row


def _against_target(target: KafkaSource, count: int, like: Topic) -> Iterator[ReplayError]:
    if _CHANGELOG.fullmatch(target.topic) is None:
        yield TargetError(f"{target.topic} isn't the name of a changelog, APP--STORE-changelog")
    settings = _settings_of(target)
    if settings is None:
        return
    topic, policy, wanted = target.describe(), settings.effective["cleanup.policy"], _policy(like)
    if any(topic.high_watermarks):
        yield TargetError(
            f"topic {target.topic} has, or had, records: a state is published into a new topic. Delete it, or choose "
            "another name"
        )
    if topic.partition_count != count:
        partitions = counted(topic.partition_count, "partition")
        yield TargetError(f"topic {target.topic} has {partitions}, not {count}: delete it")
    if sorted(policy.split(",")) != sorted(wanted.split(",")):
        yield TargetError(f"topic {target.topic} has cleanup.policy={policy}, not {wanted}: delete it")


def _against_state(
    rows: DataFrame, unknown: int, topic: Topic, layout: str | None, *, is_same: bool, is_transformed: bool
) -> Iterator[ReplayError]:
    if unknown:
        yield PointError(
            f"{topic.name}: unknown at the point is the state of {counted(unknown, 'key')}, written again later. "
            "An archive that was begun before the point has them (--archive)"
        )
    if is_transformed and layout not in _TRANSFORMED:
        yield PlacementError(f"{topic.name} has rows of the framework, which can't be transformed")
    elif not is_same and (layout or "key") == "key" and held_windows(rows, topic):
        yield PlacementError(
            f"{topic.name} is the changelog of a window store or a join: its rows are transformed, and go to other "
            "partitions, only with --app, which says where a row has its key"
        )


def _against_places(state: DataFrame, topic: Topic, count: int, layout: str | None) -> Iterator[ReplayError]:
    if topic.partition_count == 1 and count > 1 and layout in (None, "task"):
        yield PlacementError(
            f'{topic.name} has one partition, so that it is unknown whether its store has placement="task" and can\'t '
            "be spread over several. If it hasn't, add --placed-by-key, or --app"
        )
    for stray in state.where(F.col("stray").isNotNull()).select("stray.*").limit(1).collect():
        yield PlacementError(
            f"{topic.name} has keys in other partitions than murmur2 gives them ({bytes(stray['key'])[:60]!r} in "
            f'{stray["partition"]}): the store has placement="task", another producer wrote it, or it is of a message '
            'without a key, with one above 16 KiB, or that waits for its turn by order="time". It can\'t be '
            "spread over other partitions, nor have other keys"
        )


def _against_rows(kept: DataFrame, largest: int, settings: Settings | None, *, is_same: bool) -> Iterator[ReplayError]:
    if settings is not None and largest > int(settings.effective["max.message.bytes"]):
        yield TargetError(
            f"a key has {largest} bytes with its value, more than the new topic's max.message.bytes: make the topic "
            "with a higher one"
        )
    twice = kept.groupBy("partition", "key").count().where("count > 1").limit(1)
    for row in () if is_same else twice.collect():
        yield AppError(f"{row['count']} rows would have the key {printable(row['key'])} in one partition")


def _sizes(state: DataFrame) -> dict[str, int]:
    size = F.octet_length("key") + F.octet_length("value")
    columns = F.count("key"), F.sum(size), F.count_if(F.col("key").isNull()), F.max(size)
    names = ("keys", "size_bytes", "left_out", "largest")
    return {name: number or 0 for name, number in zip(names, state.agg(*columns).collect()[0], strict=True)}


def _ensure_target(target: KafkaSource, count: int, topic: Topic, like: Settings | None) -> Settings:
    """Create the new topic if it is missing, with the settings of the old one; return the settings that apply."""
    if _settings_of(target) is None:
        own, copies = ({}, _AS_THE_BROKERS_SAY) if like is None else (like.own, like.replication_factor)
        with target.asking() as admin:
            admin.make(target.topic, count, copies, {**own, "cleanup.policy": _policy(topic)})
    deadline_s = time.monotonic() + _VISIBLE_S
    while (settings := _settings_of(target)) is None:
        if time.monotonic() > deadline_s:
            raise UnknownTopicError(f"topic {target.topic} was made, and {target.brokers} still doesn't have it")
        time.sleep(0.1)
    return settings


def _policy(topic: Topic) -> str:
    """Return the cleanup.policy of a changelog like this one."""
    return "compact,delete" if topic.deletes else "compact"


def _settings_of(source: Source | None) -> Settings | None:
    """Return the settings of Kafka's topic, None if there is none."""
    if isinstance(source, KafkaSource):
        with suppress(UnknownTopicError), source.asking() as admin:
            return admin.settings(source.topic)
    return None


def _write(kept: DataFrame, target: KafkaSource, settings: Settings) -> None:
    client = client_options(target.brokers, target.options) | {
        "acks": "all",
        "max.request.size": str(max(1_048_576, int(settings.effective["max.message.bytes"])) + _OVERHEAD_BYTES),
    }
    # of no owner and no input
    expiry = F.unhex(F.lpad(F.hex("expires_at_ms"), 2 * _EXPIRY_BYTES, "0"))
    metadata = F.concat(F.lit(NO_METADATA[:-_EXPIRY_BYTES]), expiry)
    headers = F.array(F.struct(F.lit(METADATA_HEADER).alias("key"), metadata.alias("value"))).alias("headers")
    rows = kept.select(F.lit(target.topic).alias("topic"), "partition", "key", "value", headers)
    rows.write.format("kafka").options(**{f"kafka.{key}": value for key, value in client.items()}).save()


def _require_published(kept: DataFrame, target: KafkaSource) -> None:
    """Check that a rebuild of the new changelog has what was written; `ReadError` if it hasn't."""
    written, stored = (digests(rows, ("key", "value", "expires_at_ms")) for rows in (kept, _state(target, AsOf())[0]))
    for number in sorted(written.keys() | stored.keys()):
        if written.get(number) != stored.get(number):
            counts = [0 if side.get(number) is None else side[number].rows for side in (written, stored)]
            raise ReadError(
                f"{counted(counts[0], 'key')} written to {target.topic} partition {number}, and {counts[1]} in it, or "
                "other values: does another program write to it? Delete the topic, and publish again"
            )
