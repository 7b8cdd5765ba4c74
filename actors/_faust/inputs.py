"""The inputs of actors: those of one actor lie alike, and repartition topics are there and keep what isn't handled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from actors._core.event_time import EventTime
from actors._core.logs import error_text, escaping
from actors._core.task.lifecycle import State
from actors._kafka.admin.control import TopicInfo
from actors._kafka.admin.topics import ANY_TIME, Topics
from actors.declare.declared import wrapped
from actors.declare.definition import ActorDefinition
from actors.declare.host import DeclaredApp, changelog_topic
from actors.declare.streams.repartition import Repartition
from actors.declare.values.codecs import one_form
from actors.declare.values.schemas import key_codec, topic_codecs
from actors.errors import ActorsError, ConfigurationError
from actors.ports import TopicPartition
from actors.runtime.inputs.time_order import in_order_of_time
from actors.runtime.message.context import Context
from actors.runtime.message.table import Table
from actors.runtime.requests.replies import Replies
from actors.runtime.spec import InputSpec
from actors.runtime.task.identity import give_up_parked
from actors.runtime.task.task import Task
from stores._core.printable import counted

logger = escaping(logging.getLogger(__name__))

LOOK_S = 1.0
"""How often a worker looks whether it has taken over a partition of an actor that gets a first message."""
PURGE_S = 30.0
"""How often workers delete from repartition topics what they have handled."""
REPARTITION_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": "52428800",
    "message.timestamp.type": "CreateTime",
    **ANY_TIME,
}
"""Only workers delete records, those that are handled; segments are small since brokers delete whole ones. Records keep
the times that their input has taken."""


def repartitions(app: DeclaredApp) -> dict[str, str]:
    """Return the topics of inputs that are read by another key, each with the topic that it has its partitions from.

    That is the first of the actor's other inputs, or the first topic that it reads by another key. Of one that is made
    itself, it is the topic that this has its partitions from.
    """
    likes = {
        made: next((name for name in definition.topic_names if name not in definition.sources), first)
        for definition in app.actors.values()
        for first in list(definition.sources.values())[:1]
        for made in definition.sources
    }
    # An actor is declared behind the one that it reads from.
    for made, like in likes.items():
        likes[made] = likes.get(like, like)
    return likes


async def purge(topics: Topics, made: Mapping[str, TopicInfo], tasks: Collection[Task]) -> None:
    """Delete from time to time what tasks have handled of repartition topics; never returns."""
    purged: dict[TopicPartition, int] = {}
    while True:
        await asyncio.sleep(PURGE_S)
        handled = _handled(made, tasks)
        wanted = dict(handled.items() - purged.items())
        if not wanted:
            continue
        try:
            # One that was made again since the start has other records at these offsets.
            found = await topics.existing({source.topic for source in wanted})
            same = {name for name, info in found.items() if info.topic_id == made[name].topic_id}
            await topics.delete_before({source: offset for source, offset in wanted.items() if source.topic in same})
        except ActorsError as error:
            text = "what is handled of %s can't be deleted, and takes the brokers' disks meanwhile: %s"
            logger.warning(text, ", ".join(sorted({source.topic for source in wanted})), error)
        else:
            purged = handled


async def send_first(app: DeclaredApp, tasks: Callable[[], Collection[Task]]) -> None:
    """Send actors their first messages when this worker has taken their partitions over; never returns."""
    epochs: dict[str, int] = {}
    while True:
        for task in list(tasks()):
            name = task.spec.name
            if name in app.first_messages and task.partition == 0 and task.epoch and epochs.get(name) != task.epoch:
                try:
                    await app.tell(name, *app.first_messages[name])
                except Exception as error:
                    text = "actor %s: its first message can't be sent, and is sent again: %s"
                    logger.warning(text, name, error_text(error))
                else:
                    epochs[name] = task.epoch
        await asyncio.sleep(LOOK_S)


def _handled(made: Mapping[str, TopicInfo], tasks: Iterable[Task]) -> dict[TopicPartition, int]:
    """Return the offsets up to which running tasks have committed their inputs among these topics."""
    running = [task for task in tasks if task.state in (State.RUNNING, State.COMMITTING)]
    return {
        source: offset
        for task in running
        for source in task.sources
        if source.topic in made and (offset := task.meters.committed_offsets.get(source.topic))
    }


def check_alike(app: DeclaredApp, definition: ActorDefinition, counts: Mapping[str, int]) -> None:
    """Refuse inputs of one actor that place keys differently: a key's messages would come to different tasks.

    Args:
        app: the app.
        definition: the actor.
        counts: the number of partitions of each input.

    Raises:
        ConfigurationError: with all names.
    """
    shown = ", ".join(f"{name} {count}" for name, count in counts.items())
    if len(set(counts.values())) > 1:
        grown = definition.stores and (
            ". If one was given partitions when the actor had state, that has to be carried over: see "
            "the documentation's page 'Snapshots', 'Another cluster, another number of partitions'"
        )
        raise ConfigurationError(
            f"actor {definition.name}: its inputs have different numbers of partitions ({shown}), so that messages of "
            "one key would come to different tasks. Read those with other numbers through by=, or copy their records "
            f"into topics with {max(counts.values())} partitions each, by the same keys, and declare these{grown or ''}"
        )
    partitioners = {name: app.partitioner_for(name).name for name in counts}
    if len(set(partitioners.values())) > 1:
        shown = ", ".join(f"{name} {partitioner}" for name, partitioner in partitioners.items())
        raise ConfigurationError(
            f"actor {definition.name}: the producers of its inputs place keys differently ({shown}), so that messages "
            "of one key would come to different tasks. Have all use one partitioner, and declare it"
        )


async def check_parked(app: DeclaredApp, topics: Topics, inputs: Mapping[str, TopicInfo]) -> None:
    """Refuse another number of partitions than what was parked lies by, of actors that have no other state.

    Raises:
        ConfigurationError: with what to do.
    """
    parked = {
        changelog_topic(app, one.parked.name): one
        for one in app.actors.values()
        if one.parked is not None and one.stores == (one.parked,)
    }
    for name, info in (await topics.existing(parked)).items():
        actor = parked[name]
        count = inputs[actor.topic_name].partitions
        if info.partitions != count:
            raise ConfigurationError(
                f"topic {actor.topic_name}, the input of actor {actor.name}, has {counted(count, 'partition')}, and "
                f"had {info.partitions} before. {give_up_parked(actor.name, name)}"
            )


def declare_readers(app: Any) -> None:
    """Declare an actor for each table with aggregates that no actor has, under the table's name: it reads the rows.

    Raises:
        ConfigurationError: an actor has the name, or the topic of the table is another actor's input.
    """

    async def read(ctx: Context, row: Any) -> None: ...

    for table in [store for store in app.stores.values() if isinstance(store, Table)]:
        if table.groupings and app.owner_of_store(table.name) is None:
            app.actor(table.topic, stores=[table], name=table.name, tombstones=True)(read)


def input_handler(
    app: DeclaredApp, definition: ActorDefinition, topic: Any, answers: Replies | None
) -> Callable[[Context, Any], Any]:
    name = str(topic.get_topic_name())
    own, table = definition.handlers.get(name), definition.table_fed_by(name)
    if table is not None and own is not None and own.is_feed:
        feed = definition.messages(topic).around(own.handler)
        return feed if definition.order is None else in_order_of_time(feed, definition.late)
    handler = definition.handler if own is None else own.handler
    # A cron's actor has the functions around the run, and none of a user's code runs where records are forwarded.
    if definition.name not in app.first_messages and not isinstance(
        getattr(definition.declared, "__self__", None), Repartition
    ):
        handler = wrapped(handler, app.wraps)
    handler = handler if answers is None else answers.around(handler)
    handler = definition.messages(topic).around(handler if table is None else table.feeding(handler))
    return handler if definition.order is None else in_order_of_time(handler, definition.late)


def input_spec(app: DeclaredApp, definition: ActorDefinition, topic: Any, answers: Replies | None) -> InputSpec:
    """Return an actor's input as the runtime needs it."""
    name, key, stamp = str(topic.get_topic_name()), key_codec(app, topic.schema), topic.timestamp
    return InputSpec(
        topic=name,
        handler=input_handler(app, definition, topic, answers),
        decode_key=one_form(key) if definition.places_by_key else key.decode,
        decode_value=definition.messages(topic).decode,
        partitioner=app.partitioner_for(name),
        tombstones=definition.takes_tombstones(topic),
        event_time=None if stamp is None else EventTime(name, topic_codecs(topic)[1].from_record, stamp),
        is_keyless=topic.is_keyless,
    )
