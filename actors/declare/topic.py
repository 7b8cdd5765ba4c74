"""Faust's topics and channels, which refuse to send past a handler's commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faust

from actors._core.partitioner import Partitioner
from actors.declare.host import changelog_topic
from actors.declare.names import own_prefix
from actors.declare.values.schemas import ActorSchema
from actors.errors import UsageError
from actors.runtime.message.context import is_handling
from actors.runtime.message.unresolved import resolved


def refuse_other_writers(app: Any, topic: str) -> None:
    """Refuse to send to a topic from outside of the actors that are declared as its writers.

    Raises:
        UsageError: the topic has declared writers, or is a changelog.
    """
    refuse_changelog(app, topic)
    if topic in app.topic_writers:
        writers = ", ".join(getattr(writer, "__name__", writer) for writer in app.topic_writers[topic])
        raise UsageError(
            f"topic {topic} is declared with writers= {writers}: its readers' event time follows these alone, and a "
            "record from elsewhere may be late. Send it to an input of a writer"
        )


def refuse_changelog(app: Any, topic: str) -> None:
    """Refuse to send to the changelog of a store: what is there is the store's state after a restore.

    Raises:
        UsageError: naming the store.
    """
    if topic.startswith(own_prefix(app.app_id)):
        store = next((store for store in app.stores if changelog_topic(app, store) == topic), None)
        if store is not None:
            raise UsageError(f"topic {topic} is the changelog of store {store}: write to the store")


class _OutsideHandlers:
    """Refuses to send where an actor is handling a message: the record would be there even if the commit isn't."""

    def send(self, **options: Any) -> Any:
        """Send as Faust does.

        Raises:
            UsageError: an actor is handling a message, or the topic has declared writers.
        """
        self._refuse()
        return super().send(**options)  # type: ignore[misc]

    def send_soon(self, **options: Any) -> Any:
        """Send as Faust does, soon; else as `send`."""
        self._refuse()
        return super().send_soon(**options)  # type: ignore[misc]

    def _refuse(self) -> None:
        if is_handling():
            what = "a channel" if isinstance(self, ActorChannel) else f"topic {self.get_topic_name()}"  # type: ignore[attr-defined]
            raise UsageError(
                f"{what}: send() inside an actor's handler would not be a part of its commit, and be repeated or alone "
                "after a crash: use ctx.send(topic, key=..., value=...)"
            )


class ActorTopic(_OutsideHandlers, faust.Topic):  # type: ignore[misc]
    """A topic that agents, pages and tasks send to as always, and actors through `ctx.send` only.

    Attributes:
        partitioner: how its producers place keys, as it was declared; None if it wasn't.
        timestamp: gives the time of a value, Unix milliseconds; None if the records' timestamps say it.
        made_of: the topic from whose records the app makes it; "" if it doesn't.
        is_shared: whether several actors read it by its own key.
        is_keyless: whether an actor takes its records without a key, which are about a whole partition.
    """

    partitioner: Partitioner | None = None
    timestamp: Callable[[Any], Any] | None = None
    made_of: str = ""
    is_shared: bool = False
    is_keyless: bool = False

    def _refuse(self) -> None:
        super()._refuse()
        for name in self.topics:
            refuse_other_writers(self.app, name)

    def derive_topic(self, **options: Any) -> Any:
        """Derive as Faust does; the new topic's producers place keys alike, and its values tell their time alike."""
        derived = super().derive_topic(**options)
        if derived.topics != self.topics and isinstance(derived.schema, ActorSchema) and len(derived.topics) == 1:
            derived.schema = derived.schema.of_topic(derived.topics[0])
        derived.partitioner, derived.timestamp = self.partitioner, self.timestamp
        return derived

    async def publish_message(self, fut: Any, wait: bool = False) -> Any:
        """Send as Faust does, which knows murmur2 only."""
        message, partitioner = fut.message, self.partitioner
        if partitioner is not None and message.partition is None and isinstance(message.key, bytes):
            count = await self.app.asks.partitions_of(self._topic_name_or_default(message.channel))
            fut.message = message._replace(partition=partitioner.home(message.key, count))
        publish = super().publish_message
        return await resolved(lambda: publish(fut, wait))


class ActorChannel(_OutsideHandlers, faust.Channel):  # type: ignore[misc]
    """A channel in this process's memory, for agents, pages and tasks."""

    def put(self, value: Any) -> Any:
        """Put an event into the channel; else as `send`."""
        self._refuse()
        return super().put(value)
