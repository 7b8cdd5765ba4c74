"""Aggregates are what a list of the values would give, however the values are divided and merged."""

from __future__ import annotations

import builtins
import dataclasses
import math
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from operator import attrgetter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from actors import aggregates
from actors._core.aggregates import Aggregate, of_rows
from tests.examples import examples

REGISTERS = 2048
SIGMA = 0.023
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@dataclasses.dataclass(order=True)
class Sale:
    """Compared by its cents alone: `number` tells which one of equal sales it is."""

    cents: int
    number: int = dataclasses.field(compare=False)


def fold(aggregate: Aggregate[Any], values: Iterable[Any], state: Any = None) -> Any:
    """Return the state of values; between two it is bytes, as in a store."""
    encode, decode = aggregate.encoder(), aggregate.decoder()
    state = aggregate.initial if state is None else state
    for value in values:
        before = encode(state)
        state, held = decode(encode(aggregate.add(state, value))), state
        assert encode(held) == before, "add changes the state that it is given"
    return state


def merged(aggregate: Aggregate[Any], chunks: Iterable[Iterable[Any]]) -> Any:
    """Return the result of the states of chunks, merged in their order."""
    encode, decode, merge = aggregate.encoder(), aggregate.decoder(), aggregate.merge
    assert merge is not None
    return aggregate.result(
        reduce(lambda one, two: decode(encode(merge(one, two))), (fold(aggregate, c) for c in chunks))
    )


def of_numbers(values: list[int]) -> dict[str, tuple[Aggregate[Any], Any]]:
    return {
        "count": (aggregates.count(), len(values)),
        "sum": (aggregates.sum(), builtins.sum(values)),
        "mean": (aggregates.mean(), builtins.sum(values) / len(values) if values else None),
        "min": (aggregates.min(), builtins.min(values, default=None)),
        "max": (aggregates.max(), builtins.max(values, default=None)),
        "collect": (aggregates.collect(4), values[:4]),
        "top_n": (aggregates.top_n(3), sorted(values, reverse=True)[:3]),
        "approx_distinct": (aggregates.approx_distinct(), len(set(values))),
    }


def of_sales(sales: list[Sale]) -> dict[str, tuple[Aggregate[Any], Any]]:
    cents = attrgetter("cents")
    return {
        "min": (aggregates.min(Sale), builtins.min(sales, key=cents, default=None)),
        "max": (aggregates.max(Sale), builtins.max(sales, key=cents, default=None)),
        "collect": (aggregates.collect(4, Sale), sales[:4]),
        "top_n": (aggregates.top_n(3, value_type=Sale), sorted(sales, key=cents, reverse=True)[:3]),
        "top_n by": (
            aggregates.top_n(3, by=lambda sale: -sale.cents, value_type=Sale),
            sorted(sales, key=cents)[:3],
        ),
    }


CHUNKS = st.lists(st.lists(st.integers(-9, 9), max_size=8), min_size=1, max_size=5)


@settings(max_examples=examples(400), deadline=None)
@given(chunks=CHUNKS)
def test_folds_and_merges_equal_those_of_a_list(chunks: list[list[int]]) -> None:
    values = [value for chunk in chunks for value in chunk]
    for name, (aggregate, expected) in of_numbers(values).items():
        assert aggregate.result(fold(aggregate, values)) == expected, name
        assert merged(aggregate, chunks) == expected, name


@settings(max_examples=examples(400), deadline=None)
@given(chunks=CHUNKS)
def test_of_equal_values_those_that_came_first_are_kept(chunks: list[list[int]]) -> None:
    numbers = iter(range(100))
    sold = [[Sale(cents, next(numbers)) for cents in chunk] for chunk in chunks]
    sales = [sale for chunk in sold for sale in chunk]
    for name, (aggregate, expected) in of_sales(sales).items():
        for found in (aggregate.result(fold(aggregate, sales)), merged(aggregate, sold)):
            # Equal sales are told apart by what they were made of.
            assert repr(found) == repr(expected), name


@given(values=st.lists(st.none() | st.integers(-3, 3)))
def test_what_is_missing_is_neither_smallest_nor_largest(values: list[int | None]) -> None:
    there = [value for value in values if value is not None]
    assert fold(aggregates.min(), values) == builtins.min(there, default=None)
    assert fold(aggregates.max(), values) == builtins.max(there, default=None)
    assert fold(aggregates.count(), values) == len(values)


