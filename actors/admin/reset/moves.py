"""The offset that a reset commits for each input partition, and its effect on a worker.

The committed offset gets the mark of a commit of this app, of an epoch above all before. Its `since` is that epoch:
what the state knows of input offsets is older and doesn't count any more, so a worker goes on at the offset, on top of
the state if that is kept. The mark has the ids of the changelogs. If they were created again, a store on a worker's
disk is of a topic that the partition's owner has left, and the worker rebuilds it from the new one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from actors._core.task.commit import CommitMark, parse_mark
from actors._core.task.takeover import LogBounds, next_epoch
from actors._core.task.topic_ids import TopicIds
from actors.declare.definition import ActorDefinition
from actors.ports import Committed, OwnerInput, OwnerRecord, TopicPartition
from stores._core.printable import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An input partition that gets another offset.

    Attributes:
        actor: whose input it is.
        source: the partition.
        before: what is committed, None if nothing is.
        offset: where the actor goes on.
        bounds: the partition's first offset, and its end.
    """

    actor: str
    source: TopicPartition
    before: Committed | None
    offset: int
    bounds: LogBounds

    @property
    def effect(self) -> str:
        """The effect on records, for people."""
        at = self.bounds.start if self.before is None else max(self.before.offset, self.bounds.start)
        if self.offset < at:
            return f"{counted(at - self.offset, 'offset')} again"
        return f"{counted(self.offset - at, 'offset')} skipped" if self.offset > at else "-"


def marked(
    moves: Sequence[Move],
    *,
    committed: Mapping[str, Committed | None],
    owner: OwnerRecord | None,
    inputs: Mapping[str, str],
    changelogs: Mapping[str, str],
    is_without_state: bool,
) -> tuple[int, dict[TopicPartition, Committed]] | None:
    """Return the new epoch of a task and what is committed for its inputs; None if its former epoch is unknown.

    `committed` is there for all inputs of the task, `inputs` has their topics' ids, `changelogs` those by store.
    """
    marks = {topic: None if one is None else parse_mark(one.metadata) for topic, one in committed.items()}
    epochs = [mark.epoch for mark in marks.values() if mark is not None]
    epochs += [] if owner is None else [owner.epoch]
    if not epochs and not is_without_state:
        return None
    epoch = next_epoch(epochs)
    now_ms = max((mark.now_ms for mark in marks.values() if mark is not None), default=0)
    offsets = {}
    for move in moves:
        topic = move.source.topic
        mark, input_id = marks[topic], inputs[topic]
        before = mark.topics if mark is not None else None
        topics = before if before is not None else TopicIds()
        if before is None or is_without_state:
            topics = topics.with_changelogs(changelogs)
        is_recreated = topics.is_recreated or topics.input_id not in ("", input_id)
        topics = replace(topics, input_id=input_id, since=epoch, is_recreated=is_recreated)
        nonce = uuid.uuid4().hex[:12]
        offsets[move.source] = Committed(
            move.offset, CommitMark(epoch, 0, nonce, now_ms=now_ms, topics=topics).encode()
        )
    return epoch, offsets


def reowned(
    owner: OwnerRecord,
    actor: ActorDefinition,
    epoch: int,
    offsets: Mapping[str, int],
    *,
    inputs: Mapping[str, str],
    ids: Mapping[str, str],
) -> OwnerRecord:
    """Return a task's record of the registry for its new offsets, as a takeover would have written it.

    `offsets` has those of its inputs that were moved, `inputs` the ids of their topics, `ids` the changelogs' ids if
    they are new.
    """
    if owner.is_of_another(actor.topic_names):
        topic = actor.topic_name
        owner = replace(owner, inputs=(OwnerInput(topic, inputs[topic], None),))
    return replace(
        owner,
        epoch=epoch,
        inputs=tuple(
            replace(source, input_offset=offsets[source.topic], since=epoch) if source.topic in offsets else source
            for source in owner.inputs
        ),
        changelog_ids={**owner.changelog_ids, **{store.name: ids[store.name] for store in actor.stores if ids}},
    )
