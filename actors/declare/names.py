"""Names of an app's consumer group and topics, and the ids of its transactions.

Topics of two apps never have the same name. The first two dashes in a row end the app's id in the names of changelogs
and repartition topics, because no id has them; all other names are the id and a suffix that no other kind of topic has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from actors.errors import ConfigurationError

OPTION_STORES = ("ids", "timers", "effects", "parked", "answers")
"""Suffixes of the stores that an actor gets for its options: the store is called `{actor}-{suffix}`."""


_GROUP = "-actors"


def check_app_id(app_id: str) -> None:
    """Refuse an id that is in no topic's name, or with which topics or the group would have the name of another app's.

    Raises:
        ConfigurationError: it has the id to use instead, if there is one.
    """
    if re.fullmatch(r"[A-Za-z0-9._-]+", app_id) is None:
        raise ConfigurationError(
            f"App({app_id!r}): topics have names that begin with an app's id: it has letters, digits, dots, underscores"
            " and dashes only"
        )
    plain = re.sub("--+", "-", app_id).removesuffix("-").removesuffix(_GROUP)
    if plain != app_id:
        raise ConfigurationError(
            f"App({app_id!r}): an app's id has no two dashes in a row, and ends neither in a dash nor in {_GROUP}: its "
            f"topics, or its consumer group, could have the names of another app's. Write App({plain or 'app'!r})"
        )


def plain_name(topic: str) -> str:
    """Return what Kafka's metrics call a topic. Brokers refuse to make a second topic that they call the same."""
    return topic.replace(".", "_")


def check_apart(kind: str, name: str, others: Iterable[str]) -> None:
    """Refuse a name whose topic brokers wouldn't make, because of that of another name.

    Raises:
        ConfigurationError: naming both.
    """
    same = next((other for other in others if other != name and plain_name(other) == plain_name(name)), None)
    if same is not None:
        raise ConfigurationError(
            f"{kind} {name}: the app has {same} too, and Kafka doesn't make a second topic whose name differs only in "
            "dots and underscores: rename one"
        )


def group_of(app_id: str) -> str:
    """Return the consumer group of an app's workers."""
    return f"{app_id}{_GROUP}"


def own_prefix(app_id: str) -> str:
    """Return the prefix of the names of an app's changelogs and repartition topics, and no other app's."""
    return f"{app_id}--"


def owners_topic(app_id: str) -> str:
    """Return the topic of an app's leader registry."""
    return f"{app_id}-actors-owners"


def dead_letter_topic(app_id: str) -> str:
    """Return the topic of an app's dead letters."""
    return f"{app_id}-dead-letters"


def reply_topic(app_id: str) -> str:
    """Return the topic of the replies to an app's requests."""
    return f"{app_id}-replies"


def repartition_topic(app_id: str, actor: str, topic: str) -> str:
    """Return the topic through which an actor reads another one by a key of its own."""
    return f"{own_prefix(app_id)}{actor}-{topic}-repartition"


def worker_transactional_id(app_id: str, folder_id: str) -> str:
    """Return the transactional id of the worker that has a data folder. No task's id is like it: that has a number."""
    return f"{app_id}:worker:w{folder_id}"


def command_transactional_id(app_id: str, actor: str, partition: int) -> str:
    """Return the transactional id with which a command that writes beside no worker writes for a task.

    Names can't contain colons, so no two tasks share an id.
    """
    return f"{app_id}:{actor}:{partition}"
