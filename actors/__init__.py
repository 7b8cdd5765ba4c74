"""Actors on Kafka: per-key state in RocksDB, backed by a compacted changelog topic, exactly once."""

from actors._faust import cli as _cli  # noqa: F401  it registers its commands with Faust
from actors._faust.app import App
from actors._faust.options import ActorOptions
from actors.errors import (
    ActorsError,
    ConfigurationError,
    ForeignKeyError,
    HandlerFailedError,
    RecordError,
    RecordTooLargeError,
    StoreOutsideHandlerError,
    TakeoverRefusedError,
    UndecodableRecordError,
    UnknownStoreError,
    UnknownTopicError,
    UsageError,
)
from actors.runtime.actor import Actor, receive
from actors.runtime.context import Context, Store

__all__ = [
    "Actor",
    "ActorOptions",
    "ActorsError",
    "App",
    "ConfigurationError",
    "Context",
    "ForeignKeyError",
    "HandlerFailedError",
    "RecordError",
    "RecordTooLargeError",
    "Store",
    "StoreOutsideHandlerError",
    "TakeoverRefusedError",
    "UndecodableRecordError",
    "UnknownStoreError",
    "UnknownTopicError",
    "UsageError",
    "receive",
]
