"""Bytes to values and back, resolved once for each topic and store.

A codec has two layers. The serializer (`json`, `raw`, or any of Faust's registry) makes a payload of bytes;
the type makes a value of the payload. Where msgspec can do both in one step it does. What Faust can decode
itself is written in the bytes that Faust writes, so agents and actors share topics.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Any, Literal, NoReturn, Protocol, Union
from uuid import UUID

import msgspec
import orjson
from faust.models.base import Model
from faust.serializers import codecs as registry
from faust.utils.json import on_default

from actors._core.logs import text_of
from actors._core.unions import is_union
from actors._core.values.key_forms import decimal_form, float_form, plain_form, typed_form
from actors._core.values.read_back import (
    difference,
    is_finite,
    is_told_by_equality,
    kept_test,
    lost_field,
    merged_keys,
    no_text_key,
    unfit,
)
from actors.errors import ActorsError, ConfigurationError, show_bytes
from actors.ports import Headers
from actors.runtime.message.outputs import TypeHeaders

_SCALARS = (int, float, bool, Decimal, UUID)
_EXACT = (bytes, str, int, bool, Decimal, UUID)
"""Types all of whose values are read back as they are."""
UNTYPED = (None, Any, object)
_PLAIN_DATA = (*UNTYPED, dict, list)
_FORMS = {float: float_form, Decimal: decimal_form}
"""By type of key, what returns the same value for equal ones."""
# The options of Faust's own JSON codec.
_JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z

_Decode = Callable[[bytes], Any]
_Encode = Callable[[Any], bytes]
_ReadBack = tuple[_Decode, _Decode | None, Callable[[Any], bool] | None]
"""A decoder, a quick one whose values are the same if they are equal, and a test that spares both."""


class CodecError(ActorsError, ValueError):
    """Bytes that aren't what the topic or store declares, or a value that isn't."""


@dataclass(frozen=True, slots=True)
class Codec:
    """How a key or value is kept in bytes.

    `decode` and `encode` raise `CodecError`. A null (a tombstone) is for the caller to see to: neither takes
    None. Two codecs with the same `origin` make the same bytes of a value.

    Attributes:
        frame: makes of a record's headers and bytes those that `decode` takes, where headers have a part of them.
        headers: gives the headers that a value is sent with, None for those that it isn't sent with.
    """

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    name: str
    is_json: bool = False
    origin: Any = None
    frame: Callable[[Headers, bytes], bytes] | None = None
    headers: TypeHeaders | None = None

    def from_record(self, headers: Headers, raw: bytes) -> Any:
        """Return the value of a record with headers."""
        return self.decode(raw if self.frame is None else self.frame(headers, raw))


@dataclass(frozen=True, slots=True)
class Place:
    """The place that a format makes a codec for: keys or values of a topic, or of a store's changelog."""

    topic: str
    part: Literal["key", "value"]
    is_state: bool = False


class Format(Protocol):
    """How keys or values become bytes, in the place of a serializer; `actors.formats` has some.

    Attributes:
        type: of the values, None where `key_type=` or `value_type=` says it.
    """

    type: Any

    def bind(self, place: Place, type_: Any, app: Any) -> Codec:
        """Return the codec of a type. It is called when topics and stores are declared, and connects to nothing.

        Its functions may raise `UnresolvedSchemaError`: the message is handled again when what they need is there.

        Args:
            place: what the codec is for.
            type_: of the values, None for whatever the bytes say.
            app: the app, of which `actor_options` is set.

        Raises:
            ConfigurationError: the format can't carry the type.
        """


def is_format(serializer: Any) -> bool:
    """Return whether what stands in the place of a serializer is a format."""
    return hasattr(serializer, "bind") and hasattr(serializer, "type")


def declared_type(what: str, type_: Any, format_: Format | None, option: str = "format") -> Any:
    """Return the type that a declaration and its format name.

    Raises:
        ConfigurationError: they name two, or what stands in the format's place is none.
    """
    if format_ is not None and not is_format(format_):
        raise ConfigurationError(f"{what}: {option}={format_!r} is no format: give one of actors.formats, as Avro()")
    own = None if format_ is None else format_.type
    if own is not None and type_ is not None and own != type_:
        raise ConfigurationError(f"{what}: {option}= is of {own}, and its type is {type_}: leave one of the two out")
    return type_ if own is None else own


