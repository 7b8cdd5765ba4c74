"""The store of a class actor's states, and stores whose keys are those of an actor's input."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from actors.declare.values.codecs import is_format, strip_optional
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
    _share_keys(app, topic, store, store)
    return store


def share_keys(app: Any, topic: Any, stores: Sequence[Any], windows: Sequence[Any]) -> None:
    """Have stores keep keys as an actor's input has them, if a format writes those.

    Otherwise an equal key would have other bytes, and belong in another partition.
    """
    if not is_format(topic.schema.key_serializer):
        return
    key_type = strip_optional(topic.schema.key_type)[0]
    own = [store for store in stores if store.placement == "key" and store.layout != "windows"]
    for store in (*own, *windows):
        if app.key_types.get(store.name) == key_type:
            _share_keys(app, topic, store, getattr(store, "below", None) or store)


def _share_keys(app: Any, topic: Any, store: Any, handle: Any) -> None:
    # The app's settings may not be there yet.
    keys = functools.cache(lambda: key_codec(app, topic.schema))
    use_keys(handle, keys)
    if isinstance(store, PublishedStore) and handle is store:
        store.codecs = lambda: (keys(), app.value_codecs[store.name])
