"""Attempts: the call of an effect's function, and what came of it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from actors._core.logs import error_text
from actors._core.outside import EXITS
from actors.errors import RecordTooLargeError, UsageError
from actors.runtime.cancellation import is_cancelled, is_closed, running_task
from actors.runtime.handlers.call_arguments import Arguments
from actors.runtime.handlers.effect import Effect, Outcome
from actors.runtime.message.tools import EffectCall
from actors.runtime.outbox.calls import EffectRecord, Head
from actors.runtime.spec import ActorSpec
from actors.runtime.threads import DaemonThreads

Pairs = list[tuple[str, bytes]]


@dataclass(slots=True, eq=False)
class Run:
    """An attempt, from its start to the commit of its outcome. While there is one, its line stands still."""

    raw_key: bytes
    head: Head
    outcome: Outcome | None = None
    is_done: bool = False


class Attempts:
    """Makes the calls of a partition's effects, from a takeover to the next.

    `epoch` is the owner's, `limit` how many bytes a record of the outbox may have.

    Attributes:
        arguments: by effect, how its arguments become JSON and come back.
        waiting: how many calls wait for permits.
        is_closed: whether what is cancelled is cut short, and left to the next owner.
    """

    def __init__(self, spec: ActorSpec, *, epoch: int, limit: int, threads: int) -> None:
        self._spec = spec
        self._epoch = epoch
        self._limit = limit
        self._most_threads = threads
        self._threads: DaemonThreads | None = None
        self.arguments = {name: Arguments(effect.function) for name, effect in spec.effect_functions.items()}
        self.waiting, self.is_closed = 0, False
        self._turns: dict[str, Any] = {}

    def close(self) -> None:
        """End the threads as they get free."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def permit(self, head: Head, effect: Effect) -> Any:
        """Wait for a permit of a call; return the outcome of one that gets none.

        Raises:
            CancelledError: the processor ends.
        """
        running = running_task()
        self.waiting += 1
        try:
            args, kwargs = self.arguments[effect.name].bind(head.record.args, head.record.kwargs)
            return await effect.permits.permit(self._turns, effect.timeout, args, kwargs)
        except EXITS:
            raise
        except BaseException as error:
            if is_closed(error, running):
                raise
            self._pass_on_cancellation(error)
            return Outcome(error=f"it got no permit: {error_text(error)}", cause=error)
        finally:
            self.waiting -= 1

    async def make(
        self, raw_key: bytes, head: Head, effect: Effect, *, begin: Callable[[], bool], permit: Any
    ) -> Outcome:
        """Make the call, as soon as it has its permit, unless `begin`, which is called right before, says no.

        `permit` is one that the call has, None for none.

        Raises:
            CancelledError: the processor ends.
        """
        if effect.permits is None:
            return await self._make(raw_key, head, effect, begin)
        if permit is not None and permit.until_s <= asyncio.get_running_loop().time():
            permit.end(None)
            permit = None
        if permit is None:
            permit = await self.permit(head, effect)
            if isinstance(permit, Outcome):
                return permit
        cause = None
        try:
            outcome = await self._make(raw_key, head, effect, begin)
            cause = outcome.cause
            return outcome
        finally:
            permit.end(cause)

    async def _make(self, raw_key: bytes, head: Head, effect: Effect, begin: Callable[[], bool]) -> Outcome:
        limit_s, running = effect.timeout.total_seconds(), running_task()
        deadline = asyncio.timeout(limit_s)
        try:
            async with deadline:
                result = await self._call(raw_key, head.record, effect, begin)
        except EXITS:
            raise
        except BaseException as error:
            if is_closed(error, running):
                raise
            self._pass_on_cancellation(error)
            if not (isinstance(error, TimeoutError) and deadline.expired()):
                return Outcome(error=error_text(error), cause=error)
            is_unknown = effect.repeat == "never"
            late = f"no end after {limit_s:g} s"
            return Outcome(error=late, cause=error, is_final=is_unknown, is_unknown=is_unknown)
        if result is None and head.record.then is msgspec.UNSET:
            return Outcome()
        try:
            return Outcome(*self._encode(head, result))
        except EXITS:
            raise
        except BaseException as error:
            useless = f"it succeeded, but what it returned can't be a message to its actor: {error_text(error)}"
            return Outcome(error=useless, is_final=True, cause=error)

    def _pass_on_cancellation(self, error: BaseException) -> None:
        if self.is_closed and is_cancelled():
            # It was cut short, whatever it made of that: the next owner makes the call again.
            raise asyncio.CancelledError from error

    def _encode(self, head: Head, result: Any) -> tuple[bytes, Pairs]:
        """Return a result as the message, or the arguments of the method, that it is for, with its headers.

        Raises:
            RecordTooLargeError: the outbox couldn't keep it where it isn't handled before the owner leaves.
        """
        record, methods = head.record, self._spec.methods
        value: bytes
        headers: Pairs
        if record.then is not msgspec.UNSET and methods is not None:
            args = methods.told(record.then, result)
            value, headers = (
                methods.encode(record.then, args, f"{record.then} of actor {self._spec.name}"),
                carried(record),
            )
        elif self._spec.encode_message is None:
            raise UsageError(f"actor {self._spec.name} takes no messages from its effects")
        else:
            value, headers = self._spec.encode_message(result)
        size = len(head.store_key) + len(msgspec.json.encode(msgspec.structs.replace(record, result=(value, headers))))
        if size > self._limit:
            raise RecordTooLargeError(
                f"{len(value)} bytes don't fit into the changelog of its outbox, which takes {self._limit} with all "
                "else: keep what is large elsewhere, and return its key"
            )
        return value, headers

    async def _call(self, raw_key: bytes, record: EffectRecord, effect: Effect, begin: Callable[[], bool]) -> Any:
        call = EffectCall(
            idempotency_key=record.id,
            fencing_token=self._epoch,
            attempt=record.attempts + 1,
            actor=self._spec.name,
            key=raw_key,
            decoded_key=self._spec.inputs[0].decode_key(raw_key),
            headers=tuple(carried(record)),
        )
        args, kwargs = self.arguments[effect.name].bind(record.args, record.kwargs)
        function = partial(effect.function, call, *args, **kwargs)
        if not begin():
            return None
        if inspect.iscoroutinefunction(effect.function):
            return await function()
        if self._threads is None:
            # Not the threads that write stores: an effect that hangs must not hold up a commit.
            self._threads = DaemonThreads(self._most_threads, f"effects of {self._spec.name}")
        context = contextvars.copy_context()
        result = await asyncio.get_running_loop().run_in_executor(self._threads, context.run, function)
        return await result if inspect.isawaitable(result) else result


def carried(record: EffectRecord) -> Pairs:
    """Return the headers that a call carries."""
    return [(name, text.encode("latin-1")) for name, text in (record.trace or {}).items()]
