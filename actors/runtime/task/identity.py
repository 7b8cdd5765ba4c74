"""The identities that a takeover compares: topics now, topics of the last commit, and its owner."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from actors._core.task.commit import CommitMark, parse_mark
from actors._core.task.completed import decode_finished
from actors._core.task.takeover import InputFacts, LastKnown, LogBounds
from actors._core.task.topic_ids import TopicIds
from actors.errors import BrokerUnavailableError, InputGrownError, RestoreError, TakeoverRefusedError
from actors.ports import Committed, GroupView, OwnerInput, OwnerRecord, TopicIdentity, TopicPartition
from actors.runtime.spec import ActorSpec, InputSpec, TaskSettings
from actors.runtime.state.restore import Restored


@contextlib.asynccontextmanager
async def agreed(spec: ActorSpec, group: GroupView) -> AsyncIterator[None]:
    """Let a takeover's refusal through only if the brokers agree which topics there are.

    A broker that is behind makes a topic look replaced, and a partition that is refused stands still until a restart.

    Raises:
        BrokerUnavailableError: in place of the refusal, if they don't.
    """
    try:
        yield
    except TakeoverRefusedError:
        await group.require_agreement(spec.topic_names)
        raise


async def identify(spec: ActorSpec, group: GroupView) -> list[TopicIds]:
    """Return the ids that the actor's topics have now, for each input; a changelog that doesn't exist has none.

    Raises:
        BrokerUnavailableError: an input topic doesn't exist.
        InputGrownError: it has another number of partitions than the actor's state.
    """
    found = await group.topic_ids(spec.topic_names)
    changelogs, ids = changelog_ids(spec, found), []
    for topic in spec.topics:
        own = found.get(topic)
        if own is None:
            raise BrokerUnavailableError(f"topic {topic}, the input of actor {spec.name}, doesn't exist any more")
        if spec.is_partitioned and own.partitions != spec.partition_count:
            raise grown_error(spec, topic, own.partitions)
        ids.append(TopicIds.of(own.topic_id, changelogs))
    return ids


def changelog_ids(spec: ActorSpec, found: Mapping[str, TopicIdentity]) -> dict[str, str]:
    """Return by store the ids of the actor's changelogs, as far as they were found."""
    return {
        store: found[changelog.topic].changelog_id
        for store, changelog in spec.changelogs.items()
        if changelog.topic in found
    }


async def require_unchanged(spec: ActorSpec, group: GroupView, topics: Sequence[TopicIds]) -> None:
    """Check that the actor's topics are those of the start of its takeover: the bounds of logs are asked for by name.

    Raises:
        RestoreError: one was deleted or created again meanwhile.
    """
    if await identify(spec, group) != list(topics):
        names = ", ".join(spec.topic_names)
        raise RestoreError(f"one of the topics {names} was deleted or re-created while the state was restored")


def grown_error(spec: ActorSpec, topic: str, count: int, handled: str = "") -> InputGrownError:
    """Return the error for an input that has `count` partitions now, and an actor that needs another number.

    `handled` says what was handled in other partitions than its state, as a sentence with a space behind it.
    """
    how = "given more" if count > spec.partition_count else "re-created with fewer"
    other = f"{how} partitions than {spec.partition_count}, it has {count}"
    was = f"topic {topic}, the input of actor {spec.name}, was {other}"
    stopped = f"The actor's partitions are stopped, nothing of them is lost. {handled}"
    if not spec.stores:
        others = ", ".join(name for name in spec.topics if name != topic)
        return InputGrownError(
            f"{was}: keys have other partitions now than in its other inputs, {others}. {stopped}Have all inputs "
            "with one number of partitions, and restart all workers"
        )
    if spec.parked is not None and spec.stores == (spec.parked,):
        changelog = spec.changelogs[spec.parked.name].topic
        return InputGrownError(f"{was}. {stopped}{give_up_parked(spec.name, changelog)}")
    return InputGrownError(
        f"{was}: keys have other partitions now than their state. {stopped}Stop all workers, then carry the state over "
        f"to {count} partitions, with a new input topic and app id: see the documentation's page 'Snapshots', "
        "'Another cluster, another number of partitions'"
    )


def give_up_parked(actor: str, changelog: str) -> str:
    """Say what may be done about an actor whose input was given partitions, and which has parked messages only."""
    return (
        f"What actor {actor} has parked lies by the former partitions in topic {changelog}, and can't be retried: note "
        "it, if there is any (`faust -A … parked list`, `faust -A … parked show`), and send it again later. Then "
        f"stop all workers, delete the topic (kafka-topics.sh --bootstrap-server BROKER --delete --topic {changelog}), "
        "and start them once with LOST_CHANGELOG=rebuild"
    )


