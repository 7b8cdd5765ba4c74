"""Answers of this worker about the values that keys of a table had as of a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from actors.errors import NewerVersionError
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table
from actors.runtime.queries.histories import BeforeHistoryError
from actors.web.problems import Problem, bad_request
from actors.web.queries.coding import Parameters

LAST_MS = (1 << 63) - 1


class AsOf(NamedTuple):
    """A table with a history, and the time of a request, Unix milliseconds."""

    table: Table[Any, Any]
    at_ms: int

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what reads of the history raise into answers.

        Raises:
            Problem: the time is before the history, or the history can't be read.
        """
        try:
            yield
        except BeforeHistoryError as error:
            raise bad_request("before-history", str(error)) from error
        except NewerVersionError:
            raise
        except ValueError as error:
            text = f"table {self.table.name}: a row of its history can't be read: {error}"
            raise Problem(500, "bad-value", "The value isn't of the store's type", text) from error


def as_of_in(parameters: Parameters, store: Store[Any, Any]) -> AsOf | None:
    """Return the time of a request, None if it asks for the latest values.

    Raises:
        Problem: it isn't a time, the store keeps no former values, or a standby is asked, whose copies of the table and
            of its history may be of different commits.
    """
    at_ms = parameters.number("as_of", 0, LAST_MS)
    if at_ms is None:
        return None
    if not isinstance(store, Table) or store.history is None:
        raise bad_request(
            "no-history",
            f"store {store.name} keeps no former values: leave as_of out, or declare a table with a history, "
            "app.table(topic, history=timedelta(hours=1))",
        )
    if parameters.read == "standby":
        raise bad_request("bad-parameter", "former values are given by their owners only: leave read or as_of out")
    return AsOf(store, at_ms)
