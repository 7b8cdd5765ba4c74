"""Inputs that are keyed otherwise than their actor: an actor without state forwards them by another key.

The forwarding actor reads the topic, and sends each record with its new key to a topic that the app makes, in the same
transaction as its offset. The value's bytes, the timestamp and the headers stay as they are. Actors that read one topic
by different keys share it.
"""

from __future__ import annotations

import copy
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any
from uuid import UUID

from actors._core.logs import error_text
from actors._core.outside import EXITS
from actors._core.task.policy import OnError
from actors._core.unions import arms_of
from actors.declare.arguments import check_inputs, say_unknown, single_topic
from actors.declare.names import repartition_topic
from actors.declare.values.codecs import CodecError
from actors.declare.values.schemas import topic_codecs
from actors.errors import ActorsError, ConfigurationError, RecordTooLargeError
from actors.runtime.handlers.callables import check_callable, name_of
from actors.runtime.message.context import Context
from actors.runtime.message.failures import PartlyFailedError

LONGEST_TOPIC = 249
LONGEST_SOURCE = 88
"""So that the name of the actor that forwards it has up to 100 characters."""
By = str | Callable[..., Any]
ByRecord = Callable[[Any, Any], Any]
"""A function that returns a key of a record's key and value."""
KEY_FIELD = "key."
"""How the name of a field begins that is one of the record's key."""
_KINDS = frozenset((bool, bytes, float, int, str, UUID))
"""Types of fields and of keys that can be compared where an actor is declared."""


class NoKeyError(ActorsError):
    """A record has no key by which its actor reads it."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where an actor reads a topic by another key: `to` is the topic that the app makes, with the values' bytes."""

    actor: str
    by: ByRecord
    to: Any

    def send(self, ctx: Context, value: Any) -> None:
        """Forward the record that is handled.

        Raises:
            NoKeyError: `by=` raises, or gives no key for it.
        """
        try:
            key = self.by(ctx.key, value)
        except (NoKeyError, *EXITS):
            raise
        except BaseException as error:
            raise NoKeyError(f"by= of actor {self.actor} raised {error_text(error)}") from error
        if key is None:
            raise NoKeyError(f"by= of actor {self.actor} gives no key for it")
        try:
            ctx.send(self.to, key=key, value=ctx._record.value, headers=ctx.headers)
        except CodecError as error:
            raise NoKeyError(f"by= of actor {self.actor} gives a key that isn't its input's: {error}") from error


@dataclass(slots=True)
class Repartition:
    """A topic that is read by other keys, and by whom.

    Attributes:
        is_whole: whether it is read from its beginning, as the topic of a table is.
    """

    source: Any
    on_error: OnError
    routes: list[Route] = field(default_factory=list)
    is_whole: bool = False

    async def forward(self, ctx: Context, value: Any) -> None:
        """Forward a record to all actors that read the topic by another key.

        Raises:
            PartlyFailedError: it can't be forwarded to some of them. With on_error="skip" the others get it all the
                same. If it stops its partition, or is parked, nobody gets it before it is handled again.
        """
        outputs, failures = ctx._working("send").outputs, {}
        sent = len(outputs)
        for route in self.routes:
            try:
                route.send(ctx, value)
            except (NoKeyError, RecordTooLargeError) as error:
                failures[route.actor] = error
        if failures:
            raise PartlyFailedError(failures, outputs[sent:]) from next(iter(failures.values()))


def forwarder(app: Any, inputs: Sequence[Any], late: Any) -> Any:
    """Return the meaning of `late=`: "drop" and "handle" as they are, a topic as a function that sends a record there.

    Key and value are the record's own bytes, so that they keep what their types don't know. Where the topic has another
    serializer than the input, what was decoded is encoded again.

    Raises:
        ConfigurationError: it is an input.
    """
    if isinstance(late, str):
        return late
    refuse_own_input(inputs, late.get_topic_name(), "late=", "records that are late")
    raw = app.topic(late.get_topic_name(), key_type=bytes, value_type=bytes)

    @functools.cache
    def serializers(topic: Any) -> list[Any]:
        # Codecs follow the app's settings, which aren't there when an actor is declared.
        return [bytes if codec.origin[0] is bytes else codec.origin[2] for codec in topic_codecs(topic)]

    def forward(ctx: Context, value: Any) -> None:
        source = next(topic for topic in inputs if topic.get_topic_name() == ctx.topic)
        pairs = zip(serializers(source), serializers(late), strict=True)
        if all(theirs in (ours, bytes) for ours, theirs in pairs):
            ctx.send(raw, key=ctx._record.key, value=ctx._record.value, headers=ctx.headers)
        else:
            ctx.send(late, key=ctx.key, value=value, headers=ctx.headers)

    return forward


