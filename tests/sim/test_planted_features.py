"""Every invariant of questions, class actors, ids and views fails on the damage it is there for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import actors.runtime.handlers.actor as actor
import actors.runtime.handlers.dedupe as dedupe
import actors.runtime.handlers.expiry as expiry
import actors.runtime.requests.requests as asks
import tests.sim.dedupe as dedupe_part
from actors.ports import CommitBatch, TopicPartition
from actors.runtime.handlers.actor import Actor
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from actors.runtime.replicas.views import TopicView
from actors.runtime.requests.replies import Replies, _RequestHeaders
from actors.runtime.requests.requests import Waiting
from actors.runtime.rows.stores import RowStore, _ByRow
from actors.runtime.state.stores import StoreCache
from actors.runtime.timers.timers import Timers
from actors.testing.fakes.ports import FakeWriter
from stores.errors import StoreCorruptedError
from tests.sim.asks import REPLIES
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten

# --- questions --------------------------------------------------------------------------------------------------------


def number_questions_by_call(patch: Patch) -> None:
    """A question's id is its place among the calls of its message."""
    patch.setattr(asks, "id_of", lambda ctx, *parts: ctx.next_id())


def keep_no_answer(patch: Patch) -> None:
    """A question that is asked again is handled again."""
    original = Replies._give
    patch.setattr(Replies, "_give", lambda self, *args, is_kept=True: original(self, *args, is_kept=False))


def answer_another_content(patch: Patch) -> None:
    """The answer to an id is given whatever was asked."""
    original = _RequestHeaders.answer_in
    patch.setattr(_RequestHeaders, "answer_in", lambda self, entry: (original(self, entry)[0], False))


def answer_before_the_commit(patch: Patch) -> None:
    """Replies go out in front of the commit that has what they tell of."""
    original = FakeWriter.write

    async def write(self: FakeWriter, identity: Any, batches: Sequence[CommitBatch]) -> Any:
        kept = []
        for batch in batches:
            for answer in batch.outputs:
                if answer.topic == REPLIES:
                    home = TopicPartition(REPLIES, answer.partition)
                    self._cluster.produce(home, [(answer.key, answer.value, answer.headers)])
            outputs = [output for output in batch.outputs if output.topic != REPLIES]
            kept.append(replace(batch, outputs=outputs))
        return await original(self, identity, kept)

    patch.setattr(FakeWriter, "write", write)


def give_an_answer_to_all(patch: Patch) -> None:
    """What comes is the answer to all who wait."""
    edit = ("self._futures.get(question_id, ())", "{one for waiting in self._futures.values() for one in waiting}")
    patch.setattr(Waiting, "deliver", rewritten(Waiting.deliver, edit))


def keep_the_first_state_only(patch: Patch) -> None:
    """A class actor's state is written when there was none."""
    edit = ("if raw != self._raw or", "if store.own(self.ctx, None) is None or")
    patch.setattr(Actor, "keep", rewritten(Actor.keep, edit))


# --- timers -----------------------------------------------------------------------------------------------------------


def name_firings_by_their_time(patch: Patch) -> None:
    """Two timers of one key and name that are due at one time are one to those who see ids."""
    edit = ('own = b"" if entry is None else entry.id.encode()', 'own = b""')
    patch.setattr(Timers, "_message", rewritten(Timers._message, edit))


def forget_time_that_no_timer_went_by(patch: Patch) -> None:
    """Stream time is written once a timer has gone by it, so that what was parked sets its timers too late."""
    edit = ("== _UNSEEN:", "== _UNSEEN or not self._went_by_stream_time:")
    patch.setattr(Timers, "before_commit", rewritten(Timers.before_commit, edit))


# --- class actors whose states expire ---------------------------------------------------------------------------------


def overwrite_what_expired(patch: Patch) -> None:
    """A message doesn't look whether the state has expired."""

    async def remove_own(*_: Any, **__: Any) -> None:
        """Leave it to the next round."""

    patch.setattr(actor, "remove_own", remove_own)


def go_on_behind_a_failed_hook(patch: Patch) -> None:
    """A hook that raises ahead of a message stops nothing, and the message takes the place of what expired."""
    original = expiry.remove_own
    patch.setattr(actor, "remove_own", lambda ctx, store, **_: original(ctx, store, stops=False))


# --- ids of messages --------------------------------------------------------------------------------------------------


def forget_ids(patch: Patch) -> None:
    """What comes again is handled again."""
    edit = ("store.put_if_absent(sized(ctx._raw_key) + raw, _SEEN) is not None", "False")
    patch.setattr(dedupe_part, "deduplicated", rewritten(dedupe.deduplicated, edit))


