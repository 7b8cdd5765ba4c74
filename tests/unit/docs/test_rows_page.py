"""The code of the page on rows below a key does what the page says."""

from __future__ import annotations

from typing import Any

from actors import App
from actors.client import StateClient
from actors.testing import ActorTestDriver
from tests.documents import block, commands_of, run, shows
from tests.unit.web.queries.test_row_queries import Declared, rows_served

HELLO = [("room-1", {"who": "ada", "text": "hello"}), ("room-1", {"who": "eve", "text": "hi"})]
MADE = 'app = App("chat", broker="kafka://127.0.0.1:9092")'


def of_page(app: App) -> Declared:
    names: dict[str, Any] = block("docs/how-to/rows.md", "Rows below a key").run({"app": app}, changes={MADE: ""})
    stores = [names[name] for name in ("lines", "counts", "guests")]
    return Declared("say", names["says"], names["say"], stores, HELLO)


def test_the_room_keeps_lines_counts_and_guests() -> None:
    names = block("docs/how-to/rows.md", "Rows below a key").run({})
    with ActorTestDriver(names["app"]) as driver:
        for key, message in [*HELLO, HELLO[0]]:
            driver.send(names["says"], key=key, value=message)
        assert driver.get(names["lines"], "room-1") == ["ada: hello", "eve: hi", "ada: hello"]
        assert driver.get(names["counts"], "room-1") == {"ada": 2, "eve": 1}
        assert driver.get(names["guests"], "room-1") == {"ada", "eve"}
        shown = driver.query(names["say"], "newest", "room-1", count=1)
        assert shown == {"lines": ["ada: hello"], "guests": 2}


async def test_the_commands_answer_as_shown() -> None:
    async with rows_served(of_page) as served:
        for command in commands_of("docs/how-to/rows.md"):
            said = await run(command, served.app.conf.web_port)
            assert shows(said, command.answer), (command, said)


async def test_the_client_reads_the_newest_lines(capsys: Any) -> None:
    read = block("docs/how-to/rows.md", "Reading pages", 2)
    async with rows_served(of_page) as served, StateClient(f"http://127.0.0.1:{served.app.conf.web_port}") as state:
        await read.run_async({"state": state})
    assert capsys.readouterr().out == "0 ada: hello\n1 eve: hi\n"
