"""Checks of the group's offsets, and of what retention leaves of the inputs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from actors._core.task.takeover import LogBounds
from actors._faust.startup.progress import ranges
from actors._kafka.admin.control import TopicInfo
from actors._kafka.admin.owners import KafkaOwners
from actors._kafka.consume.logs import KafkaLogs
from actors.cli.doctor.brokers import Brokers
from actors.cli.doctor.report import Level, Result
from actors.ports import TopicPartition
from actors.runtime.clock import machine_ms

MAX_QUESTIONS = 32
"""How many questions to the brokers are under way at a time."""
_OFFSETS_KEPT = "offsets.retention.minutes"
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class _Seen:
    """An input partition.

    Attributes:
        committed: None where the group has no offset.
        bounds: its first offset, and its end.
        recent: the offset of the first record of the later half of the retention; None if unknown.
    """

    committed: int | None
    bounds: LogBounds
    recent: int | None


async def offsets(at: Brokers) -> AsyncIterator[Result]:
    """Check that the offset of each partition is there, and that retention doesn't overtake it."""
    inputs = await _inputs(at)
    kept = await _retentions(at, inputs)
    seen = await _look(at, inputs, kept)
    ran = await _partitions_that_ran(at)
    troubles: dict[tuple[str, Level, str, str], list[int]] = defaultdict(list)
    for source, one in seen.items():
        found = _trouble(one, (source.topic, source.partition) in ran)
        if found is not None:
            troubles[source.topic, *found].append(source.partition)
    for (topic, level, what, remedy), partitions in troubles.items():
        yield Result("offsets", level, f"topic {topic}, partitions {ranges(partitions)}: {what}", remedy)


def _trouble(one: _Seen, has_run: bool) -> tuple[Level, str, str] | None:
    bounds = one.bounds
    if one.committed is None:
        if not has_run:
            return None
        what = "the group has no committed offset any more, and had one"
        return Level.ERROR, what, "Choose one with `faust -A APP reset --to …`"
    if one.committed < bounds.start:
        return (
            Level.ERROR,
            "records were deleted before they were handled",
            "Raise retention.ms of the topic, and set allow_lost_input=True to go on at the first that is left",
        )
    if one.committed > bounds.end:
        what = "the committed offset is beyond the end: the topic lost records, or was re-created"
        return Level.ERROR, what, "Choose another one with `faust -A APP reset --to …`"
    if one.recent is not None and one.committed < one.recent:
        return (
            Level.WARNING,
            "unhandled records are older than half of retention.ms, after which they are deleted",
            "Start more workers, or raise retention.ms",
        )
    return None


async def retention(at: Brokers) -> AsyncIterator[Result]:
    """Check that the group's offsets live as long as the records of the inputs."""
    kept = await _retentions(at, await _inputs(at))
    settings = await at.topics.broker_settings()
    if _OFFSETS_KEPT not in settings:
        text = f"{_OFFSETS_KEPT} of the brokers is unknown: this user may not describe their settings"
        yield Result("retention", Level.NOTE, text)
        return
    offsets_ms = int(settings[_OFFSETS_KEPT]) * 60_000
    longer = {name: kept_ms for name, kept_ms in kept.items() if kept_ms > offsets_ms}
    if longer:
        yield Result(
            "retention",
            Level.WARNING,
            f"{', '.join(sorted(longer))} keep records for up to {_days(max(longer.values()))}, and the "
            f"brokers delete the group's offsets {_days(offsets_ms)} after the last worker stopped "
            f"({_OFFSETS_KEPT}={settings[_OFFSETS_KEPT]}): workers would refuse to start without an operator's choice",
            f"Set {_OFFSETS_KEPT}={max(longer.values()) // 60_000} on the brokers",
        )


def _days(span_ms: int) -> str:
    return f"{span_ms / _DAY_MS:g} day{'s' * (span_ms != _DAY_MS)}"


async def _inputs(at: Brokers) -> dict[str, TopicInfo]:
    return await at.topics.existing(name for one in at.setup.app.actors.values() for name in one.topic_names)


async def _retentions(at: Brokers, inputs: Mapping[str, TopicInfo]) -> dict[str, int]:
    """Return the retention of inputs in milliseconds, without inputs that keep records for ever."""
    configs = await at.topics.configs(inputs)
    return {
        name: int(config["retention.ms"])
        for name, config in configs.items()
        if "delete" in config.get("cleanup.policy", "") and int(config.get("retention.ms", -1)) >= 0
    }


async def _look(at: Brokers, inputs: Mapping[str, TopicInfo], kept: Mapping[str, int]) -> dict[TopicPartition, _Seen]:
    questions, now_ms = asyncio.Semaphore(MAX_QUESTIONS), machine_ms()

    async def look(source: TopicPartition) -> _Seen:
        async with questions:
            committed = await at.control.committed(source)
            bounds = await at.control.bounds(source)
            recent = None
            if source.topic in kept:
                recent = await at.control.offset_at(source, now_ms - kept[source.topic] // 2)
                # Without a record of that time, all that wait are older.
                recent = bounds.end if recent is None else recent
            return _Seen(None if committed is None else committed.offset, bounds, recent)

    sources = [TopicPartition(name, number) for name, info in inputs.items() for number in range(info.partitions)]
    return dict(zip(sources, await asyncio.gather(*map(look, sources)), strict=True))


async def _partitions_that_ran(at: Brokers) -> set[tuple[str, int]]:
    """Return the input partitions of which the leader registry proves an earlier commit."""
    topic = at.setup.owners_topic
    if topic not in await at.topics.existing([topic]):
        return set()
    owners = await KafkaOwners(topic, KafkaLogs(at.setup.connection, at.control)).all()
    return {(one.topic, owner.partition) for owner in owners for one in owner.inputs if one.input_offset is not None}
