"""Tables and joins of an app."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from actors.declare.arguments import check_arguments
from actors.declare.streams.joins import Joins
from actors.declare.streams.tables import make_table
from actors.runtime.message.table import Table


class TableMethods(Joins):
    """The methods of `App` for tables and joins."""

    @check_arguments
    def table(self, topic: Any, *, name: str | None = None, history: timedelta | None = None) -> Table[Any, Any]:
        """Declare a table: the latest value of each key of a compacted topic, for handlers of the actor that lists it.

        The topic becomes an input of that actor: it has as many partitions as the others, and the same keys.

        Args:
            topic: a topic of `app.topic(...)`, the input of no other actor.
            name: of the store of its rows; the topic's by default.
            history: how far behind the newest record former values are kept, for `table.get(key, as_of=…)`.

        Raises:
            ConfigurationError: the name can't be used, or the topic isn't one.
        """
        return make_table(self, topic, name=name, history=history)