def remember_ids_of_what_failed(patch: Patch) -> None:
    """An id is known as soon as its message was tried."""
    seen: set[tuple[object, bytes]] = set()

    def is_known(ctx: Context, raw: bytes) -> bool:
        name = (ctx.partition, ctx._raw_key, raw)
        return name in seen or seen.add(name) is not None

    edit = ("store.put_if_absent(sized(ctx._raw_key) + raw, _SEEN) is not None", "is_known(ctx, raw)")
    damaged = rewritten(dedupe.deduplicated, edit, is_known=is_known)

    def deduplicated(*args: Any) -> Any:
        seen.clear()
        return damaged(*args)

    patch.setattr(dedupe_part, "deduplicated", deduplicated)


def share_ids_between_keys(patch: Patch) -> None:
    """An id counts for all keys of a partition."""
    patch.setattr(dedupe_part, "deduplicated", rewritten(dedupe.deduplicated, ("sized(ctx._raw_key) + raw", "raw")))


# --- rows below a key -------------------------------------------------------------------------------------------------


def count_no_row_off(patch: Patch) -> None:
    """What expires is removed and stays counted."""
    patch.setattr(RowStore, "removed", lambda *_: None)


def remove_beside_messages(patch: Patch) -> None:
    """What expires is removed while a message of the key counts rows."""
    patch.setattr(Store, "home_key", lambda _, raw_key: raw_key)


def count_what_is_replaced(patch: Patch) -> None:
    """A row that takes the place of another one is counted too."""
    edit = ("is_kept = self._overlay.is_kept(self._prefix + raw_row)", "is_kept = False")
    patch.setattr(_ByRow, "_put", rewritten(_ByRow._put, edit))


# --- views ------------------------------------------------------------------------------------------------------------


def blame_all_stores(patch: Patch) -> None:
    """Whichever database is damaged, all stores of the actor are deleted."""

    async def repair(self: StoreCache, store: str, partition: int, error: Exception) -> None:
        await (self.discard if isinstance(error, StoreCorruptedError) else self.reopen)(store, partition)

    patch.setattr(StoreCache, "repair", repair)


def blame_no_store(patch: Patch) -> None:
    """A database that is damaged is opened again."""

    async def repair(self: StoreCache, store: str, partition: int, error: Exception) -> None:
        """Do nothing."""

    patch.setattr(StoreCache, "repair", repair)


def show_what_was_read_first(patch: Patch) -> None:
    """A view keeps what it has read once."""
    original, kept = TopicView._read, dict[tuple[int, Any], Any]()

    def read(self: TopicView[Any, Any], key: Any) -> Any:
        return kept.setdefault((id(self), key), original(self, key))

    patch.setattr(TopicView, "_read", read)


def send_at_the_commits_time(patch: Patch) -> None:
    """Outputs have the time of their commit."""
    edit = ("timestamp_ms = came_ms if came_ms >= 0 else None", "timestamp_ms = None")
    patch.setattr(Context, "send", rewritten(Context.send, edit))


PLANTED = (
    Planted(number_questions_by_call, "asks", first_seed=2, features=("asks",)),
    Planted(keep_no_answer, "asks", features=("asks",)),
    Planted(answer_another_content, "asks", features=("asks",)),
    Planted(answer_before_the_commit, "asks", ("cut_off", "unknown_outcome"), first_seed=48, features=("asks",)),
    Planted(give_an_answer_to_all, "asks", features=("asks",)),
    Planted(keep_the_first_state_only, "asks", features=("asks",)),
    Planted(keep_no_answer, "asks", features=("asks", "timers")),
    Planted(name_firings_by_their_time, "timers", features=("timers",)),
    Planted(name_firings_by_their_time, "effects", features=("effects", "timers")),
    Planted(forget_time_that_no_timer_went_by, "timers", first_seed=6313, features=("park", "timers")),
    Planted(overwrite_what_expired, "sessions", features=("sessions",)),
    Planted(go_on_behind_a_failed_hook, "sessions", features=("sessions",)),
    Planted(forget_ids, "dedupe", features=("dedupe",)),
    Planted(remember_ids_of_what_failed, "dedupe", features=("dedupe",)),
    Planted(share_ids_between_keys, "dedupe", features=("dedupe",)),
    Planted(count_no_row_off, "rows", features=("rows",)),
    Planted(count_what_is_replaced, "rows", features=("rows",)),
    Planted(remove_beside_messages, "rows", first_seed=7, features=("rows", "parallel")),
    Planted(blame_all_stores, "kept", features=("views",)),
    Planted(blame_no_store, "progress", features=("views",)),
    Planted(show_what_was_read_first, "views", first_seed=3, features=("views",)),
    Planted(send_at_the_commits_time, "times"),
    Planted(send_at_the_commits_time, "times", features=("timers",)),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"
