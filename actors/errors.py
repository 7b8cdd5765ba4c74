"""Everything that `actors` raises. Each error says what happened, where, and what to do.

The errors below `TaskError` are named after the recovery they need, and stay inside the runtime.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import IO, Any, Self

import click

from stores._core.printable import printable

_NOT_THE_USERS = (
    str(Path(__file__).resolve().parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib", "scripts")),
    "<frozen",
)


class ActorsError(Exception):
    """The root of this package's errors."""


class ConfigurationError(ActorsError, click.ClickException):
    """The app, its settings or its topics don't fit together: the worker doesn't start.

    Raised while a command of `faust` imports the app's module, it ends the command with one line and exit code 1.
    """

    def show(self, file: IO[str] | None = None) -> None:
        """Print the line, with the place of the declaration."""
        click.echo(printable(f"Error: {place_of(self)}{self}", keep="\n"), file=file or click.get_text_stream("stderr"))


def place_of(error: BaseException) -> str:
    """Return the file and line outside of this package that led to an error, nothing if there is none."""
    outside = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if not any(name.startswith(folder) for folder in _NOT_THE_USERS):
            outside = f"{name}:{line}: "
    return outside


class UsageError(ActorsError):
    """The user's code called the framework in a way that can't work."""


class StoreOutsideHandlerError(UsageError):
    """A store was used where no message is being handled."""


class UnknownStoreError(UsageError):
    """A handler used a store that its actor doesn't list in `stores=`."""


class ForeignKeyError(UsageError):
    """A handler used a key that lives in another partition: another task owns it."""


class UnknownTopicError(UsageError):
    """A handler sent to a topic that the broker doesn't have."""


class RecordTooLargeError(UsageError):
    """A handler wrote or sent a record that its topic's `max.message.bytes` refuses."""


class Rejected(ActorsError):  # noqa: N818  what a handler answers, not a failure of it
    """Raised by a handler to refuse a message: nothing that it wrote or sent remains, and who asked is told why.

    `data` is for who asked: anything that JSON can say. Errors of other classes refuse a message too if the actor names
    them in `OnError(reject=…)`.

    Examples:
        >>> from actors import App, AskRejectedError, Context, Rejected
        >>> from actors.testing import ActorTestDriver
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> @app.actor(app.topic("orders", key_type=str, value_type=int))
        ... async def take(ctx: Context, count: int) -> str:
        ...     if count < 1:
        ...         raise Rejected("nothing was ordered")
        ...     return "taken"
        >>> with ActorTestDriver(app) as driver:
        ...     try:
        ...         driver.ask(take, "ada", 0)
        ...     except AskRejectedError as error:
        ...         print(error.reason)
        nothing was ordered
    """

    data: Any = None

    def __init__(self, *args: object, data: Any = None) -> None:
        super().__init__(*args)
        self.data = data


class AskError(ActorsError):
    """An ask came to nothing.

    Attributes:
        reason: the text of the other handler's error, empty if there is none.
        type: the name of the error's class.
        data: that of its `Rejected`, as JSON has it.
    """

    def __init__(self, *args: object, reason: str = "", type: str = "", data: Any = None) -> None:
        super().__init__(*args)
        self.reason, self.type, self.data = reason, type, data


class AskTimeoutError(AskError):
    """No answer came in time; whether the other actor handled the message is unknown."""


class AskClosedError(AskError):
    """The client was closed before an answer came; whether the other actor handles the message is unknown."""


class AskRejectedError(AskError):
    """The other actor's handler refused the message, by `Rejected` or an error that its actor's `reject` names."""


class AskFailedError(AskError):
    """The other actor's handler failed, and its message was skipped or parked; or its answer can't be given."""


class AskCycleError(AskError):
    """The actor that is asked waits for an answer to which this ask belongs: it would wait for ever."""


class ViewError(ActorsError):
    """A view can't give what it is asked for."""


class ViewClosedError(ViewError):
    """A view was used before it was opened or after it was closed."""