def resolve(
    type_: Any,
    serializer: Any = None,
    *,
    refuse: Callable[[bytes], None] | None = None,
    for_others: bool = False,
    in_order: bool = False,
) -> Codec:
    """Return the codec of `type_`. It refuses to write what it wouldn't read back as the same value.

    Args:
        type_: a `faust.Record`, `msgspec.Struct`, dataclass, `bytes`, `str`, or any type that msgspec knows;
            None for whatever the JSON says; `X | None` is X, save that a JSON `null` decodes to None.
        serializer: a name or codec of Faust's registry. By default the Record's own, `raw` for `bytes` and
            `str`, and `json` for the rest.
        refuse: called with bytes that aren't JSON of the type, to raise a better error than `CodecError`.
        for_others: whether values are written for the readers of a topic. Then records, models and plain data aren't
            read back: what JSON lacks, such as times, may become text and objects; it still has no NaN, and keys are
            text.
        in_order: whether JSON has the entries of dicts in the order of their keys.

    Raises:
        ConfigurationError: the serializer is unknown, or can't carry the type.
    """
    plain, optional = strip_optional(type_)
    is_json = is_layered = False
    faust_codec = _find_serializer(serializer or _default_serializer(plain))
    label = getattr(plain, "__name__", None) or str(plain)
    if type(faust_codec) is registry.raw and not faust_codec.children:
        decode, encode = _raw(plain)
    elif type(faust_codec) is registry.json and not faust_codec.children:
        decode, encode = _json(plain, in_order)
        decode = _null_as_none(decode) if optional else decode
        is_json = plain is not bytes
    else:
        decode, encode = _layered(plain, faust_codec, optional)
        is_layered = True
    name = serializer if isinstance(serializer, str) else repr(faust_codec)
    origin = (plain, optional, faust_codec)
    is_exact = not is_layered and plain in _EXACT
    is_own = is_record(plain) or is_model(plain)
    is_free = for_others and (plain in _PLAIN_DATA or is_own)
    quick = decode
    if plain is None and is_json:
        # Faust revives a model of what has its mark.
        quick = lambda raw: decode(raw) if b'"__faust"' in raw else orjson.loads(raw)  # noqa: E731
    is_told = plain in _PLAIN_DATA or is_model(plain) or is_told_by_equality(plain)
    reading = decode, quick if is_told else None, None if is_layered else kept_test(plain)
    if is_json and not is_own and merged_keys(plain):
        raise ConfigurationError(
            f"{plain} has dicts whose keys are of several types, and two of them may be one text in JSON, as 1 and "
            '"1" are: use one type for keys'
        )
    if is_record(plain) and not for_others and (reason := lost_field(plain)) is not None:
        raise ConfigurationError(reason)
    return Codec(
        _guard_decode(decode, label, refuse if is_json else None),
        _guard_encode(encode, plain, label, None if is_exact or is_free else reading),
        f"{label} as {name}",
        is_json,
        origin,
    )


def resolve_key(type_: Any, serializer: Any = None, *, default: Any = "raw") -> Codec:
    """Return the codec of keys, the same wherever there are keys of the type. Equal keys have equal bytes.

    Args:
        type_: as of `resolve`.
        serializer: likewise; `default`, the app's setting `key_serializer`, when left out.
        default: "raw" stands for JSON where it can't carry the type.

    Raises:
        ConfigurationError: as `resolve`.
    """
    plain, _ = strip_optional(type_)
    if not (is_record(plain) or plain in _PLAIN_DATA or _has_text_keys(plain)):
        raise ConfigurationError(f"keys of {plain} have no order: use text as the keys of a dict in a key, or a list")
    if serializer is None and (default != "raw" or _fits_raw(plain)):
        serializer = default
    codec = resolve(type_, serializer, for_others=plain in _PLAIN_DATA, in_order=True)
    encode, form = codec.encode, _FORMS.get(plain)
    if form is not None:

        def encode_form(key: Any) -> bytes:
            try:
                return encode(form(key))
            except ValueError as error:
                raise CodecError(str(error)) from error

        return replace(codec, encode=encode_form)
    if codec.is_json and any(_holds(plain, kind) for kind in ("FloatType(", "DecimalType(", "DateTimeType(")):
        return replace(codec, encode=_encode_formed(plain, encode))
    return codec


