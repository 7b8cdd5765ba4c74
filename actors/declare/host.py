"""The app as the packages below `actors._faust` see it: its settings, and what it declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from actors._core.partitioner import Partitioner
from actors.declare.calendar import Cron
from actors.declare.definition import ActorDefinition
from actors.declare.names import own_prefix
from actors.declare.options import ActorOptions
from actors.declare.streams.repartition import Repartition
from actors.declare.values.shapes import ValueType
from actors.ports import Requests
from actors.runtime.clock import SystemClock
from actors.runtime.message.store import Store


class DeclaredApp(Protocol):
    """An app with its declarations; `actors.App` is one.

    Attributes:
        conf: Faust's settings.
        app_id: `conf.id`, known before the settings are read.
        actor_options: the settings of `ActorOptions`.
        actors: the actors by name.
        stores: the stores by name, including those that actors get for their options.
        value_types: the type of each store's values.
        renamed_stores: the former name of each store that had another one.
        views: the views, each an `actors.View`.
        declared_topics: the topics of `app.topic(...)`.
        made_topics: the partition counts of topics that a worker creates, by name.
        topic_writers: by topic the actors that alone write there, as they were declared.
        crons: the functions of `@app.cron` by name.
        wraps: the functions of `@app.wrap`.
        repartitions: the topics that are read by other keys than theirs, by name.
        tables, agents: Faust's tables and agents by name.
        extensions: what runs beside the engine, each a `WorkerExtension`, by name.
    """

    conf: Any
    app_id: str
    actor_options: ActorOptions
    actors: dict[str, ActorDefinition]
    stores: dict[str, Store[Any, Any]]
    value_types: dict[str, ValueType]
    renamed_stores: dict[str, str]
    views: list[Any]
    declared_topics: list[Any]
    made_topics: dict[str, int]
    topic_writers: dict[str, tuple[Any, ...]]
    crons: dict[str, Cron]
    wraps: list[Callable[[Any], Any]]
    repartitions: dict[str, Repartition]
    tables: Any
    agents: Any
    extensions: Mapping[str, Any]

    @property
    def actor_clock(self) -> SystemClock:
        """The clock of this process."""

    @property
    def asks(self) -> Requests:
        """The client that sends requests to actors from outside of handlers."""

    def definition_of(self, actor: Any) -> ActorDefinition:
        """Return the definition of an actor, given as its class, function or name."""

    def partitioner_for(self, topic: str) -> Partitioner:
        """Return the partitioner of a topic's producers."""

    def owner_of_store(self, store: str) -> ActorDefinition | None:
        """Return the actor that lists a store, None where none does."""

    def partitioner_of_store(self, store: str) -> Partitioner:
        """Return the partitioner of a store's keys."""

    async def tell(self, actor: Any, key: Any, message: Any) -> None:
        """Send a message to an actor from outside of handlers."""

    async def close_asks(self) -> None:
        """Disconnect the client that sends requests."""


def changelog_topic(app: DeclaredApp, store: str) -> str:
    """Return the topic of a store's changelog."""
    named = app.actor_options.changelogs.get(store)
    return str(named or f"{own_prefix(app.app_id)}{app.renamed_stores.get(store, store)}-changelog")


def table_changelog(app: DeclaredApp, table: str) -> str:
    """Return the topic that Faust makes for a table of its own."""
    return f"{app.conf.id}-{table}-changelog"