@pytest.mark.parametrize("make", [aggregates.count, aggregates.sum, aggregates.mean])
@given(values=st.lists(NUMBERS), out=st.lists(NUMBERS))
def test_a_value_that_is_taken_out_was_never_there(
    make: Callable[[], Aggregate[Any]], values: list[int | float], out: list[int | float]
) -> None:
    aggregate = of_rows(make())
    assert aggregate.remove is not None
    state = fold(aggregate, [*values, *out])
    for value in out:
        state = aggregate.remove(aggregate.decoder()(aggregate.encoder()(state)), value)
    expected = aggregate.result(fold(aggregate, values))
    if isinstance(aggregate.result(state), float) and isinstance(expected, int):
        # A sum that had a float in it stays one.
        expected = float(expected)
    assert aggregate.result(state) == expected
    exact = builtins.sum(map(Fraction, values), start=Fraction(0))
    if make is aggregates.sum and abs(exact) <= sys.float_info.max:
        assert float(aggregate.result(state)) == float(exact)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, "5", None, Decimal(1)])
@pytest.mark.parametrize("make", [aggregates.sum, aggregates.mean])
def test_a_sum_whose_values_leave_takes_numbers_that_can(make: Callable[[], Aggregate[Any]], number: Any) -> None:
    aggregate = of_rows(make())
    with pytest.raises(ValueError, match="adds finite ints and floats"):
        aggregate.add(aggregate.initial, number)


def test_a_sum_that_is_larger_than_floats_are_is_infinite_for_that_long() -> None:
    aggregate = of_rows(aggregates.sum())
    assert aggregate.remove is not None
    for sign in (1, -1):
        large = sign * sys.float_info.max
        state = aggregate.add(aggregate.add(aggregate.initial, large), large)
        assert aggregate.result(state) == sign * math.inf
        assert aggregate.result(aggregate.remove(state, large)) == large


@pytest.mark.parametrize(
    "aggregate",
    [aggregates.min(), aggregates.max(), aggregates.collect(1), aggregates.top_n(1)],
    ids=attrgetter("name"),
)
def test_what_keeps_values_takes_none_out(aggregate: Aggregate[Any]) -> None:
    assert aggregate.remove is None


# --- approx_distinct --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "distinct"),
    [
        ([{"a": 1, "b": [2]}, {"b": [2], "a": 1}], 1),
        ([{"b", "a", "c"}, {"c", "b", "a"}, ["a", "b", "c"]], 1),
        ([{1: "a", 2: "b"}, {1: "a", 2: "c"}], 2),
        ([1, "1", 1.5, None, True, b"1"], 6),
    ],
)
def test_equal_values_are_one_whatever_their_order(values: list[Any], distinct: int) -> None:
    aggregate = aggregates.approx_distinct()
    assert aggregate.result(fold(aggregate, values)) == distinct


def test_fewer_than_256_values_are_counted_exactly_and_more_take_2_kib() -> None:
    aggregate, state = aggregates.approx_distinct(), b""
    for number in range(255):
        state = fold(aggregate, [number, number // 2], state)
        assert (len(state), aggregate.result(state)) == (8 * (number + 1), number + 1)
    state = fold(aggregate, [255], state)
    assert len(state) == REGISTERS
    assert abs(aggregate.result(state) - 256) <= 4 * SIGMA * 256
    for number in range(256, 400):
        state = fold(aggregate, [number], state)
    assert fold(aggregate, range(400), state) == state, "values that were there change nothing"


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 100, 200, 254, 255, 256, 300]), min_size=2, max_size=4),
    shift=st.integers(0, 300),
)
def test_a_union_is_the_state_of_all_values(sizes: list[int], shift: int) -> None:
    aggregate = aggregates.approx_distinct()
    assert aggregate.merge is not None
    chunks = [range(number * shift, number * shift + size) for number, size in enumerate(sizes)]
    states = [reduce(aggregate.add, chunk, aggregate.initial) for chunk in chunks]
    whole = reduce(aggregate.add, (value for chunk in chunks for value in chunk), aggregate.initial)
    assert reduce(aggregate.merge, states) == whole
    assert reduce(aggregate.merge, reversed(states)) == whole
    assert aggregate.merge(whole, states[0]) == whole


@pytest.mark.parametrize("number", [1_000, 10_000, 100_000])
def test_an_estimate_is_within_four_standard_errors(number: int) -> None:
    aggregate = aggregates.approx_distinct()
    state = reduce(aggregate.add, (f"visitor {one}" for one in range(number)), aggregate.initial)
    assert abs(aggregate.result(state) - number) <= 4 * SIGMA * number


def test_the_standard_error_is_as_documented() -> None:
    """Of 24 sets the deviation may be 58 % larger: four standard errors of its own."""
    aggregate, number, sets = aggregates.approx_distinct(), 20_000, 24
    errors = []
    for one in range(sets):
        state = reduce(aggregate.add, range(one * number, (one + 1) * number), aggregate.initial)
        errors.append(aggregate.result(state) / number - 1)
    deviation = math.sqrt(builtins.sum(error**2 for error in errors) / sets)
    assert SIGMA / 2 < deviation < 1.58 * SIGMA, errors
    assert abs(builtins.sum(errors) / sets) < 4 * SIGMA / math.sqrt(sets), "it is too high, or too low, on the whole"
