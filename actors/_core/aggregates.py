"""Aggregates: what is known of many values without keeping them.

An aggregate's state is plain data (numbers, strings, bytes, lists), so that it can be stored, and merged where windows
are. `add` and `merge` return a new state and leave the old one as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec

from actors._core.outside import MALFORMED

S = TypeVar("S")

_REGISTERS = 1 << 11
_INDEX_BITS = 11
_HASH_BITS = 64
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

    def encoder(self) -> Callable[[S], bytes]:
        """Return how a state becomes bytes."""
        return msgspec.msgpack.Encoder().encode

    def decoder(self) -> Callable[[bytes], S]:
        """Return the function that decodes a state. It raises ValueError for other bytes."""
        decode: Callable[[bytes], S] = msgspec.msgpack.Decoder(self.state_type).decode

        def state_of(raw: bytes) -> S:
            try:
                return decode(raw)
            except MALFORMED as error:
                raise ValueError(f"not a state of this aggregate, {error}: {raw[:50]!r}") from error

        return state_of


def count() -> Aggregate[int]:
    """Count values; `None` counts too."""
    return Aggregate(
        0, lambda state, _: state + 1, lambda one, two: one + two, int, remove=lambda state, _: state - 1, name="count"
    )


def sum() -> Aggregate[int | float]:
    """Add numbers up."""
    return Aggregate(
        0, lambda state, value: state + value, lambda one, two: one + two, int | float,
        remove=lambda state, value: state - value, name="sum",
    )  # fmt: skip


def min() -> Aggregate[Any]:
    """Keep the smallest value; None where there was none."""
    return Aggregate(None, _smaller, _smaller, name="min")


def max() -> Aggregate[Any]:
    """Keep the largest value; None where there was none."""
    return Aggregate(None, _larger, _larger, name="max")


def mean() -> Aggregate[tuple[int, float]]:
    """Return the mean of numbers, None where there was none."""
    return Aggregate(
        (0, 0.0),
        lambda state, value: (state[0] + 1, state[1] + value),
        lambda one, two: (one[0] + two[0], one[1] + two[1]),
        tuple[int, float],
        result=lambda state: state[1] / state[0] if state[0] else None,
        remove=lambda state, value: (state[0] - 1, state[1] - value),
        name="mean",
    )


def collect(limit: int) -> Aggregate[list[Any]]:
    """Keep the first `limit` values in order.

    Raises:
        ValueError: the limit isn't positive.
    """
    _check_positive("collect", "limit", limit)
    return Aggregate(
        [],
        lambda state, value: state if len(state) >= limit else [*state, value],
        lambda one, two: [*one, *two][:limit],
        list[Any],
        name="collect",
    )


def top_n(n: int, by: Callable[[Any], Any] = as_it_is) -> Aggregate[list[Any]]:
    """Keep the `n` largest values, the largest first; of equal ones those that came first.

    Raises:
        ValueError: `n` isn't positive.
    """
    _check_positive("top_n", "n", n)

    def best(values: list[Any]) -> list[Any]:
        return sorted(values, key=by, reverse=True)[:n]

    return Aggregate(
        [], lambda state, value: best([*state, value]), lambda one, two: best([*one, *two]), list[Any], name="top_n"
    )


def approx_distinct() -> Aggregate[bytes]:
    """Estimate how many different values there were: HyperLogLog, 2,048 registers, a standard error of 2.3 %.

    Values are told apart by their JSON. A state takes 2 KiB, a smaller one up to 256 values.

    Source: Flajolet et al., "HyperLogLog: the analysis of a near-optimal cardinality estimation algorithm", 2007.
    """
    return Aggregate(b"", _seen, _union, bytes, result=_estimate, name="approx_distinct")


def _smaller(one: Any, two: Any) -> Any:
    if one is None or two is None:
        return two if one is None else one
    return two if two < one else one


def _larger(one: Any, two: Any) -> Any:
    if one is None or two is None:
        return two if one is None else one
    return two if two > one else one


def _check_positive(what: str, option: str, number: int) -> None:
    if not isinstance(number, int) or number < 1:
        raise ValueError(f"{what}({option}={number!r}): give a number of 1 or more")


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
