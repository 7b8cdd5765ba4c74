"""Aggregates: what is known of many values without keeping them.

An aggregate's state is plain data (numbers, strings, bytes, lists), so that it can be stored, and merged where windows
are. `add`, `merge` and `remove` return the new state, which may be the old one, changed in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, is_dataclass
from hashlib import blake2b
from types import GenericAlias, UnionType
from typing import Any, Generic, TypeVar, overload

import msgspec

from actors._core.outside import MALFORMED
from actors._core.values.read_back import difference, has_nan, is_told_by_equality

S = TypeVar("S")
V = TypeVar("V")

_REGISTERS = 1 << 11
_INDEX_BITS = 11
_HASH_BITS = 64
_INT_BITS = 63
_ALPHA = 0.7213 / (1 + 1.079 / _REGISTERS)


def as_it_is(state: Any) -> Any:
    """Return a state: the result of most aggregates."""
    return state


@dataclass(frozen=True, slots=True)
class Aggregate(Generic[S]):
    """How values become a state.

    Attributes:
        initial: the state of no values.
        add: called with (state, value).
        merge: called with the states of two windows that become one, the earlier first. None: it has none, so that it
            can't be used with `Session`.
        state_type: the state's type, as a `msgspec` annotation; Any means plain data.
        result: gives what users see of a state.
        remove: takes a value out of a state again, called with (state, value). None: it can't be.
        keeps_some: whether the state is one of the values, or a list of some: another one leaves nothing in it.
        name: what the states are. A window store that has those of another name is refused; "" isn't compared.

    Examples:
        >>> latest = Aggregate(None, add=lambda state, value: value, merge=lambda one, two: two)
        >>> latest.add(latest.add(latest.initial, "hat"), "bag")
        'bag'
    """

    initial: S
    add: Callable[[S, Any], S]
    merge: Callable[[S, S], S] | None = None
    state_type: Any = Any
    result: Callable[[S], Any] = as_it_is
    remove: Callable[[S, Any], S] | None = None
    name: str = ""
    keeps_some: bool = False

    def starter(self) -> Callable[[], S]:
        """Return a function that returns a state of no values, which may be changed in place."""
        initial = self.initial
        return (lambda: initial) if deepcopy(initial) is initial else (lambda: deepcopy(initial))

    def encoder(self) -> Callable[[S], bytes]:
        """Return the encoder of states. It raises ValueError for a state that isn't equal after decoding."""
        encode, decode = msgspec.msgpack.Encoder().encode, self.decoder()
        is_told = is_told_by_equality(self.state_type)
        # Hot: a number needs no proof.
        keeps_ints = self.state_type in (int, Any)

        def bytes_of(state: S) -> bytes:
            raw = encode(state)
            if keeps_ints and type(state) is int:
                return raw
            back = decode(raw)
            if (back != state or not is_told) and (reason := difference(state, back, "the state")) is not None:
                raise ValueError(
                    f"{reason}: name the type, state_type= of an Aggregate of your own, or value_type= as in "
                    "aggregates.max(value_type=Decimal)"
                )
            return raw

        return bytes_of

    def decoder(self) -> Callable[[bytes], S]:
        """Return the function that decodes a state. It raises ValueError for other bytes."""
        decode: Callable[[bytes], S] = msgspec.msgpack.Decoder(self.state_type).decode

        def state_of(raw: bytes) -> S:
            try:
                return decode(raw)
            except MALFORMED as error:
                raise ValueError(f"not a state of this aggregate, {error}: {raw[:50]!r}") from error

        return state_of


_COUNT: Aggregate[int] = Aggregate(
    0, lambda state, _: state + 1, lambda one, two: one + two, int, remove=lambda state, _: state - 1, name="count"
)


def count() -> Aggregate[int]:
    """Count values; `None` counts too."""
    return _COUNT


def sum() -> Aggregate[int | float]:
    """Add numbers up."""
    return _SUM


_SUM: Aggregate[int | float] = Aggregate(
    0, lambda state, value: state + value, lambda one, two: one + two, int | float, name="sum"
)