def _encode_formed(type_: Any, encode: _Encode) -> _Encode:
    def encode_formed(key: Any) -> bytes:
        encode(key)
        try:
            return encode(typed_form(key, type_, _plain_part, _revive_record))
        except (ValueError, OverflowError) as error:
            raise CodecError(str(error)) from error

    return encode_formed


def one_form(codec: Codec) -> Callable[[bytes], Any]:
    """Return a decoder of keys that refuses bytes which `codec` wouldn't write.

    Such a record lies where the bytes belong, while sends and questions to the key go to another partition.
    """
    plain, _, serializer = codec.origin
    if plain is bytes or (plain in (str, *UNTYPED) and type(serializer) is registry.raw and not serializer.children):
        return codec.decode
    decode, encode = codec.decode, codec.encode

    def decode_form(raw: bytes) -> Any:
        key = decode(raw)
        form = encode(key)
        if form != raw:
            raise CodecError(
                f"the key {show_bytes(raw)} is another spelling of {show_bytes(form)}, and would have a state of its "
                "own: have its producers write the latter, or declare key_type=bytes"
            )
        return key

    return decode_form


def strip_optional(type_: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether it had it."""
    if not is_union(type_):
        return type_, False
    arms = [arm for arm in typing.get_args(type_) if arm is not types.NoneType]
    # Subscripting Union keeps the arms' order and gives a lone arm back as it is.
    return Union[tuple(arms)], len(arms) < len(typing.get_args(type_))  # noqa: UP007


def is_record(type_: Any) -> bool:
    """Return whether it is a model of Faust's."""
    return isinstance(type_, type) and issubclass(type_, Model)


def is_model(type_: Any) -> bool:
    """Return whether it is a model of Pydantic's, which isn't imported for it."""
    return isinstance(type_, type) and hasattr(type_, "model_validate_json") and hasattr(type_, "model_fields")


def _default_serializer(type_: Any) -> Any:
    own = type_._options.serializer if is_record(type_) else None
    return own or ("raw" if type_ in (str, bytes) else "json")


def _find_serializer(serializer: Any) -> Any:
    try:
        found = registry.get_codec(serializer)
    except (KeyError, TypeError) as error:
        raise ConfigurationError(_unknown(serializer)) from error
    if isinstance(found, str):
        raise ConfigurationError(_unknown(serializer))
    return found


def _unknown(serializer: Any) -> str:
    known = ", ".join(sorted(registry.codecs))
    return f"there is no serializer {serializer!r} in Faust's registry, which has {known}; register it first"


def _identity(value: Any) -> Any:
    return value


def _fits_raw(type_: Any) -> bool:
    return type_ in UNTYPED or type_ in (bytes, str, *_SCALARS)


def _raw(type_: Any) -> tuple[_Decode, _Encode]:
    if type_ is bytes:
        return _identity, _identity
    if type_ is str:
        return bytes.decode, str.encode
    if type_ is bool:
        return _json(bool)
    if type_ in _SCALARS:
        return lambda raw: type_(raw.decode()), lambda value: str(value).encode()
    if type_ in UNTYPED:
        return _identity, _text_or_bytes
    raise ConfigurationError(f'the serializer "raw" can\'t carry {type_}: use "json", or the type bytes')


def _text_or_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"expected bytes or str, got {type(value).__name__}")


