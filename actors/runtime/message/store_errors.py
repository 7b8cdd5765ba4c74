"""Refusals of store handles, with the errors that say why."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from actors.errors import ForeignKeyError, StoreOutsideHandlerError, UnknownStoreError, UsageError, show_bytes


class Handle(Protocol):
    """The part of a store's handle that errors name; `expires` says whether its keys may."""

    name: str
    expires: bool


def unreachable(store: str, actor: str | None) -> UsageError:
    """Return the error for a store that isn't the handling actor's; `actor` None where no message is being handled."""
    if actor is None:
        return StoreOutsideHandlerError(
            f"store {store} was used outside a handler: state belongs to the task that handles a message. "
            "Read it inside an actor, or from outside with `state get`"
        )
    return UnknownStoreError(
        f"store {store} doesn't belong to actor {actor}: list it in @app.actor(..., stores=[...]); "
        "a store belongs to exactly one actor"
    )


def not_its_own(store: str, raw_key: bytes) -> ForeignKeyError:
    """Return the error for a key that isn't the message's, where messages of other keys are handled beside it."""
    return ForeignKeyError(
        f"store {store}: key {show_bytes(raw_key)} isn't the message's own, and with concurrency another "
        "message may be changing it at this moment: send its actor a message"
    )


def no_ranges(store: str) -> ForeignKeyError:
    """Return the error for a look at all keys where messages of other keys are handled beside this one."""
    return ForeignKeyError(
        f"store {store}: items(), range() and prefix() reach other keys than the message's own, and with "
        "concurrency other messages may be changing them at this moment"
    )


def foreign_key(store: str, raw_key: bytes, home: int, here: str) -> ForeignKeyError:
    """Return the error for a key of the partition `home`, where `here` says which one this is."""
    return ForeignKeyError(
        f"store {store}: key {show_bytes(raw_key)} lives in partition {home}, this is {here}: send its own actor a "
        'message, or declare the store with placement="task" to keep any key with the partition that wrote it'
    )


def checked_ttl_ms(store: Handle, ttl: timedelta) -> int:
    """Return a write's time to live in milliseconds.

    Raises:
        UsageError: the store's keys don't expire, or it isn't a timedelta of more than nothing.
    """
    if not store.expires:
        raise UsageError(
            f"store {store.name}: a write with a ttl in a store whose keys don't expire: declare it with ttl=… (for "
            "all writes) or expires=True, so that what expired is removed"
        )
    if not isinstance(ttl, timedelta):
        raise UsageError(f"store {store.name}: ttl={ttl!r} has to be a timedelta: write ttl=timedelta(seconds={ttl!r})")
    ttl_ms = ttl // timedelta(milliseconds=1)
    if ttl_ms <= 0:
        raise UsageError(f"store {store.name}: ttl={ttl} isn't a time to live: delete the key instead")
    return ttl_ms