def refuse_own_input(inputs: Sequence[Any], topic: str, option: str, what: str) -> None:
    """Refuse an output that brings an actor again and again what it couldn't handle.

    Raises:
        ConfigurationError: `topic` is one of the inputs, or read by another key.
    """
    if topic in {name for source in inputs for name in (source.get_topic_name(), source.made_of)}:
        raise ConfigurationError(
            f"{option}: {what} go to topic {topic}, and the actor itself reads it: they would come again for ever. "
            "Choose another topic, or have another actor read it"
        )


def key_function(
    actor: str, topic: str, by: By, value_type: Any, *, key_type: Any = None, option: str = "by"
) -> Callable[[Any], Any]:
    """Return the function that gives a value's key; a name stands for the field, or the JSON object's entry.

    Integers become text where the keys, of type `key_type`, are `str`: both have the same bytes.

    Raises:
        ConfigurationError: it can't be called with a value, or the values have no such field, or the field's type is no
            key type.
    """
    function = _function_of(actor, topic, by, value_type, option)
    kind = field_type(value_type, by)
    if {kind, key_type} <= _KINDS and kind is not key_type and (kind, key_type) != (int, str):
        raise ConfigurationError(
            f"actor {actor}: {option}={by!r} of topic {topic} gives {kind.__name__}, and the keys are "
            f"{key_type.__name__}: give a function that returns {key_type.__name__}, or declare the keys with "
            f"key_type={kind.__name__}"
        )
    if key_type is not str or kind is str:
        return function

    def text_or_else(value: Any) -> Any:
        key = function(value)
        return str(key) if type(key) is int else key

    return text_or_else


def record_key_function(
    actor: str, topic: str, by: By, schema: Any, *, key_type: Any = None, option: str = "by"
) -> ByRecord:
    """Return the function that gives another key of a record's key and value; `by` is as of `key_function`.

    A function that takes two arguments gets both, and either may be None. `key.` and a name stand for a field of the
    key.

    Raises:
        ConfigurationError: as `key_function`.
    """
    if _is_of_key(by, schema):
        of_field = key_function(
            actor, topic, str(by)[len(KEY_FIELD) :], schema.key_type, key_type=key_type, option=option
        )
        return lambda key, _: of_field(_present(key, "key", f"{option}= of actor {actor}"))
    if not isinstance(by, str) and _takes_two(by):
        what, function = f"actor {actor}: {option}= of topic {topic}", by
        line = f"def {name_of(by)}(key: Key | None, message: Message | None) -> str | None"
        check_callable(by, what, takes=2, line=line)
        _refuse_async(by, what)
        of_pair = key_function(actor, topic, lambda pair: function(*pair), None, key_type=key_type, option=option)
        return lambda key, value: of_pair((key, value))
    of_value = key_function(actor, topic, by, schema.value_type, key_type=key_type, option=option)
    return lambda _, value: of_value(_present(value, "value", f"{option}= of actor {actor}"))


def _present(part: Any, name: str, what: str) -> Any:
    if part is None:
        raise NoKeyError(f"its {name} is null, of which {what} makes no key")
    return part


def _is_of_key(by: By, schema: Any) -> bool:
    return isinstance(by, str) and by.startswith(KEY_FIELD) and field_type(schema.value_type, by) is None


def _takes_two(by: Any) -> bool:
    try:
        signature = inspect.signature(by)
    except (TypeError, ValueError):
        # Some builtins have none.
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values()
    return sum(part.kind in positional and part.default is part.empty for part in parameters) == 2


