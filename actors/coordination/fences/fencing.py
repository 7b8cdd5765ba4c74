"""Resources that guard themselves: each keeps the greatest token that it saw, and refuses smaller ones.

A process that was stopped can't know that its lease is over before it runs on, and by then it may be in the middle of a
write. So a lock alone protects nothing outside of it. The tokens of a lock grow with each grant; what the lock protects
compares them, at the only place where nothing can come in between: in the write itself.

`FencedSqlite` is such a resource, `FencedResource` what is needed to make one of any store that has transactions or
conditional writes, and `actors.coordination.fences.topic` does it with a log, which can't compare anything.
"""

from __future__ import annotations

import abc
import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from actors.coordination.errors import CoordinationError, StaleTokenError

AccessT = TypeVar("AccessT")

MAX_TOKEN = 2**63 - 1
"""The greatest number that SQLite and most others keep exactly."""
BUSY_S = 30.0


class Fence:
    """The rule, without I/O: the greatest token of each resource is kept; a smaller one is refused.

    An equal one is the same holder's next write. Only tokens of one lock can be compared, and only of a lock that
    excludes: of the holders of a semaphore or of readers (`shared=True`), all but the last would be refused.

    Args:
        greatest: {resource: token} to begin with.

    Examples:
        >>> fence = Fence({"ledger": 7})
        >>> fence.admit("ledger", 9)
        True
        >>> fence.admit("ledger", 7)
        Traceback (most recent call last):
        actors.coordination.errors.StaleTokenError: ...
    """

    def __init__(self, greatest: Mapping[str, int] | None = None) -> None:
        self._greatest = dict(greatest or {})

    @property
    def greatest(self) -> dict[str, int]:
        """The greatest token of each resource, as a copy."""
        return dict(self._greatest)

    def greatest_of(self, resource: str) -> int:
        """Return the greatest token that was seen, 0 if none was."""
        return self._greatest.get(resource, 0)

    def check(self, resource: str, token: int) -> None:
        """Do nothing if a write with `token` would be let through.

        Raises:
            StaleTokenError: a greater one was seen.
            CoordinationError: it is no lock's token, with reason "argument".
        """
        check_token(resource, token)
        greatest = self.greatest_of(resource)
        if token < greatest:
            raise StaleTokenError(resource, token, greatest)

    def admit(self, resource: str, token: int) -> bool:
        """Let a write with `token` through, and tell whether that raised the fence; else as `check`."""
        self.check(resource, token)
        is_raised = token > self.greatest_of(resource)
        self._greatest[resource] = token
        return is_raised


def check_token(resource: str, token: int) -> None:
    """Do nothing if it is one that a lock gives.

    Raises:
        CoordinationError: it isn't, with reason "argument".
    """
    if not isinstance(token, int) or not 0 < token <= MAX_TOKEN:
        raise CoordinationError(
            f"{resource!r}: {token!r} is no fencing token: hand over the token of a lock's lease; memberships and "
            "sessions have none",
            "argument",
        )


class FencedResource(abc.ABC, Generic[AccessT]):
    """A resource that refuses those who lost its lock. Subclass it for a store that can do something atomically.

    The token has to be compared **and** kept in one step with the write, by the resource itself:

    - Compared in the client (`lease.check()`, or a read of the token before the write), the client may stand still
      between the comparison and the write, for longer than its lease. That is the very thing to be protected against.
    - Kept in another step than the write, a crash in between leaves a write that nobody is fenced by, or a stale
      holder's write comes in between.
    - Kept anywhere but with the data, a backup that is restored brings the one back without the other.

    An implementation gives `transaction`, in which no other writer of this resource gets on until its end, and in it
    `greatest_token` and `keep_token`. See `FencedSqlite` for one.

    Args:
        resource: what the lock calls it. Data that two locks protect is two resources.

    Examples:
        A store in memory, for a program with one thread:

        >>> class Prices(FencedResource[dict[str, int]]):
        ...     prices, token = {"hat": 1900}, 0
        ...     @contextlib.contextmanager
        ...     def transaction(self):
        ...         draft, token = dict(self.prices), self.token
        ...         try:
        ...             yield draft
        ...         except BaseException:
        ...             self.token = token
        ...             raise
        ...         self.prices = draft
        ...     def greatest_token(self, access):
        ...         return self.token
        ...     def keep_token(self, access, token):
        ...         self.token = token
        >>> prices = Prices("prices")
        >>> with prices.writing(7) as draft:
        ...     draft["hat"] = 1500
        >>> prices.prices, prices.token
        ({'hat': 1500}, 7)
        >>> with prices.writing(6) as draft:
        ...     draft["hat"] = 1
        Traceback (most recent call last):
        actors.coordination.errors.StaleTokenError: ...
    """

    def __init__(self, resource: str) -> None:
        self.resource = resource

    @contextlib.contextmanager
    def writing(self, token: int) -> Iterator[AccessT]:
        """Write in the block: all of it, or nothing if it raises.

        Raises:
            StaleTokenError: a greater token was seen; the block isn't entered and nothing is written.
            CoordinationError: `token` isn't one.
        """
        check_token(self.resource, token)
        with self.transaction() as access:
            if Fence({self.resource: self.greatest_token(access)}).admit(self.resource, token):
                self.keep_token(access, token)
            yield access

    @abc.abstractmethod
    def transaction(self) -> AbstractContextManager[AccessT]:
        """Return a block that keeps other writers out, commits at its end, and undoes all if it raises.

        A store that lets two begin and fails one of them at its commit (serialisable) will do as well.
        """

    @abc.abstractmethod
    def greatest_token(self, access: AccessT) -> int:
        """Return the greatest token that was kept, 0 if none was."""

    @abc.abstractmethod
    def keep_token(self, access: AccessT, token: int) -> None:
        """Keep the token in the transaction."""


