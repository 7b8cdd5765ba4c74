"""`ctx.log`: each line has the actor, the input, the offset and the key of its message."""

from __future__ import annotations

import json
import logging

import pytest

from actors import App, Context
from actors.cli.run.json_logs import JsonFormatter
from actors.testing import ActorTestDriver


def logged(caplog: pytest.LogCaptureFixture, key: str = "ada") -> list[logging.LogRecord]:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)

    @app.actor(orders)
    async def place(ctx: Context, order: str) -> None:
        ctx.log.info("order of %d %s", 3, order, extra={"cents": 5})
        ctx.log.warning("100% done")
        ctx.log.debug("nobody reads %s", order)

    with caplog.at_level(logging.INFO), ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="other", value="cap")
        driver.send(orders, key=key, value="hat")
    return [record for record in caplog.records if record.name == "actors.handlers.place"]


def test_lines_begin_with_the_place_of_the_message(caplog: pytest.LogCaptureFixture) -> None:
    records = logged(caplog)
    place = "actor place, orders[0] offset 1 key 'ada': "
    assert [record.getMessage() for record in records[2:]] == [f"{place}order of 3 hat", f"{place}100% done"]
    first = records[2]
    fields = {name: getattr(first, name) for name in ("actor", "topic", "partition", "offset", "key", "cents")}
    assert fields == {
        "actor": "place", "topic": "orders", "partition": 0, "offset": 1, "key": "ada", "cents": 5
    }  # fmt: skip
    assert (first.funcName, first.filename) == ("place", "test_log.py")


def test_a_key_begins_no_line_and_is_no_format(caplog: pytest.LogCaptureFixture) -> None:
    records = logged(caplog, key="%s\n%d")
    assert records[2].getMessage() == "actor place, orders[0] offset 1 key '%s\\n%d': order of 3 hat"


def test_json_lines_have_the_place_in_members_only(caplog: pytest.LogCaptureFixture) -> None:
    line = json.loads(JsonFormatter("shop").format(logged(caplog)[2]))
    members = {name: line[name] for name in ("message", "actor", "topic", "partition", "offset", "key")}
    assert members == {
        "message": "order of 3 hat",
        "actor": "place",
        "topic": "orders",
        "partition": 0,
        "offset": 1,
        "key": "ada",
    }
