"""Read-model topics as an app declares them: which topics can be one, how they are made, how bytes get there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from actors._core.values.rows import row_parts
from actors._kafka.admin.control import TopicInfo
from actors._kafka.admin.topics import ChangelogSettings, Topics
from actors.declare.arguments import single_topic
from actors.declare.definition import ActorDefinition
from actors.declare.host import DeclaredApp, changelog_topic, table_changelog
from actors.declare.names import dead_letter_topic, owners_topic, reply_topic
from actors.declare.values.codecs import Codec
from actors.declare.values.schemas import key_codec, value_codec
from actors.errors import ConfigurationError
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.message.publishing import Publication, PublishedStore


def claim_target(store: str, topic: Any, placement: str) -> None:
    """Refuse what can't be a read-model topic whatever else the app has; an agent on it would make it compacted.

    Raises:
        ConfigurationError: saying why.
    """
    single_topic(f"store {store}: publish=", topic)
    if placement == "task":
        raise ConfigurationError(
            f'store {store}: publish= and placement="task" contradict each other: a key may be in several partitions '
            "of the store, and readers couldn't tell which of its values counts"
        )
    if hasattr(topic.schema.key_serializer, "ids") or getattr(topic.schema.value_serializer, "ids", "") == "header":
        raise ConfigurationError(
            f"store {store}: publish= can't write to topic {topic.get_topic_name()}: it writes no ids in headers, and "
            'deletes a key without asking a registry: leave out ids="header", and key_format='
        )
    if topic.compacting is None:
        # Faust makes the topics of its agents before ours are made.
        topic.compacting = True


def published_stores(app: DeclaredApp) -> dict[str, tuple[PublishedStore[Any, Any], ActorDefinition]]:
    """Return the stores that are published with their actors, by the topic's name.

    Raises:
        ConfigurationError: a topic has something else in it.
    """
    found: dict[str, tuple[PublishedStore[Any, Any], ActorDefinition]] = {}
    for definition in app.actors.values():
        for store in definition.stores:
            if isinstance(store, PublishedStore):
                name = str(store.publish.get_topic_name())
                if name in found:
                    raise _taken(store.name, name, f"store {found[name][0].name} is published there")
                found[name] = store, definition
    if found:
        for name, what in _taken_names(app).items():
            if name in found:
                raise _taken(found[name][0].name, name, f"it is {what}")
        declared = {id(topic) for topic in app.declared_topics}
        for store, _ in found.values():
            if id(store.publish) not in declared:
                raise ConfigurationError(f"store {store.name}: publish= takes a topic of its own app's app.topic(...)")
    return found


def _taken_names(app: DeclaredApp) -> dict[str, str]:
    names = dict.fromkeys(app.made_topics, "a topic of the framework's own")
    names[owners_topic(app.conf.id)] = "the leader registry"
    names[dead_letter_topic(app.conf.id)] = "where dead letters go"
    names[reply_topic(app.conf.id)] = "where answers go"
    names |= {table_changelog(app, table): f"the changelog of table {table}" for table in app.tables}
    names |= {changelog_topic(app, store): f"the changelog of store {store}" for store in app.stores}
    names |= {name: f"the input of actor {one.name}" for one in app.actors.values() for name in one.topic_names}
    return names


def _taken(store: str, topic: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"store {store}: it can't be published to topic {topic}: {why}. Give it a topic that nobody else writes to"
    )


async def ensure_published(
    app: DeclaredApp, settings: ChangelogSettings, topics: Topics, inputs: Mapping[str, TopicInfo]
) -> None:
    """Make the read-model topics that are missing, compacted like changelogs; check the others.

    A new one has the topic's own `partitions=` and `config=`, else as many partitions as the actor's input.

    Raises:
        ConfigurationError: one exists and isn't compacted.
    """
    found = published_stores(app)
    for name, (store, definition) in found.items():
        partitions = store.publish.partitions or inputs[definition.topic_name].partitions
        config = topic_config_of(settings, store)
        await topics.ensure_plain({name: partitions}, settings.replication_factor, config)
    for name, effective in (await topics.configs(found)).items():
        policy = effective.get("cleanup.policy", "")
        if policy != "compact":
            raise ConfigurationError(
                f"topic {name}, to which store {found[name][0].name} is published, has cleanup.policy={policy}: values "
                "that aren't written again would be deleted. Repair it with: kafka-configs.sh "
                f"--bootstrap-server BROKER --alter --topic {name} --add-config cleanup.policy=compact"
            )


def topic_config_of(settings: ChangelogSettings, store: PublishedStore[Any, Any]) -> dict[str, str]:
    """Return the settings with which a store's read-model topic is made."""
    own = {key: str(value) for key, value in (store.publish.config or {}).items()}
    return {**settings.topic_config(), **own, "cleanup.policy": "compact"}


def publication(store: PublishedStore[Any, Any], target: OutputTopic) -> Publication:
    """Return the function from the store's bytes to those of `target`."""
    (key, value), topic = store.codecs(), store.publish
    return Publication(
        store.name,
        target,
        _converter(key, key_codec(topic.app, topic.schema)),
        _converter(value, value_codec(topic.app, topic.schema)),
        None if store.below is None else lambda raw: row_parts(raw)[1] is not None,
    )


def _converter(mine: Codec, topics: Codec) -> Callable[[bytes], bytes] | None:
    if mine.origin is not None and mine.origin == topics.origin:
        return None
    decode, encode = mine.decode, topics.encode
    return lambda raw: encode(decode(raw))


def by_value(anything: Codec) -> Codec:
    """Return the codec for topics sent to by name: bytes and str as they are, everything else as JSON."""

    def encode(value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        return value.encode() if isinstance(value, str) else anything.encode(value)

    return Codec(decode=anything.decode, encode=encode, name="by value")
