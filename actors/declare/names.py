"""Names of an app's consumer group and topics, and the ids of its transactions."""

from __future__ import annotations

from actors.declare.host import DeclaredApp

OPTION_STORES = ("ids", "timers", "effects", "parked", "answers")
"""Suffixes of the stores that an actor gets for its options: the store is called `{actor}-{suffix}`."""


def group_of(app_id: str) -> str:
    """Return the consumer group of an app's workers."""
    return f"{app_id}-actors"


def owners_topic(app_id: str) -> str:
    """Return the topic of an app's leader registry."""
    return f"{app_id}-actors-owners"


def dead_letter_topic(app_id: str) -> str:
    """Return the topic of an app's dead letters."""
    return f"{app_id}-dead-letters"


def reply_topic(app_id: str) -> str:
    """Return the topic of the replies to an app's requests."""
    return f"{app_id}-replies"


def changelog_topic(app: DeclaredApp, store: str) -> str:
    """Return the topic of a store's changelog."""
    named = app.actor_options.changelogs.get(store)
    return str(named or f"{app.conf.id}-{app.renamed_stores.get(store, store)}-changelog")


def worker_transactional_id(app_id: str, folder_id: str) -> str:
    """Return the transactional id of the worker that has a data folder. No task's id is like it: that has a number."""
    return f"{app_id}:worker:w{folder_id}"


def transactional_id(app_id: str, actor: str, partition: int) -> str:
    """Return the transactional id of a task in releases that had one for each; commands that write alone use it too.

    Names can't contain colons, so no two tasks share an id.
    """
    return f"{app_id}:{actor}:{partition}"
