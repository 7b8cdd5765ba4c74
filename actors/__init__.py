"""Actors on Kafka: per-key state in RocksDB, backed by a compacted changelog topic, exactly once.

Examples:
    >>> from actors import App, Context
    >>> from actors.testing import ActorTestDriver
    >>> app = App("dispatcher", broker="kafka://127.0.0.1:9092")
    >>> commands = app.topic("commands", key_type=str, value_type=str)
    >>> runs = app.topic("runs", key_type=str, value_type=str)
    >>> seen = app.store("seen", key_type=str, value_type=str)
    >>> @app.actor(commands, stores=[seen])
    ... async def run_once(ctx: Context, command: str) -> None:
    ...     if seen.put_if_absent(ctx.key, command) is None:
    ...         ctx.send(runs, key=ctx.key, value=command)
    >>> with ActorTestDriver(app) as driver:
    ...     for command in ("backup", "backup"):
    ...         driver.send(commands, key="command-17", value=command)
    ...     [(sent.key, sent.value) for sent in driver.outputs(runs)]
    [('command-17', 'backup')]
"""

from actors._core import aggregates
from actors._core.task.policy import OnError
from actors._core.windows.kinds import Hopping, Session, Sliding, Tumbling, Window
from actors._faust.app import App
from actors._faust.extensions import WorkerExtension
from actors._faust.views import View
from actors.declare.options import ActorOptions
from actors.declare.streams.windows import Every
from actors.errors import (
    ActorsError,
    AskClosedError,
    AskCycleError,
    AskError,
    AskFailedError,
    AskRejectedError,
    AskTimeoutError,
    ConfigurationError,
    ForeignKeyError,
    HandlerFailedError,
    NewerProgramError,
    NewerVersionError,
    QueryError,
    ReadOnlyQueryError,
    RecordError,
    RecordTooLargeError,
    Rejected,
    StoreOutsideHandlerError,
    TakeoverRefusedError,
    UndecodableRecordError,
    UnknownStoreError,
    UnknownTopicError,
    UsageError,
    ViewClosedError,
    ViewError,
    ViewFailedError,
    ViewTimeoutError,
)
from actors.runtime.handlers.actor import Actor, receive
from actors.runtime.handlers.effect import Effect, GivenUp, Unknown
from actors.runtime.handlers.methods import timer
from actors.runtime.handlers.query_methods import query
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table
from actors.runtime.message.tools import AnswerLater, EffectCall, PendingEffect
from actors.runtime.requests.references import Reference
from actors.runtime.rows.stores import ListRows, ListStore, MapRows, MapStore, SetRows, SetStore
from actors.runtime.windows.store import WindowStore

__all__ = [
    "Actor",
    "ActorOptions",
    "ActorsError",
    "AnswerLater",
    "App",
    "AskClosedError",
    "AskCycleError",
    "AskError",
    "AskFailedError",
    "AskRejectedError",
    "AskTimeoutError",
    "ConfigurationError",
    "Context",
    "Effect",
    "EffectCall",
    "Every",
    "ForeignKeyError",
    "GivenUp",
    "HandlerFailedError",
    "Hopping",
    "ListRows",
    "ListStore",
    "MapRows",
    "MapStore",
    "NewerProgramError",
    "NewerVersionError",
    "OnError",
    "PendingEffect",
    "QueryError",
    "ReadOnlyQueryError",
    "RecordError",
    "RecordTooLargeError",
    "Reference",
    "Rejected",
    "Session",
    "SetRows",
    "SetStore",
    "Sliding",
    "Store",
    "StoreOutsideHandlerError",
    "Table",
    "TakeoverRefusedError",
    "Tumbling",
    "UndecodableRecordError",
    "Unknown",
    "UnknownStoreError",
    "UnknownTopicError",
    "UsageError",
    "View",
    "ViewClosedError",
    "ViewError",
    "ViewFailedError",
    "ViewTimeoutError",
    "Window",
    "WindowStore",
    "WorkerExtension",
    "aggregates",
    "query",
    "receive",
    "timer",
]