class FencedSqlite(FencedResource[sqlite3.Connection]):
    """A SQLite database, or a part of it, as a guarded resource, for any number of processes.

        with ledger.writing(lease.token) as connection:
            connection.execute("INSERT INTO lines VALUES (?)", (line,))

    The greatest token is in the table `fencing_tokens`, which is made with the first write. All who write what
    `resource` stands for have to write through this. A holder that stands still inside of the block keeps the others
    waiting, as with any transaction of SQLite, and its write then comes before theirs.

    Args:
        connection: used by one thread at a time. Its `row_factory` and the like may be anything; no transaction may be
            open when a block is entered. It stays open.
        resource: what the lock calls it.

    Examples:
        >>> with FencedSqlite.open(":memory:", "ledger") as ledger:
        ...     with ledger.writing(7) as connection:
        ...         _ = connection.execute("CREATE TABLE lines AS SELECT 'first' AS line")
        ...     try:
        ...         with ledger.writing(6) as connection:
        ...             _ = connection.execute("INSERT INTO lines VALUES ('late')")
        ...     except StaleTokenError:
        ...         ledger.connection.execute("SELECT line FROM lines").fetchall()
        [('first',)]
    """

    def __init__(self, connection: sqlite3.Connection, resource: str) -> None:
        super().__init__(resource)
        self._connection = connection

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: str | Path, resource: str, *, busy_s: float = BUSY_S) -> Iterator[Self]:
        """Open a database for the time of a block; who writes waits for others so many seconds.

        Raises:
            sqlite3.Error: it can't be opened.
        """
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=busy_s)) as connection:
            yield cls(connection, resource)

    @property
    def connection(self) -> sqlite3.Connection:
        """For reading, and for making tables."""
        return self._connection

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """See `FencedResource.transaction`.

        Raises:
            CoordinationError: a transaction was open already, or the block ended it by itself; reason "argument".
            sqlite3.OperationalError: others kept the database locked for too long.
        """
        return _Immediate(self._connection, self.resource)

    def greatest_token(self, access: sqlite3.Connection) -> int:
        """See `FencedResource.greatest_token`."""
        access.execute("CREATE TABLE IF NOT EXISTS fencing_tokens (resource TEXT PRIMARY KEY, token INTEGER NOT NULL)")
        cursor = access.cursor()
        cursor.row_factory = None
        found = cursor.execute("SELECT token FROM fencing_tokens WHERE resource = ?", (self.resource,)).fetchone()
        return 0 if found is None else int(found[0])

    def keep_token(self, access: sqlite3.Connection, token: int) -> None:
        """See `FencedResource.keep_token`."""
        access.execute(
            "INSERT INTO fencing_tokens VALUES (?, ?) ON CONFLICT (resource) DO UPDATE SET token = excluded.token",
            (self.resource, token),
        )


class _Immediate:
    """A transaction that has the write lock from its beginning, whatever the connection does with them by itself.

    With a deferred one the token would be read before the lock is had: two writers could both find theirs good, and
    the second one fails for that with a lock error, which says nothing of a lost lease.
    """

    def __init__(self, connection: sqlite3.Connection, resource: str) -> None:
        self._connection = connection
        self._resource = resource

    def __enter__(self) -> sqlite3.Connection:
        if self._connection.in_transaction:
            raise CoordinationError(
                f"{self._resource!r}: a transaction is open on the connection, so the token can't be compared in one "
                "of its own: commit it first, and make the connection with isolation_level=None",
                "argument",
            )
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self._connection
        if not connection.in_transaction:
            if kind is None:
                raise CoordinationError(
                    f"{self._resource!r}: the block ended its transaction itself, so what it wrote after that wasn't "
                    "guarded: leave commit, rollback and executescript to the block's end",
                    "argument",
                )
            return
        if kind is None:
            try:
                connection.execute("COMMIT")
            except BaseException:
                self._undo()
                raise
        else:
            self._undo()

    def _undo(self) -> None:
        # What failed may have been undone by SQLite itself.
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
