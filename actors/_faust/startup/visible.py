"""Topics that a start looks for, though the workers' user may not be allowed to describe them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from actors._kafka.admin.control import TopicInfo
from actors._kafka.admin.topics import Topics
from actors._kafka.connection import is_denied
from actors.errors import BrokerUnavailableError, ConfigurationError

Denied = Callable[[str, BrokerUnavailableError], None]


async def visible(topics: Topics, names: Iterable[str], denied: Denied) -> dict[str, TopicInfo]:
    """Return the topics that exist; `denied` is called for each that this user may not describe.

    Raises:
        BrokerUnavailableError: no broker answers.
    """
    names = list(names)
    try:
        return await topics.existing(names)
    except BrokerUnavailableError as error:
        if not is_denied(error):
            raise
    found: dict[str, TopicInfo] = {}
    for name in names:
        try:
            found |= await topics.existing([name])
        except BrokerUnavailableError as error:
            if not is_denied(error):
                raise
            denied(name, error)
    return found


def required(stores: Mapping[str, str]) -> Denied:
    """Return a callback that refuses the start if a changelog may not be described; `stores` maps topics to stores.

    Other topics that may not be described are ignored: they aren't this app's.
    """

    def refuse(topic: str, error: BrokerUnavailableError) -> None:
        if topic in stores:
            raise ConfigurationError(
                f"topic {topic}, the changelog of store {stores[topic]}, which this program doesn't have any more, "
                "can't be read, so whether it has state is unknown. Let the workers' user describe and "
                f"read it, or give it up with `faust state forget {stores[topic]}`"
            ) from error

    return refuse
