"""The inputs of actors at a start: those of one actor lie alike, and repartition topics are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors._kafka.admin.topics import Topics
from actors.declare.definition import ActorDefinition
from actors.declare.host import DeclaredApp
from actors.declare.values.codecs import key_codec
from actors.errors import ConfigurationError
from actors.runtime.requests.replies import Replies
from actors.runtime.spec import InputSpec


async def ensure_repartitions(app: DeclaredApp, topics: Topics, replication_factor: int) -> None:
    """Make the topics of inputs that are read by another key, with the partitions of the actor's other inputs."""
    routes = [(source, route) for source, one in app.repartitions.items() for route in one.routes]
    inputs = {route.actor: app.actors[route.actor].topic_names for _, route in routes}
    found = await topics.existing({*app.repartitions, *(name for names in inputs.values() for name in names)})
    own = {str(route.to.get_topic_name()) for _, route in routes}
    wanted = {}
    for source, route in routes:
        like = next((name for name in [*inputs[route.actor], source] if name in found and name not in own), None)
        if like is not None:
            wanted[str(route.to.get_topic_name())] = found[like].partitions
    await topics.ensure_plain(wanted, replication_factor)


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
        raise ConfigurationError(
            f"actor {definition.name}: its inputs have different numbers of partitions ({shown}), so that messages of "
            "one key would come to different tasks. Read those with other numbers through by=, or copy their records "
            f"into topics with {max(counts.values())} partitions each, by the same keys, and declare these"
        )
    partitioners = {name: app.partitioner_for(name).name for name in counts}
    if len(set(partitioners.values())) > 1:
        shown = ", ".join(f"{name} {partitioner}" for name, partitioner in partitioners.items())
        raise ConfigurationError(
            f"actor {definition.name}: the producers of its inputs place keys differently ({shown}), so that messages "
            "of one key would come to different tasks. Have all use one partitioner, and declare it"
        )


def input_spec(app: DeclaredApp, definition: ActorDefinition, topic: Any, answers: Replies | None) -> InputSpec:
    """Return one of an actor's inputs behind the first as the runtime needs it."""
    name, messages = str(topic.get_topic_name()), definition.messages(topic)
    own = definition.handlers.get(name)
    handler = definition.handler if own is None else own.handler
    return InputSpec(
        topic=name,
        handler=messages.around(handler if answers is None else answers.around(handler)),
        decode_key=key_codec(app, topic.schema).decode,
        decode_value=messages.decode,
        partitioner=app.partitioner_for(name),
        tombstones=definition.takes_tombstones(topic),
    )