class ViewTimeoutError(ViewError, TimeoutError):
    """The view didn't reach the state that was waited for in time."""


class ViewFailedError(ViewError):
    """A view ended because its topic isn't what it was: its content isn't followed any more."""


class QueryError(ActorsError):
    """A query can't be answered."""


class NotOwnerError(QueryError):
    """Another worker owns the partition that a query is about."""


class NotReadyError(QueryError):
    """A query can't be answered at the moment: ask again."""


class ReadOnlyQueryError(QueryError, UsageError):
    """A query tried to write, to send, or to reach another key than its own."""


class RecordError(ActorsError):
    """An input record can't be handled. It isn't skipped: its partition stops in front of it.

    The record is named by `topic`, `partition`, `offset` and `key` (its bytes, or None). `is_passed` says whether
    records behind it are finished, as with key-parallel handlers; `remedy` is what to do about it, and `is_alone`
    whether it helps to give this one record up. `internal` is (actor, id) of an internal message: a timer or the result
    of an effect.
    """

    is_alone = True
    remedy = "Mend the handler or the record's schema and restart the worker"

    def __init__(self, reason: str, *, topic: str, partition: int, offset: int, key: bytes | None) -> None:
        self.reason = reason
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.is_passed = False
        self.internal: tuple[str, str] | None = None
        super().__init__(reason)

    @classmethod
    def about(cls, record: Any, source: tuple[str, int], reason: str) -> Self:
        """Return the error about a record of an input partition."""
        return cls(reason, topic=source[0], partition=source[1], offset=record.offset, key=record.key)

    def __str__(self) -> str:
        return printable(self._text())

    def _text(self) -> str:
        source = f"{self.topic}[{self.partition}]"
        if self.internal is not None:
            actor, id = self.internal
            which = f"{actor} {self.partition} {id}"
            return (
                f"{source} key {show_bytes(self.key)}: {self.reason}. The partition is stopped and nothing of it was "
                f"written or sent. Mend the handler and restart the worker, or try it again with `faust -A APP stopped "
                f"retry {which}`; to give it up, `faust -A APP stopped drop {which}`."
            )
        if self.is_passed:
            give_up = (
                'to give the record up, start the workers once with on_error="skip" for its actor; moving the group\'s '
                "offset would lose which records behind it are finished"
            )
        else:
            give_up = (
                f"to give the record up, stop the workers, move the group's committed offset of {source} to "
                f"{self.offset + 1}, and start them once with MOVED_OFFSET=accept in the environment"
            )
        return (
            f"{source} offset {self.offset} key {show_bytes(self.key)}: {self.reason}. "
            "The partition is stopped in front of this record and nothing of it was written or sent. "
            f"{self.remedy}{f'; {give_up}' if self.is_alone else ''}."
        )


class UndecodableRecordError(RecordError):
    """The record's key or value isn't what the topic declares."""


class UnreadableRecordError(UndecodableRecordError):
    """The client can't read the record, or a whole batch of which it is the last one."""


class MisplacedRecordError(RecordError):
    """The record is in another partition than its key's, so that the key would have state in two partitions."""

    is_alone = False


class LateRecordError(RecordError):
    """The record came too late, and its actor has late="stop": `on_error` isn't asked."""

    remedy = (
        'To go on without such records, declare late="drop", "warn", or a topic that gets them, or give window stores '
        "a longer grace, and restart the worker"
    )


class RefusedRecordError(RecordError):
    """The broker refuses what the record's handler wrote or sent; its answer is this one's cause.

    `is_final`: it refused too what skipping or parking the record wrote, so the partition stops.
    """

    is_final = False


class NewerProgramError(RecordError):
    """The record leads to data that only a newer program can read. Its partition stops whatever `on_error` says.

    `is_message`: the data is the message itself, of a type that no handler takes. An actor that parks parks it.
    """

    is_message = False

    def _text(self) -> str:
        return (
            f"{self.topic}[{self.partition}] offset {self.offset} key {show_bytes(self.key)}: {self.reason}. "
            "The partition is stopped in front of this record, whatever on_error says; nothing of it was written or "
            "sent. Run the program that wrote the data, or a newer one; see the documentation's page 'Upgrades'"
        )


