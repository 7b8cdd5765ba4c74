"""What this worker says about the value that a key of a table had as of a time."""

from __future__ import annotations

from actors.errors import NewerVersionError
from actors.runtime.message.store import Store
from actors.runtime.message.table import Table
from actors.runtime.queries.queries import Found, HeldTask, read
from actors.web.problems import Problem, bad_request
from actors.web.queries.coding import Parameters

LAST_MS = (1 << 63) - 1


def as_of_in(parameters: Parameters, store: Store[object, object]) -> int | None:
    """Return the time of a request, Unix milliseconds, None if it asks for the latest value.

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
    return at_ms


def read_as_of(table: Store[object, object], task: HeldTask, key: bytes, at_ms: int) -> Found:
    """Return the row that a key had as of a time; it is read at once.

    Raises:
        Problem: the time is before the history, and the latest value isn't as old; or the history can't be read.
        NotReadyError: the history can't be read now.
    """
    if not isinstance(table, Table) or table.history is None:
        raise AssertionError("a store without a history is refused before")
    former = task.of(table.history.name)
    row = read(task.of(table.name), key).value
    try:
        found, since_ms = table.committed_as_of(row, lambda place: read(former, place).value, key, at_ms)
    except NewerVersionError:
        raise
    except ValueError as error:
        text = f"table {table.name}: a row of its history can't be read: {error}"
        raise Problem(500, "bad-value", "The value isn't of the store's type", text) from error
    if found is None and at_ms < since_ms:
        raise bad_request(
            "before-history",
            f"table {table.name} keeps former values since {since_ms}, and as_of={at_ms} is before: ask for a later "
            "time, or declare the table with a longer history= under another name",
        )
    return Found(found)
