"""The app as the packages below `actors._faust` see it: its settings, and what it declares."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from actors._core.partitioner import Partitioner
from actors.declare.definition import ActorDefinition
from actors.declare.options import ActorOptions
from actors.declare.values.shapes import ValueType
from actors.ports import Requests
from actors.runtime.clock import SystemClock
from actors.runtime.message.store import Store


class DeclaredApp(Protocol):
    """An app with its declarations; `actors.App` is one."""

    @property
    def conf(self) -> Any:
        """Faust's settings."""

    @property
    def actor_options(self) -> ActorOptions:
        """The settings of `ActorOptions`."""

    @property
    def actors(self) -> Mapping[str, ActorDefinition]:
        """The actors by name."""

    @property
    def stores(self) -> Mapping[str, Store[Any, Any]]:
        """The stores by name, including those that actors get for their options."""

    @property
    def value_types(self) -> MutableMapping[str, ValueType]:
        """The type of each store's values."""

    @property
    def renamed_stores(self) -> Mapping[str, str]:
        """The former name of each store that had another one."""

    @property
    def views(self) -> Sequence[Any]:
        """The views, each an `actors.View`."""

    @property
    def declared_topics(self) -> Sequence[Any]:
        """The topics of `app.topic(...)`."""

    @property
    def made_topics(self) -> Mapping[str, int]:
        """The partition counts of topics that a worker creates, by name."""

    @property
    def shared_maps(self) -> Mapping[str, Any]:
        """The shared maps, each an `actors.Shared`, by name."""

    @property
    def tables(self) -> Mapping[str, Any]:
        """Faust's tables by name."""

    @property
    def agents(self) -> Mapping[str, Any]:
        """Faust's agents by name."""

    @property
    def actor_clock(self) -> SystemClock:
        """The clock of this process."""

    @property
    def asks(self) -> Requests:
        """The client that sends requests to actors from outside of handlers."""

    def definition_of(self, actor: Any) -> ActorDefinition:
        """Return the definition of an actor, given as its class, function or name."""

    def partitioner_for(self, topic: str) -> Partitioner:
        """Return how the producers of a topic place keys."""

    def partitioner_of_store(self, store: str) -> Partitioner:
        """Return how the keys of a store are placed."""
