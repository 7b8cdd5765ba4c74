"""Stores whose committed changes also go to a topic for readers, their read-model topic.

What a commit writes into the store's changelog it also writes into that topic, in the same transaction: the last value
of each key, a tombstone for a delete. Records are made of the frozen writes, so that nothing is in one topic and not in
the other, whoever wrote: a handler, a hook, or what removes expired keys. They have no write metadata, and are in the
bytes that the topic declares.

What doesn't fit is found when a handler writes, so that it is told; the same record is made again at the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from actors._core.logs import escaping, text_of
from actors.errors import UnresolvedSchemaError, UsageError, show_bytes
from actors.ports import ChangelogWrites, Output
from actors.runtime.message.outputs import NO_HEADERS, RECORD_OVERHEAD_BYTES, OutputTopic, new_tuple, too_large
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from stores._core.overlay import WRITE_OVERHEAD_BYTES, Overlay

logger = escaping(logging.getLogger(__name__))

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Publication:
    """Where a store's changes go.

    `convert_key` and `convert_value` turn the store's bytes into the topic's; None where they are the same. What
    `is_public` isn't true of stays in the store.
    """

    store: str
    topic: OutputTopic
    convert_key: Callable[[bytes], bytes] | None
    convert_value: Callable[[bytes], bytes] | None
    is_public: Callable[[bytes], bool] | None = None

    def check(self, raw_key: bytes, raw_value: bytes) -> int:
        """Return about how many bytes the record of a write takes in a batch.

        Raises:
            RecordTooLargeError: the topic doesn't take it.
            UnresolvedSchemaError: the topic's schema isn't here yet.
            UsageError: key or value isn't what the topic declares.
        """
        try:
            key, value = self._key(raw_key), self._value(raw_value)
        except UnresolvedSchemaError:
            raise
        except Exception as error:
            raise UsageError(
                f"store {self.store} is published to topic {self.topic.name}, which can't hold what was written for "
                f"key {show_bytes(raw_key)}: {text_of(error)}: declare key_type and value_type of the topic like the "
                "store's"
            ) from error
        size, limit = len(key) + len(value), self.topic.max_record_bytes
        if size + RECORD_OVERHEAD_BYTES > limit:
            raise too_large(f"topic {self.topic.name}, to which store {self.store} is published", key, size, limit)
        return size + WRITE_OVERHEAD_BYTES

    def records(self, writes: ChangelogWrites) -> Iterable[Output]:
        """Return the records of a commit's writes, where the topic's partitioner puts keys, with the commit's time."""
        if self.convert_key is None and self.convert_value is None:
            name, place = self.topic.name, self.topic.partitioner
            return [
                new_tuple(Output, (name, place, key, value, NO_HEADERS, None)) for key, (_, value) in writes.items()
            ]
        return self._converted(writes)

    def _converted(self, writes: ChangelogWrites) -> Iterator[Output]:
        name, place = self.topic.name, self.topic.partitioner
        for raw_key, (_, raw_value) in writes.items():
            if self.is_public is not None and not self.is_public(raw_key):
                continue
            if raw_value is not None:
                yield Output(name, place, self._key(raw_key), self._value(raw_value), NO_HEADERS, None)
            elif (key := self._key_of_delete(raw_key)) is not None:
                yield Output(name, place, key, None, NO_HEADERS, None)

    def _key_of_delete(self, raw_key: bytes) -> bytes | None:
        """Return the topic's key; None for one that it can't hold, so that there never was a record of it."""
        try:
            return self._key(raw_key)
        except Exception as error:
            logger.warning("store %s: key %s was never published: %s", self.store, show_bytes(raw_key), error)
            return None

    def _key(self, raw: bytes) -> bytes:
        return raw if self.convert_key is None else self.convert_key(raw)

    def _value(self, raw: bytes) -> bytes:
        return raw if self.convert_value is None else self.convert_value(raw)


Publications = Mapping[str, Publication]
"""By the store's name."""


class PublishedStore(Store[K, V], Generic[K, V]):
    """A store with a read-model topic.

    Attributes:
        publish: the topic, of `app.topic(...)`.
        codecs: gives the codecs of the store's keys and values.
    """

    def __init__(self, name: str, *, publish: Any, codecs: Callable[[], tuple[Any, Any]], **options: Any) -> None:
        super().__init__(name, **options)
        self.publish = publish
        self.codecs = codecs

    def _write(self, overlay: Overlay, state: TaskState, raw_key: bytes, raw_value: bytes, ttl_ms: int | None) -> None:
        # First: what raises must leave nothing in the overlay, though the handler may go on.
        size = state.tools.published[self.name].check(raw_key, raw_value)
        super()._write(overlay, state, raw_key, raw_value, ttl_ms)
        state.output_bytes += size
