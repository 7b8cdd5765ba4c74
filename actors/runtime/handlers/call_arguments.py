"""The arguments of a call that is kept: how they become JSON, and how they come back from it."""

from __future__ import annotations

import inspect
import typing
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from actors._core.values.read_back import difference

Raw = tuple[list[Any], dict[str, Any]]
"""Positional and keyword arguments as JSON has them."""


def decode_arguments(raw: bytes) -> Raw:
    """Read the arguments of a call, `[args, kwargs]`.

    Raises:
        msgspec.MsgspecError, UnicodeDecodeError: it is something else.
    """
    arguments: Raw = msgspec.json.decode(raw, type=Raw)
    return arguments


@dataclass(slots=True)
class Arguments:
    """Makes a function's arguments, behind its first, out of JSON data by its annotations."""

    function: Callable[..., Any]
    _signature: inspect.Signature | None = field(init=False, default=None)
    _types: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self._signature = inspect.signature(self.function)
        except (TypeError, ValueError):
            # Some builtins have none.
            return
        try:
            hints = typing.get_type_hints(inspect.unwrap(self.function), include_extras=True)
        except Exception:
            # Names that only a type checker imports, for example.
            return
        names = list(self._signature.parameters)[1:]
        self._types = {name: hints[name] for name in names if name in hints and _is_known(hints[name])}

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any], back: Raw) -> None:
        """Refuse a call of which `back`, read from its JSON, has other arguments; those without a type as plain data.

        Raises:
            ValueError: naming the argument.
            TypeError, msgspec.ValidationError: as of `bind`.
        """
        arguments, read = self._arguments(args, kwargs, {}), self._arguments(*back, self._types)
        for name, value in arguments.items():
            reason = difference(value if name in self._types else msgspec.to_builtins(value), read[name], name)
            if reason is not None:
                raise ValueError(reason)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments, without the first.

        Raises:
            TypeError: the function doesn't take so many, or not of these names.
            msgspec.ValidationError: one isn't what its annotation says.
        """
        if self._signature is None:
            return tuple(args), dict(kwargs)
        bound = inspect.BoundArguments(self._signature, self._arguments(args, kwargs, self._types))
        return bound.args[1:], bound.kwargs

    def _arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], types: Mapping[str, Any]
    ) -> OrderedDict[str, Any]:
        """Return the arguments by the names of the parameters, those in `types` as what these say."""
        if self._signature is None:
            return OrderedDict(args=list(args), kwargs=dict(kwargs))
        arguments = OrderedDict(self._signature.bind(None, *args, **kwargs).arguments)
        for name, hint in types.items():
            if name not in arguments:
                continue
            value, kind = arguments[name], self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                arguments[name] = tuple(_converted(item, hint) for item in value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                arguments[name] = {key: _converted(item, hint) for key, item in value.items()}
            else:
                arguments[name] = _converted(value, hint)
        return arguments


def _converted(value: Any, hint: Any) -> Any:
    return msgspec.convert(value, hint, str_keys=True)


def _is_known(hint: Any) -> bool:
    """Return whether JSON data can become a value of the type."""
    try:
        msgspec.json.Decoder(hint)
        kind = msgspec.inspect.type_info(hint)
    except Exception:
        return False
    return not isinstance(kind, msgspec.inspect.CustomType | msgspec.inspect.AnyType)