def _json(type_: Any, in_order: bool = False) -> tuple[_Decode, _Encode]:
    if type_ is bytes:
        # Faust writes bytes as they are, whatever the serializer.
        return _identity, _identity
    if is_record(type_):
        dump = _dump_record_in_order if in_order else _dump_record
        return lambda raw: type_.from_data(orjson.loads(raw), preferred_type=type_), dump
    if is_model(type_):
        # Validated once, and never as a dict.
        return type_.model_validate_json, _dump_model_in_order if in_order else _dump_model
    if type_ is None:
        return lambda raw: Model._maybe_reconstruct(orjson.loads(raw)), _in_order(_dump_untyped, in_order)
    if type_ in UNTYPED:
        return orjson.loads, _in_order(_dump_untyped, in_order)
    decoder = _decoder(type_)
    if type_ in _PLAIN_DATA:
        return decoder.decode, _in_order(_dump_json, in_order)
    order = "deterministic" if in_order else _order(type_)
    return decoder.decode, msgspec.json.Encoder(enc_hook=_plain_part, order=order).encode


def _order(type_: Any) -> Literal["deterministic"] | None:
    """Say how an encoder orders what has no order.

    The order of a set differs from process to process, and equal messages have to have equal bytes. msgspec can't order
    sets where there are dicts whose keys aren't text; the entries of other dicts are then in the order of their keys.
    """
    return "deterministic" if _holds(type_, "SetType(") and _has_text_keys(type_) else None


def _has_text_keys(type_: Any) -> bool:
    """Return whether all dicts in a type have keys that are text."""
    return all(kind.startswith("StrType(") for kind in kinds_of(type_).split("DictType(key_type=")[1:])


def _holds(type_: Any, kind: str) -> bool:
    """Return whether values of a type that msgspec knows have parts of a kind, as `FloatType(`."""
    return not is_record(type_) and type_ not in UNTYPED and kind in kinds_of(type_)


def kinds_of(type_: Any) -> str:
    """Return the text of a type that msgspec knows, "" of another."""
    try:
        return repr(msgspec.inspect.type_info(type_))
    except (TypeError, NameError):
        return ""


def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    try:
        known = not isinstance(msgspec.inspect.type_info(type_), msgspec.inspect.CustomType)
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            type_, strict=type_ not in _SCALARS, dec_hook=_revive_record
        )
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"{type_} can't be decoded: {error}") from error
    if not known:
        _refuse_type(type_)
    return decoder


def _refuse_type(type_: Any) -> NoReturn:
    raise ConfigurationError(
        f"{type_} can't be decoded: make it a faust.Record, a msgspec.Struct or a dataclass, or declare bytes"
    )


def _revive_record(type_: Any, data: Any) -> Any:
    if is_record(type_):
        return type_.from_data(data, preferred_type=type_)
    if is_model(type_):
        return type_.model_validate(data)
    raise NotImplementedError(f"{type_} can't be decoded")


def _plain_part(value: Any) -> Any:
    """Return a part of a value that msgspec doesn't know as plain data."""
    return value.model_dump(mode="json", by_alias=True) if is_model(type(value)) else on_default(value)


def _dump_json(value: Any) -> bytes:
    try:
        raw = orjson.dumps(value, default=on_default, option=orjson.OPT_UTC_Z)
    except TypeError:
        # Texts of other classes, such as StrEnum, may be keys too.
        reason = no_text_key(value)
        if reason is not None:
            raise ValueError(reason) from None
        raw = orjson.dumps(value, default=on_default, option=_JSON_OPTIONS)
    # It writes NaN and infinity so.
    if raw.find(b"null") >= 0 and (reason := unfit(value)) is not None:
        raise ValueError(reason)
    return raw


def _dump_untyped(value: Any) -> bytes:
    if isinstance(value, bytes):
        # Faust's JSON would make them the text "b'...'", which is read back as a str.
        raise TypeError("bytes aren't JSON: declare the type bytes")
    return _dump_json(value)


def _dump_record(record: Any) -> bytes:
    return _dump_json(record.to_representation())


def _dump_record_in_order(record: Any) -> bytes:
    return _dump_json({name: plain_form(part) for name, part in record.to_representation().items()})


def _dump_model(model: Any) -> bytes:
    raw: str = model.model_dump_json(by_alias=True)
    # It writes NaN and infinity so.
    if "null" in raw and not is_finite(model):
        raise ValueError(unfit(model.model_dump()))
    return raw.encode()