@dataclass(slots=True)
class FoundInput:
    """The facts of an input that a takeover reads.

    Attributes:
        topics: the ids of now, with what the last commit says of the topics before.
        mark: that of the committed offset; None if it has none.
        known: what the registry says of the input, if it proves an earlier commit and the offset has no mark.
    """

    index: int
    source: TopicPartition
    spec: InputSpec
    topics: TopicIds
    committed: Committed | None
    bounds: LogBounds
    mark: CommitMark | None
    known: LastKnown | None
    known_id: str

    @classmethod
    def of(
        cls,
        spec: ActorSpec,
        index: int,
        topics: TopicIds,
        *,
        source: TopicPartition,
        committed: Committed | None,
        owner: OwnerRecord | None,
        bounds: LogBounds,
    ) -> FoundInput:
        """Gather it; `owner` is the registry's record of the task."""
        mark = None if committed is None else parse_mark(committed.metadata)
        last = None if owner is None or mark is not None else _input_of(owner, source.topic)
        first = owner.inputs[0] if owner is not None and owner.inputs else None
        before = mark.topics if mark is not None else last or first
        if before is not None:
            topics = replace(topics, since=before.since, is_recreated=before.is_recreated)
        known, known_id = None, ""
        if owner is not None and last is not None:
            known = LastKnown(last.input_offset, owner.worker, owner.epoch, owner.at_ms)
            known_id = last.topic_id
        if mark is not None:
            known_id = mark.topics.input_id
        return cls(index, source, spec.inputs[index], topics, committed, bounds, mark, known, known_id)

    @property
    def finished(self) -> set[int]:
        """The offsets behind the committed one that are finished too."""
        if self.committed is None or self.mark is None:
            return set()
        return decode_finished(self.committed.offset, self.mark.finished)

    def facts(self, spec: ActorSpec, settings: TaskSettings, stores: Sequence[Restored]) -> InputFacts:
        """Return what decides where the task begins in this input."""
        finished = self.finished
        # State of epochs before `since` is of another topic, or was given up: its offsets say nothing.
        counted = (held.position for held in stores if not held.is_empty and held.position.epoch >= self.topics.since)
        offsets = (position.offset_of(self.index) for position in counted)
        return InputFacts(
            committed=None if self.committed is None else self.committed.offset,
            bounds=self.bounds,
            state_source_offset=max((offset for offset in offsets if offset is not None), default=None),
            finished=max(finished) + 1 if finished else None,
            last_known=self.known,
            is_marked=self.mark is not None,
            known_id=self.known_id,
            input_id=self.topics.input_id,
            tool=(
                f"kafka-consumer-groups.sh --bootstrap-server BROKER --group {settings.group} --topic "
                f"{self.source.topic}:{self.source.partition} --reset-offsets --execute --to-offset"
            ),
            is_parallel=spec.concurrency > 1,
        )


def _input_of(owner: OwnerRecord, topic: str) -> OwnerInput | None:
    return next((one for one in owner.inputs if one.topic == topic), None)


def another_input(actor: str, before: str, now: str) -> str:
    """Say what may be done about an actor whose only input was replaced by another topic."""
    return (
        f"To go on with topic {now}, stop all workers and choose where it begins: `faust -A … reset --to earliest "
        f"--actor {actor} --yes` keeps the state, with `--state delete` the actor begins without it. To read both "
        f"topics, declare the new one behind the former one: @app.actor({before}, {now})"
    )


def check_order(spec: ActorSpec, owner: OwnerRecord | None) -> None:
    """Check that the inputs have the places that they had: write metadata and positions name them by place.

    Raises:
        TakeoverRefusedError: they don't.
    """
    if owner is None or not owner.topic:
        return
    before, now = [one.topic for one in owner.inputs], list(spec.topics)
    if all(former == topic for former, topic in zip(before, now, strict=False)):
        return
    if owner.is_of_another(now):
        if not spec.stores:
            return
        raise TakeoverRefusedError(
            f"actor {spec.name} reads {now[0]} now, and read {before[0]} before: its state has what came from there. "
            f"{another_input(spec.name, before[0], now[0])}"
        )
    raise TakeoverRefusedError(
        f"actor {spec.name} reads {', '.join(now)} now, and read {', '.join(before)} before: its state names an input "
        "by its place. Declare the inputs in the former order, and new ones behind them"
    )
