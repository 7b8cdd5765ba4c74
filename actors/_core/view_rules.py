"""The decisions of a view from facts: its topics, when its copy can't be continued, what a record changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from stores._core.record import METADATA_BYTES

Change = tuple[bytes, bytes | None, bytes | None]
"""A key with its value with its metadata before and after, None where it was or is absent."""


def unfit(topic: str, cleanup_policy: str, delete_retention_ms: int, margin_ms: int) -> str | None:
    """Return why a topic can't be held as a view, None if it can."""
    if cleanup_policy != "compact":
        return (
            f"topic {topic} has cleanup.policy={cleanup_policy}, so that it doesn't keep the last value of each key: a "
            "view needs cleanup.policy=compact (kafka-configs.sh --bootstrap-server BROKER --alter --topic "
            f"{topic} --add-config cleanup.policy=compact)"
        )
    if delete_retention_ms <= 2 * margin_ms:
        return (
            f"topic {topic} has delete.retention.ms={delete_retention_ms}, not more than twice the clock_skew_margin "
            f"of {margin_ms} ms: deletes could escape the view. Raise the topic's setting (kafka-configs.sh "
            f"--bootstrap-server BROKER --alter --topic {topic} --add-config delete.retention.ms=86400000), or lower "
            "clock_skew_margin"
        )
    return None


def other_partitions(topic: str, held: int, found: int) -> str:
    """Say that a topic got partitions, and what to do."""
    return (
        f"topic {topic} has {found} partitions, the view holds {held}: keys may be in two of them, and which value is "
        "the newer one is unknown. Create the topic again with that many partitions and write all keys again, or close "
        "the view, delete its folder and open it again if no key has moved"
    )


def changes(writes: Iterable[tuple[bytes, bytes | None]], held: Callable[[bytes], bytes | None]) -> Iterator[Change]:
    """Yield what writes change, in their order. A write of what is there already, save for its metadata, is no change.

    `held` gives a key's value with its metadata before all of them.
    """
    newest: dict[bytes, bytes | None] = {}
    for key, new in writes:
        old = newest[key] if key in newest else held(key)
        newest[key] = new
        if _differ(old, new):
            yield key, old, new


def differences(old: Iterator[tuple[bytes, bytes]], new: Iterator[tuple[bytes, bytes]]) -> Iterator[Change]:
    """Yield what differs between two states, each in byte order of the keys."""
    left, right = next(old, None), next(new, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            if left is not None:
                yield left[0], left[1], None
            left = next(old, None)
        elif left is None or right[0] < left[0]:
            yield right[0], None, right[1]
            right = next(new, None)
        else:
            if _differ(left[1], right[1]):
                yield left[0], left[1], right[1]
            left, right = next(old, None), next(new, None)


def _differ(old: bytes | None, new: bytes | None) -> bool:
    if old is None or new is None:
        return old is not new
    return old[METADATA_BYTES:] != new[METADATA_BYTES:]
