"""The time of a record by a field: what counts as one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from actors._core.event_time import EventTime, NoTimeError

TIME = EventTime("orders", lambda _, raw: json.loads(raw), lambda value: value["at"])


@pytest.mark.parametrize(("given", "time_ms"), [(0, 0), (1_700_000_000_000, 1_700_000_000_000), (12.75, 12)])
def test_times(given: Any, time_ms: int) -> None:
    found = TIME.of((), json.dumps({"at": given}).encode())
    assert found == time_ms
    assert type(found) is int


@pytest.mark.parametrize("given", [-1, -0.5, None, "12", True, [], math.nan, math.inf, 1 << 63, 1e300], ids=repr)
def test_what_is_no_time(given: Any) -> None:
    with pytest.raises(NoTimeError, match="timestamp= of topic orders returned"):
        TIME.of((), json.dumps({"at": given}).encode())


def test_a_function_that_raises() -> None:
    with pytest.raises(NoTimeError, match="timestamp= of topic orders raised KeyError: 'at'") as raised:
        TIME.of((), b"{}")
    assert isinstance(raised.value.__cause__, KeyError)


def test_what_doesnt_decode_is_another_error() -> None:
    with pytest.raises(json.JSONDecodeError):
        TIME.of((), b"{")
