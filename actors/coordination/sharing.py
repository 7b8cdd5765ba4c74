"""The client's shared knowledge: leaders, configuration nodes, sessions, groups, barriers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from actors._core.locks import Holder
from actors._core.registry import Member
from actors.coordination import messages as m
from actors.coordination.leases import Lease, Leasing
from actors.coordination.locking import Locks, Seconds, seconds

WATCH_S = 60.0
"""A watch is asked anew after so long; what changed in between is seen by its version."""


class Sharing(Locks):
    """What can be known together. See `Locks` for durations and errors."""

    # --- leaders ---------------------------------------------------------------------------------------------------

    async def leader(self, name: str) -> Holder | None:
        """Give who leads: `data` as it was given to `campaign`, and `token`, which grows from leader to leader."""
        return next(iter((await self.look(name)).holders), None)

    async def watch(self, name: str, after: int = -1) -> AsyncIterator[m.View]:
        """Give what there is to see of a resource, now and after each change, for ever.

        What changes twice in a short time may be seen once: a later view is never older than an earlier one.

        Args:
            name: of the resource.
            after: a view's version, to see only what is newer.
        """
        while True:
            view = await self._view(name, m.Watch(after=after, wait_ms=int(WATCH_S * 1000)), WATCH_S)
            if view.version > after:
                after = view.version
                yield view

    # --- nodes -----------------------------------------------------------------------------------------------------

    async def get(self, name: str) -> tuple[str, int] | None:
        """Give the node's data and version, None if it isn't there."""
        view = await self.look(name)
        return None if view.data is None else (view.data, view.data_version)

    async def put(self, name: str, data: str, *, version: int | None = None) -> int:
        """Write a node and give its version.

        Args:
            name: of the node.
            data: up to 64 k characters.
            version: what it has to be now, 0 for a node that isn't there; any if left out.

        Raises:
            ConflictError: it is another one.
        """
        return await self._done(name, m.Put(data=data, expected=version))

    async def delete(self, name: str, *, version: int | None = None) -> int:
        """Delete a node; else as `put`."""
        return await self._done(name, m.Put(data=None, expected=version))

    @contextlib.asynccontextmanager
    async def session(self, ttl: Seconds = 30.0) -> AsyncIterator[Session]:
        """Give a session for a block: the ephemeral nodes that it makes are there as long as it lives."""
        session = Session(self, seconds("ttl", ttl))
        try:
            yield session
        finally:
            await session.close()

    # --- groups and barriers ---------------------------------------------------------------------------------------

    def join(self, group: str, member: str, data: str = "", ttl: Seconds = 30.0) -> Leasing:
        """Be a member of a group in an `async with` block; `lost` is set if the group may have given one up."""
        return Leasing(functools.partial(self._joined, group, member, data, seconds("ttl", ttl)))

    async def members(self, group: str) -> tuple[Member, ...]:
        """Give the members in the order in which they joined. See `watch` for changes."""
        return (await self.look(group)).members

    async def _joined(self, group: str, member: str, data: str, ttl_s: float) -> Lease:
        ttl_ms = int(ttl_s * 1000)
        return await self._kept(
            group,
            member,
            ttl_s,
            first=m.Join(member=member, ttl_ms=ttl_ms, data=data),
            renewal=m.Beat(member=member, ttl_ms=ttl_ms),
            ending=m.Leave(member=member),
        )

    async def _kept(
        self, name: str, owner: str, ttl_s: float, *, first: m.AnyRequest, renewal: m.AnyRequest, ending: m.AnyRequest
    ) -> Lease:
        begin_s = self._transport.clock.monotonic()
        await self._done(name, first)
        lease = Lease(
            self._transport, name, owner, token=0, ttl_s=ttl_s, from_s=begin_s, renewal=renewal, ending=ending
        )
        return await lease.begin()

    async def barrier(self, name: str, parties: int, *, timeout: Seconds = 60.0, party: str | None = None) -> int:
        """Wait until so many `parties` wait here, and give how often the barrier has opened.

        Raises:
            CoordinationTimeoutError: fewer came in time.
            LockMismatchError: others expect another number.
        """
        wait_s = min(seconds("timeout", timeout), m.MAX_WAIT_MS / 1000)
        who = party or self._transport.new_owner(name)
        return await self._done(name, m.Enter(party=who, parties=parties, wait_ms=int(wait_s * 1000)), wait_s)


class Session:
    """Keeps ephemeral nodes alive. Each is kept by itself; when one is lost, `lost` is set."""

    def __init__(self, client: Sharing, ttl_s: float) -> None:
        self.id = uuid4().hex
        self.lost = asyncio.Event()
        self._client = client
        self._ttl_s = ttl_s
        self._nodes: dict[str, Lease] = {}
        self._watching: set[asyncio.Task[Any]] = set()

    async def put(self, name: str, data: str, *, version: int | None = 0) -> Lease:
        """Make an ephemeral node, by default one that isn't there yet.

        Raises:
            ConflictError: it has another version: somebody else made it.
        """
        ttl_ms = int(self._ttl_s * 1000)
        lease = await self._client._kept(
            name,
            self.id,
            self._ttl_s,
            first=m.Put(data=data, expected=version, session=self.id, ttl_ms=ttl_ms),
            renewal=m.Keep(session=self.id, ttl_ms=ttl_ms),
            ending=m.Drop(session=self.id),
        )
        self._nodes[name] = lease
        watching = asyncio.create_task(self._watch(lease), name=f"watching {name}")
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        return lease

    async def _watch(self, lease: Lease) -> None:
        await lease.lost.wait()
        self.lost.set()

    async def close(self) -> None:
        """Delete its nodes. May be called twice."""
        for task in self._watching:
            task.cancel()
        nodes, self._nodes = self._nodes, {}
        await asyncio.gather(*(lease.release() for lease in nodes.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