class NewerVersionError(ActorsError, ValueError):
    """Data of a version, or a message of a type, that this program doesn't know."""


class UnknownTypeError(NewerVersionError):
    """A message of a type that no handler takes."""


class UnresolvedSchemaError(ActorsError):
    """A schema that a key or value needs isn't in this process yet: fetch it, and try again.

    Attributes:
        fetch: asks the registry once, with a pause after a failure; returns whether it has answered. Several callers
            share one request.
    """

    def __init__(self, what: str, fetch: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(what)
        self.fetch = fetch


class HandlerFailedError(RecordError):
    """The handler raised; the exception is this one's cause."""


class TakeoverRefusedError(ActorsError):
    """The broker's offsets and logs of a task contradict its state: an operator has to choose."""


class UnreadableLogError(TakeoverRefusedError):
    """A log from which state is restored has records that can't be read.

    `source` is its topic and partition, `next_offset` the one behind them.
    """

    def __init__(self, reason: str, *, source: tuple[str, int], next_offset: int) -> None:
        self.source = source
        self.next_offset = next_offset
        super().__init__(reason)


class InputGrownError(TakeoverRefusedError):
    """The input of an actor with state was given partitions: keys have other homes now than their state."""


class LostChangelogError(TakeoverRefusedError):
    """A changelog lacks records that a store has: an operator has to choose which of the two counts."""


class TaskError(ActorsError):
    """A task can't go on as it is.

    `missing` names the permission that the brokers' access lists don't give; "" if it isn't about one.
    """

    def __init__(self, *args: object, missing: str = "") -> None:
        super().__init__(*args)
        self.missing = missing


class MigratedError(TaskError):
    """This worker isn't the task's owner any more: discard and close, emit nothing."""


class OutcomeUnknownError(TaskError):
    """A commit may or may not have happened: discard, and let the takeover look."""


class FencedError(OutcomeUnknownError):
    """Another process has the worker's transactional id, or the broker ended its transaction."""


class StaleGenerationError(OutcomeUnknownError):
    """The coordinator refused a commit's offsets: the group has another generation. Exactly once, nothing was sent."""


class CommitRefusedError(TaskError):
    """The broker refuses what a commit holds, for certain: the same commit would be refused again."""


class UnstableOffsetError(TaskError):
    """An open transaction may change a committed offset: ask again when it has ended."""


class BatchesRefusedError(ActorsError):
    """Nothing of a transaction was committed, because of some of its batches.

    Attributes:
        errors: why, by the batches' places in the transaction; one at least.
    """

    def __init__(self, errors: Mapping[int, TaskError]) -> None:
        super().__init__("; ".join(map(str, errors.values())))
        self.errors = errors


class BrokerUnavailableError(TaskError):
    """The broker didn't answer, or not in a way that says anything: ask again later."""


class BrokerRefusedError(BrokerUnavailableError):
    """The broker doesn't take who connects, or isn't the one that it should be: settings are wrong, on either side."""


class RestoreError(TaskError):
    """The changelog couldn't be read as it was expected to be: look again."""


class ReplacedLogError(RestoreError):
    """The topic that is read isn't the one that the brokers have under its name any more; `source` is the partition."""

    def __init__(self, source: tuple[str, int], reason: str) -> None:
        self.source = source
        super().__init__(f"{source[0]}[{source[1]}]: {reason}")


class LogWentBackError(RestoreError):
    """A commit's changelog records lie before what the store has: the changelog lost records."""


def show_bytes(raw: bytes | None, limit: int = 80) -> str:
    """Return `raw` for a person: as text where it is text, cut to `limit` bytes."""
    if raw is None:
        return "(null)"
    cut = raw[:limit]
    text = cut.decode("utf-8", errors="backslashreplace")
    return repr(text) + ("…" if len(raw) > limit else "")
