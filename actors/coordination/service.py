"""The service: an actor whose keys are the names of resources.

    request (a question) ──▶ Coordinator of that name ──▶ actors._core.locks, registry ──▶ answers: at once, or later

The owner of a name's partition decides alone, in the order of its topic, and each decision is committed before anybody
hears of it. One timer per resource is set to what is over next; it may be early, never late.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from actors import Actor, AnswerLater, App, receive
from actors._core import locks, registry
from actors._core.locks import Event, Granted, Lock, Refused, Released, Renewed, Want
from actors._core.registry import Barrier, Group, Node, Party
from actors.coordination import messages as m
from actors.runtime.asks import ASK

ACTOR = "coordination"
PARTITIONS = 1
"""One owner decides for all names, as the leader does in ZooKeeper and etcd: with so many requests in each commit, it
carries four times what it does with eight partitions. More are for more workers than one is enough for."""
LEAST_COMMITS = 5
"""A ttl is at least so many commit intervals: a renewal has to get there, be committed, and be answered."""
ANSWER_TTL = timedelta(hours=1)
MAX_WATCHERS = 1_000
_TIMER = "due"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXTS: dict[str, str] = {
    "busy": "somebody else has it",
    "crowded": f"{locks.MAX_WAITERS} wait for it already",
    "timeout": "nobody let go in time",
    "broken": "the wait was given up",
    "expired": "the lease is over",
    "not-holder": "this owner doesn't hold it with this token",
    "unknown": "nobody ever held it",
    "mismatch": "it is in use in another way",
}


class Watcher(msgspec.Struct):
    """One who waits for a change, at the latest until `deadline_ms`."""

    id: str
    deadline_ms: int


class Resource(msgspec.Struct):
    """All that is kept under one name.

    Attributes:
        clock_ms: the latest time that a request was handled at: time doesn't go back with another owner.
        version: of the `View`.
        timer_ms: what the timer is set to, 0 if it isn't set.
        later: by the id of who waits, how to answer.
    """

    clock_ms: int = 0
    version: int = 0
    timer_ms: int = 0
    lock: Lock = msgspec.field(default_factory=Lock)
    node: Node = msgspec.field(default_factory=Node)
    group: Group = msgspec.field(default_factory=Group)
    barrier: Barrier = msgspec.field(default_factory=Barrier)
    watchers: list[Watcher] = []
    later: dict[str, AnswerLater] = {}

    def view(self) -> m.View:
        """Give what there is to see."""
        return m.View(
            version=self.version,
            holders=self.lock.holders,
            waiting=len(self.lock.waiters),
            last_token=self.lock.last_token,
            data=self.node.data,
            data_version=self.node.version,
            members=self.group.members,
        )

    def shows(self) -> tuple[Any, ...]:
        """Give what watchers are told of when it changes: not that a lease or membership was renewed."""
        holders = tuple((holder.owner, holder.token, holder.data) for holder in self.lock.holders)
        members = tuple((member.name, member.data) for member in self.group.members)
        return holders, self.node.version, members

    def due_ms(self) -> int | None:
        """Give when something is over next."""
        ends = [locks.due_ms(self.lock), registry.due_ms(self.node, self.group, self.barrier)]
        ends += [watcher.deadline_ms for watcher in self.watchers]
        return min((end for end in ends if end is not None), default=None)


class Coordinator(Actor[Resource]):
    """What happens to one resource. Requests are bytes, so that one that isn't understood stops nobody."""

    least_ttl_ms = 500
    dead_letters: Any = None

    @receive
    async def request(self, raw: bytes) -> bytes | None:
        """Answer a request; what isn't understood goes to the dead letters if nobody waits for an answer."""
        request = self._understood(raw)
        if isinstance(request, m.Refusal):
            if not any(name == ASK for name, _ in self.ctx.headers):
                self._bury(raw, request)
            return m.encode(request)
        state = self.state
        now_ms = max(state.clock_ms, self.ctx.now_ms)
        if not isinstance(request, m.Look):
            state.clock_ms = now_ms
        if self.ctx.timer == _TIMER:
            state.timer_ms = 0
        before = state.shows()
        self._tick(now_ms)
        reply = self._do(request, now_ms)
        if state.shows() != before:
            self._tell_watchers()
        self._set_timer()
        return None if reply is None else m.encode(reply)

    def _understood(self, raw: bytes) -> m.AnyRequest | m.Refusal:
        try:
            envelope = m.decode_envelope(raw)
            if envelope.v != m.VERSION:
                return m.Refusal("protocol", f"the service speaks version {m.VERSION}, the request is of {envelope.v}")
            request = m.decode_request(raw)
        except msgspec.MsgspecError as error:
            return m.Refusal("malformed", f"the request isn't understood ({error})")
        return m.problem(request, self.least_ttl_ms) or request

    def _bury(self, raw: bytes, refusal: m.Refusal) -> None:
        ctx = self.ctx
        origin = f"{ctx.topic}/{ctx.partition}/{ctx.offset}"
        headers = {
            "fa-error": refusal.text.encode(),
            "fa-origin": origin.encode(),
            "fa-attempts": b"1",
            "fa-actor": ACTOR.encode(),
        }
        ctx.send(self.dead_letters, key=ctx._raw_key, value=raw, headers=headers)

    # --- requests --------------------------------------------------------------------------------------------------

    def _do(self, request: m.AnyRequest, now_ms: int) -> m.Reply | None:
        """Give the answer; None if it comes later."""
        match request:
            case m.Acquire() | m.Renew() | m.Release() | m.GiveUp() | m.Break():
                return self._locked(request, now_ms)
            case m.Put() | m.Keep() | m.Drop():
                return self._node(request, now_ms)
            case m.Join() | m.Beat() | m.Leave():
                return self._group(request, now_ms)
            case m.Enter():
                return self._enter(request, now_ms)
            case m.Watch():
                return self._watch(request, now_ms)
            case _:
                return self.state.view()

    def _locked(self, request: m.Acquire | m.Renew | m.Release | m.GiveUp | m.Break, now_ms: int) -> m.Reply | None:
        state, ctx, id = self.state, self.ctx, self.ctx.message_id
        match request:
            case m.Acquire():
                want = Want(
                    id=id,
                    owner=request.owner,
                    kind=request.kind,
                    shared=request.shared,
                    permits=request.permits,
                    limit=request.limit,
                    ttl_ms=request.ttl_ms,
                    wait_ms=request.wait_ms,
                    data=request.data,
                )
                state.lock, events = locks.acquire(state.lock, want, now_ms, ctx.offset)
            case m.Renew():
                state.lock, events = locks.renew(state.lock, id, request.owner, request.token, request.ttl_ms, now_ms)
            case m.Release():
                state.lock, events = locks.release(
                    state.lock, id, request.owner, request.token, now_ms, entirely=request.entirely
                )
            case m.GiveUp():
                state.lock, events = locks.give_up(state.lock, id, request.owner, now_ms, only_waits=request.only_waits)
            case m.Break():
                state.lock, events = locks.break_all(state.lock, id, now_ms)
        reply = self._told(events)
        return reply if reply is not None else self._later()

    def _node(self, request: m.Put | m.Keep | m.Drop, now_ms: int) -> m.Reply:
        state = self.state
        if isinstance(request, m.Drop):
            if state.node.session != request.session:
                return m.Refusal("absent", "there is no such node of this session")
            state.node = Node(version=state.node.version + 1)
            return m.Done(state.node.version)
        if isinstance(request, m.Keep):
            kept = registry.keep(state.node, request.session, now_ms + request.ttl_ms)
            if kept is None:
                return m.Refusal("absent", "there is no such node of this session")
            state.node = kept
            return m.Done(kept.version)
        ends_ms = None if request.ttl_ms is None else now_ms + request.ttl_ms
        node = registry.put(state.node, request.data, request.expected, request.session, ends_ms)
        if node is None:
            there = "isn't there" if state.node.data is None else f"has version {state.node.version}"
            return m.Refusal("conflict", f"version {request.expected} was expected, and the node {there}")
        state.node = node
        return m.Done(node.version)

    def _group(self, request: m.Join | m.Beat | m.Leave, now_ms: int) -> m.Reply:
        state = self.state
        if isinstance(request, m.Join):
            state.group = registry.join(state.group, request.member, request.data, now_ms + request.ttl_ms)
        elif isinstance(request, m.Leave):
            state.group = registry.leave(state.group, request.member)
        else:
            group = registry.beat(state.group, request.member, now_ms + request.ttl_ms)
            if group is None:
                return m.Refusal("absent", f"there is no member {request.member}")
            state.group = group
        return m.Done(len(state.group.members))

    def _enter(self, request: m.Enter, now_ms: int) -> m.Reply | None:
        state = self.state
        party = Party(id=self.ctx.message_id, name=request.party, deadline_ms=now_ms + request.wait_ms)
        done = registry.enter(state.barrier, party, request.parties)
        if done is None:
            return m.Refusal("parties", f"{state.barrier.parties} parties are waited for, not {request.parties}")
        for one in state.barrier.waiting:
            if one.name == party.name:
                self._answer(one.id, m.Refusal("broken", "the same party entered again"))
        state.barrier, present = done
        for one in present:
            if one.id != party.id:
                self._answer(one.id, m.Done(state.barrier.generation))
        return m.Done(state.barrier.generation) if present else self._later()

    def _watch(self, request: m.Watch, now_ms: int) -> m.Reply | None:
        state = self.state
        if state.version > request.after or not request.wait_ms:
            return state.view()
        if len(state.watchers) >= MAX_WATCHERS:
            return m.Refusal("crowded", f"{MAX_WATCHERS} watch it already")
        state.watchers.append(Watcher(self.ctx.message_id, now_ms + request.wait_ms))
        return self._later()

    # --- answers ---------------------------------------------------------------------------------------------------

    def _tick(self, now_ms: int) -> None:
        """See to what is over."""
        state = self.state
        state.lock, events = locks.tick(state.lock, now_ms)
        self._told(events)
        state.node = registry.overdue_node(state.node, now_ms)
        state.group = registry.overdue_group(state.group, now_ms)
        state.barrier, late = registry.overdue_barrier(state.barrier, now_ms)
        for party in late:
            self._answer(party.id, m.Refusal("timeout", f"fewer than {state.barrier.parties} came in time"))
        for watcher in [watcher for watcher in state.watchers if watcher.deadline_ms <= now_ms]:
            state.watchers.remove(watcher)
            self._answer(watcher.id, state.view())

    def _told(self, events: list[Event]) -> m.Reply | None:
        """Answer those who waited, and give the answer to the message itself, if it is among them."""
        own: m.Reply | None = None
        for event in events:
            reply: m.Reply
            match event:
                case Granted(_, token, _, waited_ms, count):
                    reply = m.Grant(token, waited_ms, count)
                case Refused(_, reason):
                    reply = m.Refusal(reason, _TEXTS[reason])
                case Renewed(_, token, _):
                    reply = m.Done(token)
                case Released(_, count):
                    reply = m.Done(count)
                case _:
                    continue
            if event.id == self.ctx.message_id:
                own = reply
            else:
                self._answer(event.id, reply)
        return own

    def _later(self) -> m.Reply | None:
        """Note that the message is answered later: there is no answer now."""
        later = self.ctx.answer_later()
        if later is not None:
            self.state.later[self.ctx.message_id] = later
        return None

    def _answer(self, id: str, reply: m.Reply) -> None:
        self.ctx.answer(self.state.later.pop(id, None), m.encode(reply))

    def _tell_watchers(self) -> None:
        state = self.state
        state.version += 1
        view = state.view()
        for watcher in state.watchers:
            self._answer(watcher.id, view)
        state.watchers = []

    def _set_timer(self) -> None:
        """Set the timer to an earlier time only: it is set anew when it comes, and a renewal then costs nothing."""
        due_ms, state = self.state.due_ms(), self.state
        if due_ms is not None and not 0 < state.timer_ms <= due_ms:
            state.timer_ms = due_ms
            self.ctx.schedule(m.encode(m.Tick()), at=_EPOCH + timedelta(milliseconds=due_ms), name=_TIMER)


def coordination(app: App, *, partitions: int = PARTITIONS) -> type[Coordinator]:
    """Add the lock service to an app; returns its actor.

    Its input is the topic `{app id}-coordination`, which a worker makes if it is missing.

    Args:
        app: the app; its actors ask the service through `Coordination.inside(ctx)`.
        partitions: of the topic, as many as it shall ever have.
    """
    app_id = app._default_options[0]
    topic = app.topic(f"{app_id}-coordination", key_type=str, value_type=bytes)
    letters = app.topic(f"{app_id}-dead-letters", key_type=bytes, value_type=bytes)
    app.made_topics |= {f"{app_id}-coordination": partitions, f"{app_id}-dead-letters": 1}

    class Own(Coordinator):
        dead_letters = letters

        @property
        def least_ttl_ms(self) -> int:  # type: ignore[override]
            return int(LEAST_COMMITS * app.conf.broker_commit_interval * 1000)

    # A message that fails unexpectedly must stop nobody who waits for a lock: who asked is told.
    app.actor(topic, name=ACTOR, timers=True, on_error="skip", answer_ttl=ANSWER_TTL)(Own)
    return Own
