"""Values that know the version of their type: old ones are brought up to date when they are read.

A value of version 1 is what the codec makes, so that a store may begin without versions. From version 2 on it has the
prefix `00 76`, the version as two bytes (big-endian), then what the codec makes; JSON never begins with a zero byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from faust.utils.json import on_default

from actors._core.logs import error_text
from actors._core.outside import EXITS, MALFORMED
from actors.declare.values.codecs import Codec, CodecError
from actors.errors import ConfigurationError, NewerVersionError, show_bytes

Upgrades = Mapping[int, Callable[[Any], Any]]
_PREFIX = b"\x00v"
_HEAD = struct.Struct(">2sH")
MAX_VERSION = 65_535


def versioned(codec: Codec, version: int, upgrades: Upgrades, owner: str) -> Codec:
    """Return the codec of a type that has had earlier versions.

    Args:
        codec: of the type as it is now; it has to be JSON. One for version 1 was made with `refusal`.
        version: of the type as it is now, from 1 on.
        upgrades: for each earlier version, the function that makes plain JSON data of the next version from plain
            JSON data of it.
        owner: the store or actor, for errors.

    Raises:
        ConfigurationError: an upgrade is missing, or the codec isn't JSON.
    """
    _check(codec, version, upgrades, owner)
    if not codec.is_json:
        return codec
    if version == 1:
        return codec
    head = _HEAD.pack(_PREFIX, version)
    decode, encode = codec.decode, codec.encode

    def decode_any(raw: bytes) -> Any:
        if raw.startswith(head):
            return decode(raw[_HEAD.size :])
        found, body = _split(raw)
        if found > version:
            raise _too_new(raw, found, version, owner)
        return decode(_upgraded(body, found, version, upgrades, owner))

    return Codec(decode_any, lambda value: head + encode(value), f"{codec.name}, version {version}")


def _check(codec: Codec, version: int, upgrades: Upgrades, owner: str) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= MAX_VERSION:
        raise ConfigurationError(f"{owner}: version={version!r} has to be a whole number from 1 to {MAX_VERSION}")
    if sorted(upgrades) != list(range(1, version)):
        wanted = ", ".join(str(number) for number in range(1, version)) or "none"
        given = ", ".join(str(number) for number in sorted(upgrades)) or "none"
        raise ConfigurationError(
            f"{owner}: version {version} needs an upgrade function for each earlier version ({wanted}), given: {given}"
        )
    if version > 1 and not codec.is_json:
        raise ConfigurationError(f"{owner}: versions need a type that is kept as JSON, this is {codec.name}")


def _split(raw: bytes) -> tuple[int, bytes]:
    if raw.startswith(_PREFIX) and len(raw) >= _HEAD.size:
        return int(_HEAD.unpack_from(raw)[1]), raw[_HEAD.size :]
    return 1, raw


def refusal(version: int, owner: str) -> Callable[[bytes], None]:
    """Return a function that raises `NewerVersionError` for the bytes of a value newer than `version`."""

    def refuse_newer(raw: bytes) -> None:
        found, _ = _split(raw)
        if found > version:
            raise _too_new(raw, found, version, owner)

    return refuse_newer


def _too_new(raw: bytes, found: int, version: int, owner: str) -> NewerVersionError:
    return NewerVersionError(
        f"{owner}: a value of version {found}, this program knows up to {version}: {show_bytes(raw)}"
    )


def _upgraded(body: bytes, found: int, version: int, upgrades: Upgrades, owner: str) -> bytes:
    try:
        data = orjson.loads(body)
    except MALFORMED as error:
        raise CodecError(f"{owner}: not JSON of version {found}: {error}: {show_bytes(body)}") from error
    for number in range(found, version):
        try:
            data = upgrades[number](data)
        except EXITS:
            raise
        except BaseException as error:
            raise CodecError(
                f"{owner}: the upgrade from version {number} raised {error_text(error)}: {show_bytes(body)}"
            ) from error
    try:
        return orjson.dumps(data, default=on_default, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z)
    except TypeError as error:
        raise CodecError(
            f"{owner}: the upgrades from version {found} make no JSON: {error}: {show_bytes(body)}"
        ) from error
