"""`faust -A APP locks list | show`: who holds what and who waits for it, from what is committed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from actors._faust.setup import Setup
from actors.admin.operation import Answer, Caller, Operation, argument, option
from actors.coordination.cli.reading import Found, read
from actors.coordination.cli.service import NAME, UnknownNameError
from actors.coordination.cli.text import duration, left, quoted, short
from actors.coordination.locks import Holder, Lock, Waiter
from stores._core.printable import counted, moment, printable

_COLUMNS = ("name", "kind", "holder", "#token", "#left", "as", "data", "#waiting", "#last token")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLocks(Operation):
    """List the locks, semaphores and leaders.

    It is what is committed to the service's changelog, also when no worker of the service runs. A lease that is over by
    the clock, and that no worker has let go yet, is marked "over".
    """

    command: ClassVar[str] = "locks list"
    examples: ClassVar[tuple[str, ...]] = (
        "faust -A actors.coordination.app locks list --held --prefix printer-",
        "faust --json -A actors.coordination.app locks list",
    )
    held: bool = option("Only what somebody has now.", False)
    prefix: str = option("Only names that begin with it.", "", metavar="TEXT")
    is_all: bool = option("Also names that were never locks: nodes, groups, barriers.", False, flag="--all")

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Carry it out."""
        reading, app = await read(setup), str(setup.app.conf.id)
        names = [
            name
            for name in reading.found
            if name.name.startswith(self.prefix)
            and (self.is_all or "lock" in name.uses)
            and (name.is_held or not self.held)
        ]
        when = f"as committed at {moment(reading.read_at_ms)}"
        rows = [row for name in names for row in _rows(name)]
        is_over = any(name.is_over(holder.expires_ms) for name in names for holder in name.resource.lock.holders)
        over = "over: by the clock. A worker of the service releases it when one runs"
        return Answer(
            content={"app": app, "read_at_ms": reading.read_at_ms, "names": [name.lock_json() for name in names]},
            table=(f"Locks of {app}, {when}", _COLUMNS, rows) if names else None,
            lines=() if names else [f"no locks to show of {app}, {when}"],
            remarks=[over] if is_over else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowName(Operation):
    """Print all that is committed under NAME.

    That is: holders, who waits and for how long, node, members, barrier, watchers; also when no worker of the service
    runs. Exits with 1 where nothing was ever kept under the name.
    """

    command: ClassVar[str] = "locks show"
    examples: ClassVar[tuple[str, ...]] = ("faust -A actors.coordination.app locks show printer-7",)
    name: str = argument("NAME", type=NAME)

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Carry it out."""
        reading, app = await read(setup, self.name), str(setup.app.conf.id)
        if not reading.found:
            text = f"nothing is committed under the name {self.name!r} in app {app}: see `locks list --all`"
            raise UnknownNameError(text, "unknown")
        (name,) = reading.found
        lines = [f"partition {name.partition}, last changed {moment(name.changed_at_ms)}", *_lines(name)]
        title = f"{printable(name.name)}: {name.kind}, as committed at {moment(reading.read_at_ms)}"
        return Answer(
            content={"app": app, "read_at_ms": reading.read_at_ms, **_all_json(name)},
            lines=[title, *(f"  {line}" for line in lines)],
        )


def _rows(one: Found) -> Iterator[list[str]]:
    """Return a row for each holder, or one for a name without holders."""
    lock, name = one.resource.lock, printable(one.name)
    if "lock" not in one.uses:
        yield [name, one.kind, "-", "-", "-", "-", "-", "-", "-"]
        return
    ends = [str(len(lock.waiters)), str(lock.last_token)]
    if not lock.holders:
        yield [name, one.kind, "(free)", "-", "-", "-", "-", *ends]
    for holder in lock.holders:
        yield [
            name,
            one.kind,
            printable(holder.owner),
            str(holder.token),
            left(holder.expires_ms, one.now_ms),
            how_held(lock, holder),
            short(holder.data) or "-",
            *ends,
        ]


def how_held(lock: Lock, holder: Holder) -> str:
    """Say in which way a holder has it."""
    again = f", {holder.count} times" if holder.count > 1 else ""
    return _way(lock, is_shared=holder.shared, permits=holder.permits) + again


def _way(lock: Lock, *, is_shared: bool, permits: int) -> str:
    if lock.kind == "semaphore":
        return f"{permits} of {lock.limit}"
    return "shared" if is_shared else "alone"


def _all_json(one: Found) -> dict[str, Any]:
    found, node = one.resource, one.node
    barrier = found.barrier
    return {
        **one.lock_json(),
        "waiters": [one.waiter_json(waiter) for waiter in found.lock.waiters],
        "node": None if node is None else node_json(one),
        "members": [
            {"member": member.name, "data": member.data, "joined": member.joined, **one.end_json(member.expires_ms)}
            for member in found.group.members
        ],
        "barrier": {
            "parties": barrier.parties,
            "opened": barrier.generation,
            "waiting": [{"party": party.name, **one.end_json(party.deadline_ms)} for party in barrier.waiting],
        },
        "watchers": len(found.watchers),
        "view_version": found.version,
    }


def node_json(one: Found) -> dict[str, Any]:
    """Return a node that is there for JSON. One of no session has no end."""
    node = one.resource.node
    ends = {"expires_at_ms": None, "left_ms": None, "over": False}
    return {
        "version": node.version,
        "data": node.data,
        "session": node.session or None,
        **(ends if node.expires_ms is None else one.end_json(node.expires_ms)),
    }


def _lines(one: Found) -> Iterable[str]:
    found, now_ms = one.resource, one.now_ms
    lock, node, barrier = found.lock, found.node, found.barrier
    if "lock" in one.uses:
        state = "held" if one.is_held else "free"
        yield f"lock      {state}, last token {lock.last_token}, {len(lock.waiters)} waiting"
    for holder in lock.holders:
        yield f"  holder  {_holder_line(one, holder)}"
    for place, waiter in enumerate(lock.waiters, 1):
        yield f"  {place:>6}. {_waiter_line(one, waiter)}"
    if "node" in one.uses:
        yield f"node      {_node_line(one)}"
    if node.data is not None:
        yield f"  data    {quoted(node.data)}"
    if "group" in one.uses:
        yield f"group     {counted(len(found.group.members), 'member')}"
    for member in found.group.members:
        yield f"  member  {printable(member.name)}, left {left(member.expires_ms, now_ms)}{_shown_data(member.data)}"
    if "barrier" in one.uses:
        expected = f"{len(barrier.waiting)} of {barrier.parties} wait, " if barrier.waiting else ""
        yield f"barrier   {expected}opened {counted(barrier.generation, 'time')}"
    for party in barrier.waiting:
        yield f"  party   {printable(party.name)}, left {left(party.deadline_ms, now_ms)}"
    yield f"watchers  {len(found.watchers)}"


def _holder_line(one: Found, holder: Holder) -> str:
    way, ends = how_held(one.resource.lock, holder), left(holder.expires_ms, one.now_ms)
    return f"{printable(holder.owner)}, token {holder.token}, {way}, left {ends}{_shown_data(holder.data)}"


def _waiter_line(one: Found, waiter: Waiter) -> str:
    want = waiter.want
    way = _way(one.resource.lock, is_shared=want.shared, permits=want.permits)
    waited, ends = duration(one.now_ms - waiter.since_ms), left(waiter.deadline_ms, one.now_ms)
    return f"{printable(want.owner)}, {way}, waits for {waited}, left {ends}{_shown_data(want.data)}"


def _node_line(one: Found) -> str:
    node = one.resource.node
    if node.data is None:
        return f"deleted, version {node.version}"
    if node.expires_ms is None:
        return f"version {node.version}"
    return f"version {node.version}, of session {printable(node.session)}, left {left(node.expires_ms, one.now_ms)}"


def _shown_data(data: str) -> str:
    return f", data {quoted(data)}" if data else ""
