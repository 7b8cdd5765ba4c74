"""The service: an actor whose keys are the names of resources.

    request (a question) ──▶ Coordinator of that name ──▶ its locks and registry ──▶ answers: at once, or later

The owner of a name's partition decides alone, in the order of its topic, and commits each decision before it replies.
Each resource has one timer, for its next expiry; it may fire early, never late.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

from actors import Actor, App, OnError, receive
from actors._core.outside import MALFORMED
from actors._core.partitioner import partition_for
from actors.coordination import locks, registry
from actors.coordination import messages as m
from actors.coordination.locks import Asked, Event, Granted, Refused, Released, Renewed, Want
from actors.coordination.messages import ACTOR
from actors.coordination.registry import Node, Party
from actors.coordination.service.resource import MAX_STATE_BYTES, Resource, Watcher
from actors.runtime.message.outputs import ACTOR_HEADER, ATTEMPTS_HEADER, ERROR_HEADER, ORIGIN_HEADER, OwnHeaders
from actors.runtime.requests.requests import ASK
from actors.web.panels import HeldLock, LockPanel, panels_of

PARTITIONS = 1
"""One owner decides for all names, as the leader does in ZooKeeper and etcd: with so many requests in each commit, it
carries four times what it does with eight partitions. More are for more workers than one is enough for."""
LEAST_COMMITS = 5
"""A ttl is at least so many commit intervals: a renewal has to get there, be committed, and be answered."""
ANSWER_TTL = timedelta(hours=1)
MAX_WATCHERS = 1_000
MAX_TOLD_BYTES = 1_000
"""A larger view is announced to watchers without its content: many may watch, and all are told at once."""
ON_ERROR = OnError(then="skip", dead_letters=True)
"""A message that can't be handled must not stop the partition, on which others wait for locks."""
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