@overload
def min(value_type: type[V]) -> Aggregate[V | None]: ...
@overload
def min(value_type: UnionType | None = None) -> Aggregate[Any]: ...
def min(value_type: Any = None) -> Aggregate[Any]:
    """Keep the smallest value; None where there was none. NaN is refused. `value_type` is as of `top_n`."""
    return _extreme("min", value_type, _smaller)


@overload
def max(value_type: type[V]) -> Aggregate[V | None]: ...
@overload
def max(value_type: UnionType | None = None) -> Aggregate[Any]: ...
def max(value_type: Any = None) -> Aggregate[Any]:
    """Keep the largest value; None where there was none. NaN is refused. `value_type` is as of `top_n`."""
    return _extreme("max", value_type, _larger)


def mean() -> Aggregate[tuple[int, float]]:
    """Return the mean of numbers, None where there was none."""
    return _MEAN


_MEAN: Aggregate[tuple[int, float]] = Aggregate(
    (0, 0.0),
    lambda state, value: (state[0] + 1, state[1] + value),
    lambda one, two: (one[0] + two[0], one[1] + two[1]),
    tuple[int, float],
    result=lambda state: state[1] / state[0] if state[0] else None,
    name="mean",
)


def of_rows(aggregate: Aggregate[Any]) -> Aggregate[Any]:
    """Return an aggregate in the form whose values leave again. The state of sums is exact, so nothing is left of one.

    Such a state is an int, or as text an int beyond 64 bits, or "numerator/denominator" once there was a float.
    """
    if aggregate is _SUM:
        return Aggregate(
            0,
            lambda state, value: _moved("sum", state, value, 1),
            remove=lambda state, value: _moved("sum", state, value, -1),
            state_type=int | str,
            result=_total,
            name="sum",
        )
    if aggregate is _MEAN:
        return Aggregate(
            (0, 0),
            lambda state, value: (state[0] + 1, _moved("mean", state[1], value, 1)),
            remove=lambda state, value: (state[0] - 1, _moved("mean", state[1], value, -1)),
            state_type=tuple[int, int | str],
            result=lambda state: _total(state[1], state[0]) if state[0] else None,
            name="mean",
        )
    return aggregate


