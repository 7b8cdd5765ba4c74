"""Every invariant of joins by a foreign key fails on the damage it is there for."""

from __future__ import annotations

from typing import Any

import pytest

from actors._core.windows.changes import GROUP_OF
from actors.declare.streams.foreign_joins import _Left, _Right
from actors.runtime.message.grouping import Grouping
from tests.sim.planted import MAX_SEEDS, Patch, Planted, rewritten


def take_answers_for_former_rows(patch: Patch) -> None:
    """What one depot says of a row comes after the row has another one."""
    edit = ("if row is not None and digest(row[TIME_BYTES:]) == answer.digest:", "if row is not None:")
    patch.setattr(_Left, "answered", rewritten(_Left.answered, edit))


def end_what_has_no_result(patch: Patch) -> None:
    """A parcel that is deleted has an end, whether or not there was a result."""
    patch.setattr(_Left, "_tell", rewritten(_Left._tell, ("elif self._results.delete_own(ctx):", "else:")))


def remember_results_in_memory(patch: Patch) -> None:
    """Which parcels have a result isn't known after a takeover."""

    async def tell(left: Any, ctx: Any, row: Any, right: Any) -> None:
        shown = vars(left).setdefault("shown", set())
        if row is not None:
            shown.add(ctx.key)
            await left._call(ctx, row, right)
        elif ctx.key in shown:
            await left._call(ctx, None, None)
            shown.discard(ctx.key)

    patch.setattr(_Left, "_tell", tell)


def forget_who_is_subscribed(patch: Patch) -> None:
    """A subscription is answered once, and changes aren't."""
    edit = ('self._subscribers.write_raw(ctx._working("join"), place, told.digest)', "pass")
    patch.setattr(_Right, "subscribed", rewritten(_Right.subscribed, edit))


class _Memory(dict[bytes, bytes]):
    """Rows of a process, in the place of an overlay."""

    def items(self, start: bytes, end: bytes | None) -> Any:
        return [(row, self[row]) for row in sorted(self) if start <= row and (end is None or row < end)]

    def delete(self, row: bytes) -> None:
        self.pop(row, None)


def know_who_is_subscribed_in_memory_only(patch: Patch) -> None:
    """Who is subscribed isn't known after a takeover by another process.

    Each process has a join of its own, and its memory with it. What a module or a class remembers would be no damage:
    simulated processes have these in common.
    """

    def in_memory(right: Any, ctx: Any) -> Any:
        return vars(right).setdefault("memory", _Memory()), right._subscribers.own_place(ctx)[1]

    here = ("self._subscribers.own_place(ctx)", "in_memory(self, ctx)")
    write = ('self._subscribers.write_raw(ctx._working("join"), place, told.digest)', "overlay[place] = told.digest")
    for name, edits in (("subscribed", (here, write)), ("_answer_from", (here,))):
        patch.setattr(_Right, name, rewritten(getattr(_Right, name), *edits, in_memory=in_memory))


def stop_behind_a_page(patch: Patch) -> None:
    """Who is on a later page isn't told of a change."""
    edit = ("ctx.send(self._subscriptions, key=foreign_key, value=page)", "pass")
    patch.setattr(_Right, "_answer_from", rewritten(_Right._answer_from, edit))


def answer_twice(patch: Patch) -> None:
    """A subscription has two answers."""
    original = _Right.subscribed

    async def subscribed(right: Any, ctx: Any, raw: bytes) -> None:
        await original(right, ctx, raw)
        await original(right, ctx, raw)

    patch.setattr(_Right, "subscribed", subscribed)


def subscribe_once(patch: Patch) -> None:
    """A row that is replaced doesn't subscribe again."""
    change = Grouping.change

    def once(groups: Grouping, ctx: Any, state: Any, new: Any) -> None:
        if new is None or state.overlays[groups.taken].get(GROUP_OF + ctx._raw_key) is None:
            change(groups, ctx, state, new)

    patch.setattr(Grouping, "change", once)


FOREIGN: dict[str, Any] = {"features": ("foreign",)}
WITH_INPUTS: dict[str, Any] = {"features": ("foreign", "inputs")}
PLANTED = (
    Planted(take_answers_for_former_rows, "foreign", **FOREIGN),
    Planted(take_answers_for_former_rows, "foreign", **WITH_INPUTS),
    Planted(end_what_has_no_result, "foreign", **FOREIGN),
    Planted(remember_results_in_memory, "foreign", first_seed=20, **FOREIGN),
    Planted(forget_who_is_subscribed, "foreign", **FOREIGN),
    Planted(know_who_is_subscribed_in_memory_only, "foreign", **FOREIGN),
    Planted(stop_behind_a_page, "foreign", first_seed=22, **FOREIGN),
    Planted(answer_twice, "foreign", **WITH_INPUTS),
    Planted(subscribe_once, "foreign", **FOREIGN),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_damage_is_found(planted: Planted, monkeypatch: Patch) -> None:
    assert planted.seed(monkeypatch) is not None, f"{MAX_SEEDS} seeds, and nobody noticed"
