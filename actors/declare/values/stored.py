"""The contents of a store: keys, and as values plain ones, those of a type with versions, or states of an aggregate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from actors._core.aggregates import Aggregate, as_it_is, count_distinct
from actors.declare.values.codecs import (
    Codec,
    CodecError,
    Format,
    Place,
    is_format,
    is_record,
    resolve,
    resolve_key,
    strip_optional,
)
from actors.declare.values.schemas import key_codec
from actors.declare.values.shapes import ValueType
from actors.declare.values.versions import Upgrades, refusal, versioned
from actors.errors import ConfigurationError, UsageError
from actors.runtime.handlers.actor import Actor, expiry_of
from actors.runtime.message.publishing import PublishedStore
from actors.runtime.message.store import Store

_Keyed = TypeVar("_Keyed")


@dataclass(frozen=True, slots=True)
class StoredValues:
    """How a store keeps its values.

    Attributes:
        codec: of what users see.
        type: of what is kept.
        refuse_newer: see `Store`.
    """

    codec: Codec
    type: ValueType
    refuse_newer: Callable[[bytes], None] | None = None


def own_store(app: Any, name: str, layout: str, **options: Any) -> Any:
    """Declare a store of rows that the framework lays out as `stores._core.layouts` has it."""
    rows = app.store(name, key_type=bytes, value_type=bytes, placement="task", **options)
    rows.layout = layout
    return rows


def stored_values(
    owner: str,
    value_type: Any,
    serializer: str | None,
    *,
    version: int | None,
    upgrades: Upgrades | None,
    aggregate: Aggregate[Any] | None,
    bind: Callable[[Any], Codec] | None = None,
) -> StoredValues:
    """Return the encoding of a store's values; `bind` makes the codec of a type, in the place of a serializer.

    Raises:
        ConfigurationError: the arguments can't work together.
    """
    if bind is not None and serializer is not None:
        raise ConfigurationError(f"{owner}: format= takes the place of value_serializer=: leave one of the two out")
    if aggregate is not None:
        others = {"format": bind, "value_type": value_type, "value_serializer": serializer, "version": version}
        check_aggregate(owner, aggregate, **others, upgrades=upgrades)
        if aggregate is count_distinct():
            raise ConfigurationError(
                f"{owner}: aggregates.count_distinct() is for window stores, which have a row for each value: keep the "
                "values as keys of a store, or give aggregates.approx_distinct()"
            )
        return StoredValues(_codec(owner, aggregate), state_type(aggregate))
    number = 1 if version is None else version
    refuse = refusal(number, owner)
    plain = resolve(value_type, serializer, refuse=refuse) if bind is None else bind(value_type)
    return StoredValues(
        versioned(plain, number, upgrades or {}, owner),
        ValueType(value_type if plain.is_json else bytes, number),
        refuse if version is not None and plain.is_json else None,
    )


def binder(app: Any, changelog: str, format_: Format | None) -> Callable[[Any], Codec] | None:
    """Return the function that makes the codec of a store's values for their type, None without a format."""
    if format_ is None:
        return None
    place = Place(changelog, "value", is_state=True)
    return lambda type_: format_.bind(place, type_, app)


def check_aggregate(owner: str, aggregate: Any, **others: Any) -> None:
    """Refuse what is no aggregate, and arguments that one takes the place of.

    Raises:
        ConfigurationError: naming the argument.
    """
    twice = next((option for option, value in others.items() if value is not None), None)
    if twice is not None:
        typed = ". The type of the values goes into the aggregate, as in aggregates.max(value_type=Sale)"
        raise ConfigurationError(
            f"{owner}: {twice}= is a part of aggregate=: leave one of the two out{typed * (twice == 'value_type')}"
        )
    if not isinstance(aggregate, Aggregate):
        raise ConfigurationError(
            f"{owner}: aggregate={aggregate!r}: give one of actors.aggregates, as aggregates.count()"
        )
    try:
        aggregate.decoder()(aggregate.encoder()(aggregate.initial))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{owner}: the initial={aggregate.initial!r} of its aggregate= isn't of its state_type=, or can't be kept: "
            f"{error}"
        ) from error


def state_type(aggregate: Aggregate[Any]) -> ValueType:
    """Return the type of an aggregate's states, by which a program that declares another one is refused.

    Plain data may be given a type later.
    """
    given = aggregate.state_type
    return ValueType(bytes if given in (Any, list[Any]) else given, 1)


def _codec(owner: str, aggregate: Aggregate[Any]) -> Codec:
    """Return the codec of an aggregate's results. A state can be made of one that is the state itself."""
    encode_state, decode_state, result = aggregate.encoder(), aggregate.decoder(), aggregate.result

    def encode(value: Any) -> bytes:
        if result is not as_it_is:
            raise UsageError(f"{owner}: no state can be made of a result of its aggregate: use add(), or delete()")
        try:
            raw = encode_state(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise CodecError(f"{owner}: {error}") from error
        decode(raw)
        return raw

    def decode(raw: bytes) -> Any:
        try:
            return result(decode_state(raw))
        except ValueError as error:
            raise CodecError(f"{owner}: {error}") from error

    return Codec(decode, encode, f"results of the aggregate {aggregate.name}")


def store_keys(app: Any, type_: Any, serializer: Any) -> Callable[[], Codec]:
    """Return a function to the codec of a store's keys: that of a topic with the same type and serializer.

    It goes by the app's settings, which may not be there yet.

    Raises:
        ConfigurationError: as `resolve`.
    """
    # As `app.topic` and Faust's schemas have it.
    own = "raw" if type_ in (bytes, str) else type_._options.serializer if is_record(type_) else None
    serializer = serializer or own
    key = resolve_key(type_, serializer)
    if serializer is not None:
        return lambda: key
    return functools.cache(lambda: resolve_key(type_, default=app.serializers.key_serializer))


def use_keys(store: _Keyed, keys: Callable[[], Codec]) -> _Keyed:
    """Have a store take the codec of its keys from `keys` when it first needs one."""
    handle: Any = store

    def encode_key(key: Any) -> bytes:
        # Hot: without a detour from now on.
        handle.encode_key = encode = keys().encode
        return encode(key)

    handle.encode_key, handle.decode_key = encode_key, lambda raw: keys().decode(raw)
    return store


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
