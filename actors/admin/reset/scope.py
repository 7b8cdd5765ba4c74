"""The actors that are reset together, and the kind of each of their inputs.

An actor that reads a topic by another key gets it from the actor that forwards it; an aggregate over a table gets the
table's changes from the actor that keeps the table. One of them with other offsets, or without its state, would count
records twice or not at all: they are reset together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from actors.declare.arguments import say_unknown
from actors.declare.definition import ActorDefinition
from actors.declare.host import DeclaredApp
from actors.errors import ConfigurationError
from actors.runtime.message.store import Store


@dataclass(frozen=True, slots=True)
class Scope:
    """The actors, inputs and stores of a reset.

    Attributes:
        actors: the actors.
        forwarded: the inputs that get another input's records by another key: all that is in them comes again.
        made: those, and the inputs that get what comes of another actor's state.
    """

    actors: tuple[ActorDefinition, ...]
    forwarded: frozenset[str]
    made: frozenset[str]

    @property
    def topics(self) -> list[str]:
        """All inputs."""
        return [name for actor in self.actors for name in actor.topic_names]

    @property
    def outer(self) -> list[str]:
        """The inputs whose offsets an operator chooses."""
        return [name for name in self.topics if name not in self.made]

    @property
    def stores(self) -> list[tuple[ActorDefinition, Store[Any, Any]]]:
        """The stores, with their actors."""
        return [(actor, store) for actor in self.actors for store in actor.stores]


def scope_of(app: DeclaredApp, names: Iterable[str]) -> Scope:
    """Return the scope of actors, of all if none is named, with all that they are connected with.

    Raises:
        ConfigurationError: there is no actor of that name.
    """
    names = list(dict.fromkeys(names))
    if unknown := [name for name in names if name not in app.actors]:
        known_names = ", ".join(sorted(app.actors)) or "none"
        raise ConfigurationError(
            f"app {app.conf.id}: {say_unknown('actor', unknown, app.actors)}. Its actors: {known_names}"
        )
    chosen = set(names or app.actors)
    links = [(one.name, reader) for one in app.actors.values() for reader in _senders(app, one)]
    while more := {name for link in links if chosen & {*link} for name in link} - chosen:
        chosen |= more
    actors = tuple(one for one in app.actors.values() if one.name in chosen)
    forwarded = frozenset(str(route.to.get_topic_name()) for one in app.repartitions.values() for route in one.routes)
    return Scope(actors, forwarded, frozenset(made for one in actors for made in one.sources))


def _senders(app: DeclaredApp, actor: ActorDefinition) -> list[str]:
    sources = set(actor.sources.values())
    return [each.name for each in app.actors.values() if sources & set(each.topic_names)]