def _dump_model_in_order(model: Any) -> bytes:
    return _dump_json(plain_form(model.model_dump(mode="json", by_alias=True)))


def _in_order(dump: _Encode, in_order: bool) -> _Encode:
    return (lambda value: dump(plain_form(value))) if in_order else dump


def _null_as_none(decode: _Decode) -> _Decode:
    return lambda raw: None if raw == b"null" else decode(raw)


def _layered(type_: Any, faust_codec: Any, optional: bool) -> tuple[_Decode, _Encode]:
    """Put the type's conversion on top of a codec of Faust's registry."""
    from_payload, to_payload = _conversion(type_)
    loads, dumps = faust_codec.loads, faust_codec.dumps

    def decode(raw: bytes) -> Any:
        payload = loads(raw)
        return None if payload is None and optional else from_payload(payload)

    return decode, lambda value: dumps(to_payload(value))


def _conversion(type_: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if is_record(type_):
        return lambda data: type_.from_data(data, preferred_type=type_), type_.to_representation
    if type_ is None:
        return Model._maybe_reconstruct, _identity
    if type_ in UNTYPED:
        return _identity, _identity
    if type_ is bytes:
        return lambda payload: payload.encode() if isinstance(payload, str) else payload, _identity
    _decoder(type_)

    def convert(payload: Any) -> Any:
        text = payload.decode() if isinstance(payload, bytes) else payload
        return msgspec.convert(text, type_, strict=False, dec_hook=_revive_record)

    return convert, _to_builtins


def _to_builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_plain_part)


def _guard_decode(decode: _Decode, label: str, refuse: Callable[[bytes], None] | None) -> _Decode:
    if decode is _identity:
        return decode

    def guarded(raw: bytes) -> Any:
        try:
            return decode(raw)
        except MemoryError:
            raise
        except Exception as error:
            if refuse is not None:
                refuse(raw)
            reason = text_of(error) or type(error).__name__
            raise CodecError(f"not a valid {label}: {reason}: {show_bytes(raw)}") from error

    return guarded


def _guard_encode(encode: _Encode, type_: Any, label: str, reading: _ReadBack | None) -> _Encode:
    """Return an encoder that raises `CodecError`, for what isn't read back too."""
    decode, quick, is_kept = reading or (None, None, None)
    expected = classes_of(type_)
    # JSON's true is no number: a record that says so couldn't be read back.
    refused = (types.NoneType, bool) if type_ in (int, float) else types.NoneType
    exact = frozenset(expected)

    def guarded(value: Any) -> bytes:
        if type(value) not in exact and (not isinstance(value, expected) or isinstance(value, refused)):
            raise CodecError(f"expected {label}, got {type(value).__name__}")
        try:
            raw = encode(value)
            if decode is None or (is_kept is not None and is_kept(value)):
                return raw
            if quick is None or quick(raw) != value:
                _check_same(value, decode(raw))
        except MemoryError:
            raise
        except Exception as error:
            reason = None if decode is None else unfit(value)
            raise CodecError(f"can't encode {label}: {reason or text_of(error) or type(error).__name__}") from error
        return raw

    # Bytes as they are need no more than a look at their type.
    return guarded if encode is not _identity else lambda value: value if type(value) is bytes else guarded(value)


def _check_same(value: Any, back: Any) -> None:
    reason = difference(value, back)
    if reason is not None:
        raise ValueError(reason)


def classes_of(type_: Any) -> tuple[type, ...]:
    """Return the classes of which a value of `type_` is; `object` where that can't be told."""
    if type_ in UNTYPED:
        return (object,)
    if type_ is float:
        return (float, int)
    origin = typing.get_origin(type_)
    if hasattr(origin or type_, "__total__"):
        # A TypedDict, of which nothing can be an instance.
        return (dict,)
    if is_union(type_):
        return tuple(found for arm in typing.get_args(type_) for found in classes_of(arm))
    # A class up to Python 3.12, a special form after it.
    is_class = isinstance(origin or type_, type) and origin is not Annotated
    return (origin or type_,) if is_class else (object,)
