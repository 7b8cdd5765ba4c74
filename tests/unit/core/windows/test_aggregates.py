"""What aggregates tell apart."""

import pytest

from actors import aggregates


@pytest.mark.parametrize(
    ("values", "distinct"),
    [
        ([{"a": 1, "b": [2]}, {"b": [2], "a": 1}], 1),
        ([{"b", "a", "c"}, {"c", "b", "a"}, ["a", "b", "c"]], 1),
        ([{1: "a", 2: "b"}, {1: "a", 2: "c"}], 2),
        ([1, "1", 1.5, None, True, b"1"], 6),
    ],
)
def test_equal_values_are_one_whatever_their_order(values, distinct):
    aggregate, state = aggregates.approx_distinct(), b""
    for value in values:
        state = aggregate.add(state, value)
    assert aggregate.result(state) == distinct