def field_type(value_type: Any, by: By) -> Any:
    """Return the type of the field that a key is, without None; None if that is unknown."""
    try:
        hint = typing.get_type_hints(value_type).get(by) if isinstance(by, str) else None
    except Exception:
        # Names that only a type checker imports, for example; or no type with fields.
        return None
    kinds = [kind for kind in arms_of(hint) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 else None


def _function_of(actor: str, topic: str, by: By, value_type: Any, option: str) -> Callable[[Any], Any]:
    if not isinstance(by, str):
        line = f"def {name_of(by)}(message: Message) -> str | None"
        check_callable(by, f"actor {actor}: {option}= of topic {topic}", takes=1, line=line)
        _refuse_async(by, f"actor {actor}: {option}= of topic {topic}")
        return by
    fields = {name for base in getattr(value_type, "__mro__", ()) for name in getattr(base, "__annotations__", ())}
    if not by or (fields and by not in fields and not hasattr(value_type, by)):
        raise ConfigurationError(f"actor {actor}: {option}= of topic {topic}: {say_unknown('field', [by], fields)}")
    return lambda value: value.get(by) if isinstance(value, Mapping) else getattr(value, by)


def _refuse_async(by: Any, what: str) -> None:
    if any(map(inspect.iscoroutinefunction, (by, getattr(by, "__call__", by)))):  # noqa: B004
        raise ConfigurationError(f"{what} is async: make it a plain function")


def checked_repartition(app: Any, what: str, actor: str, source: str) -> str:
    """Return the topic through which an actor gets what another topic, or a store of the app, has.

    Raises:
        ConfigurationError: its name would be longer than Kafka takes.
    """
    target = repartition_topic(app.app_id, actor, source)
    if len(target) > LONGEST_TOPIC:
        raise ConfigurationError(
            f"{what}: {target}, a topic that the app makes for it, has {len(target)} characters, and Kafka takes "
            f"{LONGEST_TOPIC}: give it a shorter name, name="
        )
    return target


def rekeyed(
    app: Any,
    actor: str,
    topics: list[Any],
    by: By | Mapping[Any, By] | None,
    on_error: OnError,
    *,
    like: Any = None,
    key_type: Any = None,
) -> list[Any]:
    """Return an actor's inputs, those that are read by another key replaced by the topics that get their records.

    So are inputs that several actors read by their own key. The new keys are those of the first input that keeps its
    own, or else of the topic `like`, or of type `key_type`, or of the field if that is an int, or text.

    Raises:
        ConfigurationError: it isn't said of which input `by` is, or of one that isn't an input; or another actor that
            reads one by another key has another `on_error` or `timestamp`.
    """
    check_inputs(actor, topics)
    keys = _by_name(actor, topics, by)
    like = next((topic for topic in topics if topic.get_topic_name() not in keys), like)
    key_options = keys_like(app, like) if like is not None else {"key_type": key_type or _key_type(topics, keys)}
    found = []
    for topic in topics:
        name, schema = str(topic.get_topic_name()), topic.schema
        if name not in keys and not topic.is_shared:
            found.append(topic)
            continue
        target = repartition_topic(app.app_id, actor, name)
        if len(target) > LONGEST_TOPIC or len(name) > LONGEST_SOURCE:
            raise ConfigurationError(
                f"actor {actor}: topic {name} can't be read by another key: its name has up to {LONGEST_SOURCE} "
                f"characters for that, and {target}, the topic of its records by their new key, up to {LONGEST_TOPIC}"
            )
        raw = app.topic(target, **key_options, value_type=bytes)
        route: ByRecord = _own_key
        if name in keys:
            route = record_key_function(actor, name, keys[name], schema, key_type=raw.schema.key_type)
        forwarder_of(app, name, topic, on_error).routes.append(Route(actor, route, raw))
        values = {"value_type": schema.value_type, "value_serializer": schema.value_serializer}
        made = app.topic(target, **key_options, **values)
        made.made_of = name
        found.append(made)
    return found


def _own_key(key: Any, _: Any) -> Any:
    if key is None:
        raise NoKeyError("the record has no key, and several actors read its topic by that")
    return key


def _key_type(topics: list[Any], keys: Mapping[str, By]) -> Any:
    """Return the type of the new keys where no input keeps its own: that of the fields, or else text."""
    kinds = set()
    for topic in topics:
        by, schema = keys[str(topic.get_topic_name())], topic.schema
        is_of_key = _is_of_key(by, schema)
        kinds.add(
            field_type(schema.key_type, str(by)[len(KEY_FIELD) :]) if is_of_key else field_type(schema.value_type, by)
        )
    kind = kinds.pop() if len(kinds) == 1 else None
    return int if kind is int else str


def keys_like(app: Any, topic: Any) -> dict[str, Any]:
    """Return the options of a topic whose keys are written and placed as those of another one."""
    schema, partitioner = topic.schema, app.partitioner_for(topic.get_topic_name())
    return {"key_type": schema.key_type, "key_serializer": schema.key_serializer, "partitioner": partitioner.name}


def forwarder_of(app: Any, name: str, topic: Any, on_error: OnError) -> Repartition:
    """Return what forwards the records of a topic by other keys, declared with the first of its readers.

    Raises:
        ConfigurationError: another reader has another `on_error` or `timestamp`.
    """
    one: Repartition | None = app.repartitions.get(name)
    if one is None:
        one = app.repartitions[name] = Repartition(topic, on_error)
        own = copy.copy(topic)
        own.is_shared = False
        app.actor(own, name=f"{name}-repartition", on_error=on_error, tombstones=True)(one.forward)
    elif one.source.timestamp is not topic.timestamp:
        raise ConfigurationError(f"topic {name} is declared with two timestamp= functions: declare it once")
    elif one.on_error != on_error:
        raise ConfigurationError(
            f"topic {name} is read by other keys by actors with different on_error=: one actor reads it for all of "
            "them, so give them the same"
        )
    return one


def _by_name(actor: str, topics: list[Any], by: By | Mapping[Any, By] | None) -> dict[str, By]:
    if by is None:
        return {}
    names = [str(topic.get_topic_name()) for topic in topics]
    if isinstance(by, Mapping):
        found = {single_topic(f"actor {actor}: an input in by=", topic): function for topic, function in by.items()}
        unknown = sorted(found.keys() - set(names))
        if unknown:
            raise ConfigurationError(f"actor {actor}: by= is for topic {unknown[0]}, which isn't one of its inputs")
        return found
    if len(names) > 1:
        raise ConfigurationError(
            f"actor {actor} has several inputs: say of which by= is, as in by={{{names[-1]}: {by!r}}}, or of each"
        )
    return {names[0]: by}