def _moved(what: str, state: int | str, value: Any, sign: int) -> int | str:
    """Return an exact sum with a number added, or taken out if `sign` is -1."""
    if isinstance(value, int):
        numerator, denominator = int(value), 1
    elif isinstance(value, float) and math.isfinite(value):
        numerator, denominator = value.as_integer_ratio()
    else:
        shown = value if isinstance(value, float) else f"a value of type {type(value).__name__}"
        raise ValueError(
            f"aggregates.{what}() over a table or across keys adds finite ints and floats, which it can take out "
            f"again, not {shown}"
        )
    top, _, bottom = str(state).partition("/")
    # Denominators are powers of two.
    common = int(bottom or 1)
    scale = 1 if denominator <= common else denominator // common
    common *= scale
    total = int(top) * scale + sign * numerator * (common // denominator)
    if not bottom and isinstance(value, int):
        return total if total.bit_length() < _INT_BITS else str(total)
    factor = total & -total
    factor = factor if 0 < factor < common else common
    return f"{total // factor}/{common // factor}"


def _total(state: int | str, count: int | None = None) -> int | float:
    """Return the number that an exact sum is, or its mean; infinity if it is larger than floats are."""
    if isinstance(state, int):
        return state if count is None else state / count
    top, _, bottom = state.partition("/")
    if not bottom and count is None:
        return int(top)
    try:
        return int(top) / (int(bottom or 1) * (count or 1))
    except OverflowError:
        return -math.inf if top.startswith("-") else math.inf


@overload
def collect(limit: int, value_type: type[V]) -> Aggregate[list[V]]: ...
@overload
def collect(limit: int, value_type: UnionType | None = None) -> Aggregate[list[Any]]: ...
def collect(limit: int, value_type: Any = None) -> Aggregate[list[Any]]:
    """Keep the first `limit` values in order. `value_type` is as of `top_n`.

    Raises:
        ValueError: the limit isn't positive, or states can't hold values of that type.
    """
    _check_positive("collect", "limit", limit)
    kind, add = _values("collect", value_type, lambda state, value: state if len(state) >= limit else [*state, value])
    return Aggregate(
        [], add, lambda one, two: [*one, *two][:limit], GenericAlias(list, (kind,)), name="collect", keeps_some=True
    )


@overload
def top_n(n: int, by: Callable[[V], Any] = as_it_is, *, value_type: type[V]) -> Aggregate[list[V]]: ...
@overload
def top_n(
    n: int, by: Callable[[Any], Any] = as_it_is, *, value_type: UnionType | None = None
) -> Aggregate[list[Any]]: ...
def top_n(n: int, by: Callable[[Any], Any] = as_it_is, *, value_type: Any = None) -> Aggregate[list[Any]]:
    """Keep the `n` largest values, the largest first; of equal ones those that came first.

    Args:
        n: how many.
        by: gives what values are compared by. NaN is refused.
        value_type: what values are: `msgspec.Struct`, dataclass, or any type that msgspec knows. None is for plain
            data: numbers, strings, bytes, and lists and dicts of these.

    Raises:
        ValueError: `n` isn't positive, or states can't hold values of that type.
    """
    _check_positive("top_n", "n", n)

    def best(values: list[Any]) -> list[Any]:
        return sorted(values, key=by, reverse=True)[:n]

    def add_best(state: list[Any], value: Any) -> list[Any]:
        _check_order("top_n", by(value))
        return best([*state, value])

    kind, add = _values("top_n", value_type, add_best)
    return Aggregate(
        [], add, lambda one, two: best([*one, *two]), GenericAlias(list, (kind,)), name="top_n", keeps_some=True
    )


def count_distinct() -> Aggregate[int]:
    """Count different values, exactly: for tumbling and hopping windows, which have a row for each value.

    Values are told apart by their JSON.
    """
    return _DISTINCT


_DISTINCT: Aggregate[int] = Aggregate(0, lambda state, _: state + 1, state_type=int, name="count_distinct")
"""Adds a value that is new: the store tells it by its rows."""


def identity(value: Any) -> bytes:
    """Return the identity of a value: its JSON, of a long one a digest, which begins as no JSON does."""
    raw = _json(value)
    return raw if len(raw) <= LONGEST_IDENTITY else b"\0" + blake2b(raw, digest_size=LONGEST_IDENTITY).digest()


def approx_distinct() -> Aggregate[bytes]:
    """Estimate how many different values there were: HyperLogLog, 2,048 registers, a standard error of 2.3 %.

    Values are told apart by their JSON. A state takes 2 KiB, that of fewer than 256 values 8 bytes for each of them.

    Source: Flajolet et al., "HyperLogLog: the analysis of a near-optimal cardinality estimation algorithm", 2007.
    """
    return Aggregate(b"", _seen, _union, bytes, result=_estimate, name="approx_distinct")


def _extreme(what: str, value_type: Any, better: Callable[[Any, Any], Any]) -> Aggregate[Any]:
    def add_better(state: Any, value: Any) -> Any:
        _check_order(what, value)
        return better(state, value)

    kind, add = _values(what, value_type, add_better)
    return Aggregate(None, add, better, Any if kind is Any else kind | None, name=what, keeps_some=True)


def _smaller(one: Any, two: Any) -> Any:
    if one is None or two is None:
        return two if one is None else one
    return two if two < one else one


def _larger(one: Any, two: Any) -> Any:
    if one is None or two is None:
        return two if one is None else one
    return two if two > one else one


_ORDERED = frozenset((int, str, bytes, bool, type(None)))


def _check_order(what: str, value: Any) -> None:
    kind = type(value)
    # Hot: most values are plain.
    if value != value if kind is float else kind not in _ORDERED and has_nan(value):
        raise ValueError(f"aggregates.{what}() of NaN, which is neither smaller nor larger than a number: leave it out")


_PLAIN = frozenset((int, float, str, bytes, bool, type(None), list, tuple, dict))


def _values(what: str, value_type: Any, add: Callable[[Any, Any], Any]) -> tuple[Any, Callable[[Any, Any], Any]]:
    """Return the type of the values of an aggregate, and its `add`, which refuses what would be read back as a dict.

    Raises:
        ValueError: states can't hold values of that type.
    """
    if value_type is not None:
        _check_type(what, value_type)
        return value_type, add

    def add_plain(state: Any, value: Any) -> Any:
        if type(value) not in _PLAIN and (hasattr(value, "__struct_fields__") or is_dataclass(value)):
            name = type(value).__name__
            raise TypeError(
                f"aggregates.{what}() of values that are {name}, which it would give back as plain data: name their "
                f"type, aggregates.{what}(…, value_type={name})"
            )
        return add(state, value)

    return Any, add_plain


def _check_type(what: str, value_type: Any) -> None:
    try:
        is_known = not isinstance(msgspec.inspect.type_info(value_type), msgspec.inspect.CustomType)
        msgspec.msgpack.Decoder(value_type)
    except (TypeError, NameError) as error:
        raise ValueError(f"{what}(value_type={value_type!r}): it can't be decoded: {error}") from error
    if not is_known:
        raise ValueError(
            f"{what}(value_type={value_type!r}): it can't be decoded: make it a msgspec.Struct or a dataclass"
        )


def _check_positive(what: str, option: str, number: int) -> None:
    if not isinstance(number, int) or number < 1:
        raise ValueError(f"{what}({option}={number!r}): give a number of 1 or more")


LONGEST_IDENTITY = 32
_SPARSE_LIMIT = 256 * 8
_encode_in_order = msgspec.json.Encoder(order="deterministic").encode


def _json(value: Any) -> bytes:
    """Return a value's JSON: the same for equal dicts, and for equal sets in each process."""
    try:
        return _encode_in_order(value)
    except TypeError:
        # Keys of a dict that aren't text have no order.
        return msgspec.json.encode(value)


def _seen(state: bytes, value: Any) -> bytes:
    """Return the state with a value in it: up to 256 hashes as they are, in order, then a register for each prefix."""
    digest = blake2b(_json(value), digest_size=8).digest()
    if len(state) != _REGISTERS:
        hashes = _hashes(state) | {digest}
        if len(hashes) * 8 < _SPARSE_LIMIT:
            return b"".join(sorted(hashes))
        return _dense(hashes)
    index, rank = _place(digest)
    if state[index] >= rank:
        return state
    return state[:index] + bytes([rank]) + state[index + 1 :]


def _union(one: bytes, two: bytes) -> bytes:
    if len(one) != _REGISTERS and len(two) != _REGISTERS:
        hashes = _hashes(one) | _hashes(two)
        return b"".join(sorted(hashes)) if len(hashes) * 8 < _SPARSE_LIMIT else _dense(hashes)
    registers = (state if len(state) == _REGISTERS else _dense(_hashes(state)) for state in (one, two))
    return bytes(map(_larger, *registers))


def _hashes(state: bytes) -> set[bytes]:
    return {state[at : at + 8] for at in range(0, len(state), 8)}


def _dense(hashes: set[bytes]) -> bytes:
    registers = bytearray(_REGISTERS)
    for digest in hashes:
        index, rank = _place(digest)
        registers[index] = _larger(registers[index], rank)
    return bytes(registers)


def _place(digest: bytes) -> tuple[int, int]:
    number = int.from_bytes(digest)
    rest = number & ((1 << (_HASH_BITS - _INDEX_BITS)) - 1)
    return number >> (_HASH_BITS - _INDEX_BITS), _HASH_BITS - _INDEX_BITS - rest.bit_length() + 1


def _estimate(state: bytes) -> int:
    if len(state) != _REGISTERS:
        return len(state) // 8
    raw = _ALPHA * _REGISTERS * _REGISTERS / math.fsum(2.0**-rank for rank in state)
    empty = state.count(0)
    if empty and raw <= 2.5 * _REGISTERS:
        return round(_REGISTERS * math.log(_REGISTERS / empty))
    return round(raw)
