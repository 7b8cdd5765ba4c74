"""How a question is asked: of any broker or of the group's coordinator, again until there is an answer, or for many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self, TypeVar

from aiokafka.client import CoordinationType
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaError,
    NoError,
    NotCoordinatorForGroupError,
    UnknownTopicOrPartitionError,
    for_code,
)

from actors._kafka.client import Client, check_installed
from actors._kafka.connection import Connection, words_of
from actors._kafka.permissions import lacking
from actors._kafka.reaching import reaching
from actors.errors import BrokerUnavailableError

T = TypeVar("T")

ANSWER_S = 30.0
"""How long one question is asked again, over moving coordinators and leaders, before the caller gets an error."""
RETRY_S = 0.05


class BrokerClient:
    """A connection that belongs to no consumer and no producer. Made by `open`."""

    def __init__(self, client: Client, group: str, connection: Connection) -> None:
        self._client = client
        self._group = group
        self.connection = connection
        self._coordinator: int | None = None

    @classmethod
    async def open(cls, connection: Connection, group: str) -> Self:
        """Connect.

        Raises:
            BrokerRefusedError: the password isn't taken, or the broker's certificate isn't trusted.
            BrokerUnavailableError: no broker of the list answers.
            ConfigurationError: the installed aiokafka can't be used.
        """
        check_installed()
        async with reaching(connection):
            return cls(await Client.connected(connection, "control"), group, connection)

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, connection: Connection, group: str) -> AsyncIterator[Self]:
        """Connect for the time of the block; else as `open`."""
        control = await cls.open(connection, group)
        try:
            yield control
        finally:
            await control.close()

    @property
    def broker_count(self) -> int:
        """How many brokers the cluster is known to have."""
        return len(self._client.cluster.brokers())

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        await self._client.close()

    async def ask_any(self, request: Any) -> Any:
        """Send a request to some broker, again while none answers."""
        return await self._answered(type(request).__name__, lambda: self._client.send(self._any_node(), request))

    async def _stale(self, why: str) -> KafkaError:
        await self._client.force_metadata_update()
        return UnknownTopicOrPartitionError(why)

    async def ask_coordinator(self, request: Any) -> Any:
        """Send a request to the group's coordinator, once; a transport error makes the next call look it up again."""
        if self._coordinator is None:
            self._coordinator = await self._client.coordinator_lookup(CoordinationType.GROUP, self._group)
        try:
            return await self._client.send(self._coordinator, request)
        except KafkaError:
            self._coordinator = None
            raise

    def check(self, code: int, topic: str = "") -> None:
        """Raise what an error code of the coordinator stands for, about the group or one of its topics."""
        error = for_code(code)
        if error is not NoError:
            raise self._moved(error, topic)

    def _moved(self, error: type[KafkaError], topic: str = "") -> KafkaError:
        if error in (
            NotCoordinatorForGroupError,
            GroupCoordinatorNotAvailableError,
            GroupLoadInProgressError,
        ):
            self._coordinator = None
        return error(topic) if topic else error()

    def _why(self, error: Exception) -> str:
        """Return an error with the brokers that don't answer: the client's errors are often empty."""
        away = ", ".join(self.connection.outages.away)
        said = words_of(error)
        return f"{said}; no answer from broker {away}" if away else said

    def _unavailable(self, what: str, error: Exception) -> BrokerUnavailableError:
        """Return the error for a question that the brokers don't answer; it names the permission if that is missing."""
        missing = lacking(error, self.connection.principal, name=self._group)
        return BrokerUnavailableError(f"{what}: {missing or self._why(error)}", missing=missing)

    def _any_node(self) -> int:
        node = self._client.get_random_node()
        if node is None:
            raise GroupCoordinatorNotAvailableError("no broker is known")
        return int(node)

    async def _answered(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer or `ANSWER_S` is over."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + ANSWER_S
        while True:
            try:
                return await ask()
            except (KafkaError, OSError, TimeoutError) as error:
                retriable = getattr(error, "retriable", True) or isinstance(error, UnknownTopicOrPartitionError)
                if not retriable or loop.time() >= deadline_s:
                    raise self._unavailable(what, error) from error
                if getattr(error, "invalid_metadata", False) or not isinstance(error, KafkaError):
                    await self._client.force_metadata_update()
            await asyncio.sleep(RETRY_S)


class SharedRead:
    """Runs `read` for all callers that wait when it begins; a caller that comes later waits for the next one.

    So a caller never gets an answer that is older than its question.
    """

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._lock = asyncio.Lock()
        self._asked = 0
        self._covered = 0

    async def __call__(self) -> None:
        """Return after a read that began after this call; its errors are those of `read`."""
        self._asked += 1
        ticket = self._asked
        async with self._lock:
            if ticket > self._covered:
                covered = self._asked
                await self._read()
                self._covered = covered