class Coordinator(Actor[Resource]):
    """The service for one resource. Requests are bytes: one that can't be decoded doesn't stop the partition."""

    least_ttl_ms = 500
    dead_letters: Any = None

    @receive
    async def request(self, raw: bytes) -> bytes | None:
        """Reply to a request; one that can't be decoded goes to the dead letters if it expects no reply."""
        request = self._understood(raw)
        if isinstance(request, m.Refusal):
            if self._question is None:
                self._bury(raw, request)
            return m.encode(request)
        if isinstance(request, m.Look | m.Watch):
            self.ctx.forget_answer()
        state = self.state
        was_nothing = state.is_nothing()
        now_ms = max(state.clock_ms, self.ctx.now_ms)
        if not isinstance(request, m.Look):
            state.clock_ms = now_ms
        if self.ctx.timer == _TIMER:
            state.timer_ms = 0
        before = state.shows()
        self._tick(now_ms)
        reply = self._no_room(request, len(raw)) or self._do(request, now_ms)
        if state.shows() != before:
            state.version += 1
            self._tell(state.watchers)
            state.watchers = []
        self._set_timer()
        if state.is_nothing():
            self._forget(was_nothing)
        return None if reply is None else m.encode(reply)

    @property
    def _question(self) -> str | None:
        raw = next((raw for name, raw in self.ctx.headers if name == ASK), None)
        if not raw:
            return None
        return raw.decode() if len(raw) <= m.MAX_NAME and raw.isascii() else blake2b(raw, digest_size=16).hexdigest()

    @property
    def _id(self) -> str:
        """The message's id among waiting requests. Not its offset: offsets begin again when the topic is re-created."""
        return self._question or self.ctx.message_id

    def _forget(self, was_nothing: bool) -> None:
        if was_nothing:
            # Nothing is kept of it, and nothing is to be written.
            self.state = Resource()
        else:
            self.forget()

    def _understood(self, raw: bytes) -> m.AnyRequest | m.Refusal:
        key, ctx = self.ctx.key, self.ctx
        if not 0 < len(key) <= m.MAX_NAME:
            return m.Refusal("argument", f"a name of {len(key)} characters: it has to have 1 to {m.MAX_NAME}")
        if partition_for(ctx._raw_key, ctx._working("request").partition_count) != ctx.partition:
            return m.Refusal("misplaced", f"partition {ctx.partition} isn't the one of this name")
        try:
            envelope = m.decode_envelope(raw)
            if envelope.v != m.VERSION:
                return m.Refusal("protocol", f"the service speaks version {m.VERSION}, the request is of {envelope.v}")
            request = m.decode_request(raw)
        except MALFORMED as error:
            return m.Refusal("malformed", f"the request isn't understood ({error})")
        return m.problem(request, self.least_ttl_ms) or request

    def _bury(self, raw: bytes, refusal: m.Refusal) -> None:
        ctx = self.ctx
        origin = f"{ctx.topic}/{ctx.partition}/{ctx.offset}"
        headers = OwnHeaders(
            [
                (ERROR_HEADER, refusal.text.encode()),
                (ORIGIN_HEADER, origin.encode()),
                (ATTEMPTS_HEADER, b"1"),
                (ACTOR_HEADER, ACTOR.encode()),
            ]
        )
        ctx.send(self.dead_letters, key=ctx._raw_key, value=raw, headers=headers)

    def _no_room(self, request: m.AnyRequest, size: int) -> m.Refusal | None:
        """Refuse what the state's record would have no room for."""
        if isinstance(request, m.Acquire | m.Watch | m.Put | m.Join | m.Enter) and self.state.is_crowded(size):
            return m.Refusal("crowded", f"it would have more than {MAX_STATE_BYTES} bytes with all who use it")
        return None

    def _do(self, request: m.AnyRequest, now_ms: int) -> m.Reply | None:
        """Return the answer; None if it comes later."""
        match request:
            case m.Acquire() | m.Renew() | m.Release() | m.GiveUp() | m.Break():
                return self._locked(request, now_ms)
            case m.Put() | m.Keep() | m.Drop():
                return self._node(request, now_ms)
            case m.Join() | m.Beat() | m.Leave():
                return self._group(request, now_ms)
            case m.Enter():
                return self._enter(request, now_ms)
            case m.Withdraw():
                return self._withdraw(request)
            case m.Watch():
                return self._watch(request, now_ms)
            case _:
                return self.state.view()

    def _locked(self, request: m.LockRequest, now_ms: int) -> m.Reply | None:
        lock, id = self.state.lock, self._id
        match request:
            case m.Acquire():
                asked = {name: getattr(request, name) for name in Asked.__struct_fields__}
                lock, events = locks.acquire(lock, Want(id=id, **asked), now_ms, self.ctx.offset)
            case m.Renew(owner=owner, token=token, ttl_ms=ttl_ms, claim=claim):
                lock, events = locks.renew(lock, id, owner, token, ttl_ms, now_ms, claim=claim)
            case m.Release(owner=owner, token=token, claim=claim):
                lock, events = locks.release(lock, id, owner, token, now_ms, claim=claim)
            case m.GiveUp(owner=owner, claim=claim):
                lock, events = locks.give_up(lock, id, owner, now_ms, claim=claim)
            case m.Break():
                lock, events = locks.break_all(lock, id, now_ms)
        self.state.lock = lock
        reply = self._told(events, now_ms)
        return reply if reply is not None else self._later()

    def _node(self, request: m.Put | m.Keep | m.Drop, now_ms: int) -> m.Reply:
        state = self.state
        if isinstance(request, m.Drop):
            if not registry.is_own(state.node, request.session, request.claim):
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
        node = registry.put(state.node, request.data, request.expected, request.session, ends_ms, request.claim)
        if node is None:
            there = "is missing" if state.node.data is None else f"has version {state.node.version}"
            return m.Refusal("conflict", f"version {request.expected} was expected, and the node {there}")
        state.node = node
        return m.Done(node.version)

    def _group(self, request: m.GroupRequest, now_ms: int) -> m.Reply:
        state = self.state
        if isinstance(request, m.Join):
            ends_ms = now_ms + request.ttl_ms
            joined = registry.join(state.group, request.member, request.data, ends_ms, request.claim)
            if joined is None:
                return m.Refusal("crowded", f"the group has {registry.MAX_MEMBERS} members already")
            state.group = joined
        elif isinstance(request, m.Leave):
            state.group = registry.leave(state.group, request.member, request.claim)
        else:
            group = registry.beat(state.group, request.member, now_ms + request.ttl_ms, request.claim)
            if group is None:
                return m.Refusal("absent", f"there is no member {request.member}")
            state.group = group
        return m.Done(len(state.group.members))

    def _enter(self, request: m.Enter, now_ms: int) -> m.Reply | None:
        state = self.state
        ends_ms = now_ms + request.wait_ms
        party = Party(id=self._id, name=request.party, deadline_ms=ends_ms, claim=request.claim)
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

    def _withdraw(self, request: m.Withdraw) -> m.Reply:
        state = self.state
        state.node, state.group, state.barrier, gone = registry.withdraw(
            state.node, state.group, state.barrier, request.claim
        )
        for party in gone:
            self._answer(party.id, m.Refusal("broken", _TEXTS["broken"]))
        return m.Done()

    def _watch(self, request: m.Watch, now_ms: int) -> m.Reply | None:
        state = self.state
        if state.version > request.after or not request.wait_ms:
            return state.view()
        if len(state.watchers) >= MAX_WATCHERS:
            return m.Refusal("crowded", f"{MAX_WATCHERS} watch it already")
        state.watchers.append(Watcher(self._id, now_ms + request.wait_ms))
        return self._later()

    def _tick(self, now_ms: int) -> None:
        state = self.state
        state.lock, events = locks.tick(state.lock, now_ms)
        self._told(events, now_ms)
        state.node = registry.overdue_node(state.node, now_ms)
        state.group = registry.overdue_group(state.group, now_ms)
        parties = state.barrier.parties
        state.barrier, late = registry.overdue_barrier(state.barrier, now_ms)
        for party in late:
            self._answer(party.id, m.Refusal("timeout", f"fewer than {parties} came in time"))
        over = [watcher for watcher in state.watchers if watcher.deadline_ms <= now_ms]
        if over:
            state.watchers = [watcher for watcher in state.watchers if watcher.deadline_ms > now_ms]
            self._tell(over)

    def _told(self, events: list[Event], now_ms: int) -> m.Reply | None:
        """Answer those who waited, and give the answer to the message itself, if it is among them."""
        own: m.Reply | None = None
        for event in events:
            reply: m.Reply
            match event:
                case Granted(_, token, expires_ms, waited_ms, count):
                    reply = m.Grant(token, waited_ms, count, expires_ms - now_ms)
                case Refused(_, reason):
                    reply = m.Refusal(reason, _TEXTS[reason])
                case Renewed(_, token, _):
                    reply = m.Done(token)
                case Released(_, count):
                    reply = m.Done(count)
                case _:
                    continue
            if event.id == self._id:
                own = reply
            else:
                self._answer(event.id, reply)
        return own

    def _later(self) -> m.Reply | None:
        """Note that the message is answered later: there is no answer now."""
        later = self.ctx.answer_later()
        if later is not None:
            self.state.later[self._id] = later
        return None

    def _answer(self, id: str, reply: m.Reply) -> None:
        self.ctx.answer(self.state.later.pop(id, None), m.encode(reply))

    def _tell(self, watchers: list[Watcher]) -> None:
        if not watchers:
            return
        view = self.state.view()
        is_small = len(m.encode(view)) <= MAX_TOLD_BYTES
        for watcher in watchers:
            self._answer(watcher.id, view if is_small else m.Changed(view.version))

    def _set_timer(self) -> None:
        """Set the timer to an earlier time only: it is set again when it fires, so that a renewal costs nothing."""
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
    topic = app.topic(f"{app.app_id}-coordination", key_type=str, value_type=bytes)
    letters = app.topic(f"{app.app_id}-dead-letters", key_type=bytes, value_type=bytes)
    app.made_topics |= {f"{app.app_id}-coordination": partitions, f"{app.app_id}-dead-letters": 1}

    class Own(Coordinator):
        dead_letters = letters

        @property
        def least_ttl_ms(self) -> int:  # type: ignore[override]
            return int(LEAST_COMMITS * app.conf.broker_commit_interval * 1000)

    # A request in the wrong partition is refused by itself: nobody may stop the service with one.
    app.actor(topic, name=ACTOR, timers=True, on_error=ON_ERROR, answer_ttl=ANSWER_TTL, misplaced="warn")(Own)
    panels_of(app).append(LockPanel(ACTOR, functools.partial(_held_lock, app.stores[ACTOR].decode_value)))
    return Own


def _held_lock(decode: Callable[[bytes], Any], name: bytes, raw: bytes, now_ms: int) -> HeldLock | None:
    """Return a lock for the dashboard, None if nobody holds it."""
    resource: Resource = decode(raw)
    lock = resource.lock
    if not lock.holders:
        return None
    first, now = lock.holders[0], max(now_ms, resource.clock_ms)
    return HeldLock(
        name=name.decode(errors="backslashreplace"),
        kind=f"semaphore of {lock.limit}" if lock.kind == "semaphore" else "lock",
        holders=len(lock.holders),
        owner=first.owner,
        data=first.data,
        token=first.token,
        expires_ms=first.expires_ms,
        is_over=all(holder.expires_ms <= now for holder in lock.holders),
        waiting=len(lock.waiters),
    )
