"""The store of a class actor's states."""

from __future__ import annotations

import functools
from typing import Any

from actors.declare.values.schemas import key_codec
from actors.declare.values.stored import use_keys
from actors.errors import ConfigurationError
from actors.runtime.handlers.actor import Actor, expiry_of
from actors.runtime.message.publishing import PublishedStore
from actors.runtime.message.store import Store


def state_store(app: Any, name: str, topic: Any, actor: Any, publish: Any) -> Store[Any, Any] | None:
    """Make the store of a class actor's states, None if it has none; its keys are the input's.

    Raises:
        ConfigurationError: the class is no actor, or takes no message.
    """
    if not issubclass(actor, Actor):
        raise ConfigurationError(f"actor {name}: a class has to be a subclass of actors.Actor, {actor!r} isn't")
    if not actor.receivers:
        raise ConfigurationError(f"actor {name}: no method is marked @receive, so it takes no message at all")
    if actor.state_type is type(None):
        return None
    store: Store[Any, Any] = app.store(
        name,
        value_type=actor.state_type,
        format=actor.state_format,
        version=actor.state_version,
        upgrades=actor.state_upgrades,
        ttl=actor.state_ttl,
        on_expire=expiry_of(actor),
        publish=publish,
    )
    # The app's settings may not be there yet.
    keys = functools.cache(lambda: key_codec(app, topic.schema))
    use_keys(store, keys)
    if isinstance(store, PublishedStore):
        store.codecs = lambda: (keys(), app.value_codecs[name])
    return store
