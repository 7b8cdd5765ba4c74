"""Quix Streams, run by the Python of its own environment as a plain file."""

from __future__ import annotations

from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]
from quixstreams.state import State  # type: ignore[import-not-found]
from settings import Settings  # type: ignore[import-not-found]


def count_per_key(value: Any, state: State) -> bytes:
    """Count the records of each key, and give every running count with the record that led to it."""
    count = state.get("count", 0) + 1
    state.set("count", count)
    return b"%d:%s" % (count, value)


def is_first(value: bytes, state: State) -> bool:
    """Whether this is the first record of its key."""
    if state.get_bytes("first") is not None:
        return False
    state.set_bytes("first", value)
    return True


def is_first_typed(value: dict[str, Any], state: State) -> bool:
    """The same where values are decoded JSON."""
    if state.get("first") is not None:
        return False
    state.set("first", value)
    return True


def main() -> None:
    """Run until a signal comes."""
    settings = Settings.read()
    extra: dict[str, Any] = {"session.timeout.ms": int(settings.session_s * 1000)}
    if settings.instance:
        extra["group.instance.id"] = settings.instance
    app = Application(
        broker_address=settings.brokers,
        consumer_group=settings.app,
        consumer_extra_config=extra,
        auto_offset_reset="earliest",
        commit_interval=settings.commit_s,
        processing_guarantee="exactly-once" if settings.exactly_once else "at-least-once",
        state_dir=settings.folder,
        loglevel="WARNING",
    )
    values = "json" if settings.typed else "bytes"
    source = app.topic(settings.source, key_deserializer="bytes", value_deserializer=values)
    counting = settings.work == "counter"
    target = app.topic(settings.target, key_serializer="bytes", value_serializer="bytes" if counting else values)
    stream = app.dataframe(source)
    if counting:
        stream = stream.apply(count_per_key, stateful=True)
    else:
        stream = stream.filter(is_first_typed if settings.typed else is_first, stateful=True)
    stream.to_topic(target)
    app.run()


if __name__ == "__main__":
    main()
