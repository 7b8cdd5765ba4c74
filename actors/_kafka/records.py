"""Records as aiokafka's parser makes them, without a second object for each.

`getmany` copies every record into a `ConsumerRecord`, a frozen dataclass of eleven fields, which takes longer than
parsing it. A consumer made with `key_deserializer=RAW` hands out the parser's own records: they have `offset`,
`timestamp`, `key`, `value` and `headers`; which topic and partition they are of says the key under which `getmany`
gives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher


def RAW(_: Any) -> Any:  # noqa: N802  a marker; it has to be callable to pass for a deserializer
    """Mark a consumer; never called."""
    raise AssertionError("records are handed out as they are")


class _PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]
    """aiokafka's iterator over a fetch, with a short way for consumers that are marked."""

    _records_iterator: Any

    def __iter__(self) -> Iterator[Any]:
        return self._drain() if self._key_deserializer is RAW else super().__iter__()

    def _drain(self) -> Iterator[Any]:
        records: Iterator[Any] = self._records_iterator
        # Not `yield from`: who stops in the middle comes back for the rest, and that would close it.
        for record in records:  # noqa: UP028
            yield record
        # The generator and this object hold each other, and with them a megabyte that was fetched.
        self._records_iterator = None

    def _consumer_record(self, tp: Any, record: Any) -> Any:
        return record if self._key_deserializer is RAW else super()._consumer_record(tp, record)


fetcher.PartitionRecords = _PartitionRecords
