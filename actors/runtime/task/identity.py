"""What a takeover compares: which topics there are now, which ones the last commit was about, and who made it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from actors._core.task.commit import CommitMark
from actors._core.task.takeover import InputFacts, LastKnown, LogBounds
from actors._core.task.topic_ids import TopicIds
from actors.errors import BrokerUnavailableError, InputGrownError, RestoreError, TakeoverRefusedError
from actors.ports import Committed, GroupView, OwnerRecord, TopicIdentity
from actors.runtime.spec import ActorSpec, TaskSettings
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


async def identify(spec: ActorSpec, group: GroupView) -> TopicIds:
    """Return the ids that the actor's topics have now; a changelog that doesn't exist has none.

    Raises:
        BrokerUnavailableError: the input topic doesn't exist.
        InputGrownError: it has another number of partitions than the actor's state.
    """
    found = await group.topic_ids(spec.topic_names)
    own = found.get(spec.topic)
    if own is None:
        raise BrokerUnavailableError(f"topic {spec.topic}, the input of actor {spec.name}, doesn't exist any more")
    if spec.stores and own.partitions != spec.partition_count:
        raise grown_error(spec, own.partitions)
    return TopicIds.of(own.topic_id, changelog_ids(spec, found))


def changelog_ids(spec: ActorSpec, found: Mapping[str, TopicIdentity]) -> dict[str, str]:
    """Return by store the ids of the actor's changelogs, as far as they were found."""
    return {
        store: found[changelog.topic].changelog_id
        for store, changelog in spec.changelogs.items()
        if changelog.topic in found
    }


async def require_unchanged(spec: ActorSpec, group: GroupView, topics: TopicIds) -> None:
    """See that the actor's topics are still those of the start of its takeover: logs' bounds are asked for by name.

    Raises:
        RestoreError: one was deleted or created again meanwhile.
    """
    if await identify(spec, group) != topics:
        names = ", ".join(spec.topic_names)
        raise RestoreError(f"one of the topics {names} was deleted or re-created while the state was restored")


def grown_error(spec: ActorSpec, count: int, handled: str = "") -> InputGrownError:
    """Return the error for an input that has `count` partitions now, and an actor whose state has another number.

    `handled` says what was handled in other partitions than its state, as a sentence with a space behind it.
    """
    how = "given more" if count > spec.partition_count else "re-created with fewer"
    return InputGrownError(
        f"topic {spec.topic}, the input of actor {spec.name}, was {how} partitions than {spec.partition_count}, it has "
        f"{count}: keys have other partitions now than their state. The actor's partitions are stopped, nothing of "
        f"them is lost. {handled}Stop all workers, then carry the state over to {count} partitions, with a new input "
        "topic and app id: see docs/how-to/snapshots.md, 'Another cluster, another number of partitions'"
    )


def input_facts(
    spec: ActorSpec,
    partition: int,
    settings: TaskSettings,
    *,
    committed: Committed | None,
    mark: CommitMark | None,
    owner: OwnerRecord | None,
    stores: Sequence[Restored],
    topics: TopicIds,
    bounds: LogBounds,
    finished: int | None,
) -> InputFacts:
    """Gather what decides where a task begins; `topics` are those of now, with the last commit's `since`."""
    known = _last_commit(spec, settings, owner)
    known_id = "" if known is None else known.topic_id
    if mark is not None:
        known_id = "" if mark.topics is None else mark.topics.input_id
    # State of epochs before `since` is of another topic, or was given up: its offsets say nothing.
    counted = (held.position for held in stores if not held.is_empty and held.position.epoch >= topics.since)
    return InputFacts(
        committed=None if committed is None else committed.offset,
        bounds=bounds,
        state_source_offset=max((position.source_offset for position in counted), default=None),
        finished=finished,
        last_known=None if known is None else LastKnown(known.input_offset, known.worker, known.epoch, known.at_ms),
        is_marked=mark is not None,
        known_id=known_id,
        input_id=topics.input_id,
        tool=(
            f"kafka-consumer-groups.sh --bootstrap-server BROKER --group {settings.group} --topic "
            f"{spec.topic}:{partition} --reset-offsets --execute --to-offset"
        ),
        is_parallel=spec.concurrency > 1,
    )


def continued(topics: TopicIds, mark: CommitMark | None, owner: OwnerRecord | None) -> TopicIds:
    """Return the ids of now with what the last commit says of the topics before: its mark, or the registry's record."""
    last = owner if mark is None else mark.topics
    return topics if last is None else replace(topics, since=last.since, is_recreated=last.is_recreated)


def _last_commit(spec: ActorSpec, settings: TaskSettings, owner: OwnerRecord | None) -> OwnerRecord | None:
    """Return the registry's record if it proves an earlier commit for a topic of this name."""
    if owner is None or (owner.input_offset is None and not settings.rules.exactly_once):
        return None
    return owner if owner.topic in ("", spec.topic) else None
