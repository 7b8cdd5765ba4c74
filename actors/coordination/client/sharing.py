"""The client's shared knowledge: leaders, configuration nodes, sessions, groups, barriers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from typing import Any, Self
from uuid import uuid4

from actors.coordination import messages as m
from actors.coordination.client.leases import Lease, Leasing
from actors.coordination.client.locking import Locks, Seconds, seconds
from actors.coordination.errors import CoordinationError, CoordinationTimeoutError, LeaseLostError
from actors.coordination.locks import Holder
from actors.coordination.registry import Member

WATCH_S = 60.0
"""A watch is sent again after this time; changes in between show in the version."""


class Sharing(Locks):
    """Shared data: nodes, watches and parties. Durations and errors as in `Locks`."""

    async def leader(self, name: str) -> Holder | None:
        """Return the leader: `data` as passed to `campaign`, and `token`, which grows from leader to leader."""
        return next(iter((await self.look(name)).holders), None)

    async def watch(self, name: str, after: int = -1) -> AsyncIterator[m.View]:
        """Yield the view of a resource, now and after each change, without an end.

        What changes twice in a short time may be seen once: a later view is never older than an earlier one.

        Args:
            name: of the resource.
            after: a view's version, to see only what is newer.
        """
        while True:
            view = await self._watched(name, after)
            if view is not None and view.version > after:
                after = view.version
                yield view

    async def _watched(self, name: str, after: int) -> m.View | None:
        request = m.Watch(after=after, wait_ms=int(WATCH_S * 1000))
        reply = await self._transport.ask(name, request, WATCH_S + self._call_s)
        if isinstance(reply, m.Changed):
            # It is large, and many may watch: each fetches it by itself.
            return await self.look(name) if reply.version > after else None
        return self._viewed(name, request, reply)

    async def get(self, name: str) -> tuple[str, int] | None:
        """Return the node's data and version, None if it is missing."""
        view = await self.look(name)
        return None if view.data is None else (view.data, view.data_version)

    async def put(self, name: str, data: str, *, version: int | None = None) -> int:
        """Write a node and give its version.

        Args:
            name: of the node.
            data: up to 64 kB of UTF-8.
            version: what it has to be now, 0 for a missing node; any if left out.

        Raises:
            ConflictError: it is another one.
        """
        return await self._done(name, m.Put(data=data, expected=version))

    async def delete(self, name: str, *, version: int | None = None) -> int:
        """Delete a node; else as `put`."""
        return await self._done(name, m.Put(data=None, expected=version))

    @contextlib.asynccontextmanager
    async def session(self, ttl: Seconds = 30.0) -> AsyncIterator[Session]:
        """Return a session for a block: the ephemeral nodes that it makes are there as long as it lives."""
        session = Session(self, seconds("ttl", ttl))
        try:
            yield session
        finally:
            await session.close()

    def join(self, group: str, member: str, data: str = "", ttl: Seconds = 30.0) -> Leasing:
        """Be a member of a group in an `async with` block; `lost` is set if the group may have given one up."""
        return Leasing(functools.partial(self._joined, group, member, data, seconds("ttl", ttl)))

    async def members(self, group: str) -> tuple[Member, ...]:
        """Return the members in the order in which they joined. See `watch` for changes."""
        return (await self.look(group)).members

    async def _joined(self, group: str, member: str, data: str, ttl_s: float) -> Lease:
        ttl_ms, claim = int(ttl_s * 1000), uuid4().hex
        return await self._kept(
            group,
            member,
            ttl_s,
            first=m.Join(member=member, ttl_ms=ttl_ms, data=data, claim=claim),
            renewal=m.Beat(member=member, ttl_ms=ttl_ms, claim=claim),
            ending=m.Leave(member=member, claim=claim),
        )

    async def _kept(
        self, name: str, owner: str, ttl_s: float, *, first: m.Put | m.Join, renewal: m.AnyRequest, ending: m.AnyRequest
    ) -> Lease:
        begin_s = self._transport.clock.monotonic()
        await self._claimed(name, first)
        lease = Lease(
            self._transport, name, owner, token=0, ttl_s=ttl_s, from_s=begin_s, renewal=renewal, ending=ending
        )
        try:
            return await lease.begin()
        except (LeaseLostError, asyncio.CancelledError):
            self._withdraw(name, m.Withdraw(claim=first.claim))
            raise

    async def _claimed(self, name: str, request: m.Put | m.Join | m.Enter, wait_s: float = 0.0) -> int:
        """Send a request, and withdraw it if the call ends without a reply: it may be carried out too late."""
        try:
            return await self._done(name, request, wait_s)
        except (CoordinationTimeoutError, asyncio.CancelledError):
            self._withdraw(name, m.Withdraw(claim=request.claim))
            raise

    async def barrier(self, name: str, parties: int, *, timeout: Seconds = 60.0, party: str | None = None) -> int:
        """Wait until so many `parties` wait here, and give how often the barrier has opened.

        Raises:
            CoordinationTimeoutError: fewer came in time.
            LockMismatchError: others expect another number.
        """
        wait_s = min(seconds("timeout", timeout), m.MAX_WAIT_MS / 1000)
        who = party or self._transport.new_owner(name)
        enter = m.Enter(party=who, parties=parties, wait_ms=int(wait_s * 1000), claim=uuid4().hex)
        return await self._claimed(name, enter, wait_s)


class Session:
    """Keeps ephemeral nodes alive. Each is kept by itself; when one is lost, `lost` is set."""

    def __init__(self, client: Sharing, ttl_s: float) -> None:
        self.id = uuid4().hex
        self.lost = asyncio.Event()
        self._client = client
        self._ttl_s = ttl_s
        self._nodes: dict[str, Lease] = {}
        self._watching: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def put(self, name: str, data: str, *, version: int | None = 0) -> Lease:
        """Make an ephemeral node, by default one that isn't there yet.

        Raises:
            ConflictError: it has another version: somebody else made it.
            CoordinationError: the session was closed, before or meanwhile: the node isn't kept.
        """
        if self._is_closed:
            raise self._closed(name)
        ttl_ms, claim = int(self._ttl_s * 1000), uuid4().hex
        lease = await self._client._kept(
            name,
            self.id,
            self._ttl_s,
            first=m.Put(data=data, expected=version, session=self.id, ttl_ms=ttl_ms, claim=claim),
            renewal=m.Keep(session=self.id, ttl_ms=ttl_ms),
            ending=m.Drop(session=self.id, claim=claim),
        )
        if self._is_closed:
            await lease.release()
            raise self._closed(name)
        earlier, self._nodes[name] = self._nodes.get(name), lease
        if earlier is not None:
            earlier.replaced()
        watching = asyncio.create_task(self._watch(lease), name=f"watching {name}")
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        return lease

    async def _watch(self, lease: Lease) -> None:
        await lease.lost.wait()
        self.lost.set()

    async def close(self) -> None:
        """Delete its nodes, also nodes that are still being made. May be called twice."""
        self._is_closed = True
        for task in self._watching:
            task.cancel()
        nodes, self._nodes = self._nodes, {}
        await asyncio.gather(*(lease.release() for lease in nodes.values()))

    @staticmethod
    def _closed(name: str) -> CoordinationError:
        return CoordinationError(f"putting {name!r}: its session was closed: begin another", "closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
