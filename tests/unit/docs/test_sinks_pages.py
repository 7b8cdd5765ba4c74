"""The programs on the pages on sinks, lookups, sources and large values."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from obstore.store import MemoryStore

from actors import App, Context
from actors.sinks import Batch, Record
from actors.testing import ActorTestDriver
from examples import large_values, poll_source
from tests.documents import block


def batch(first: int, following: int, *, token: int = 1) -> Batch:
    records = [Record("orders", 0, n, f"k{n % 3}", n, 0, []) for n in range(first, following)]
    return Batch(topic="orders", partition=0, first=first, next=following, token=token, records=records)


def an_app() -> dict[str, Any]:
    app = App("shop", broker="kafka://127.0.0.1:1")
    return {"app": app, "orders": app.topic("orders", key_type=str, value_type=int)}


def test_a_program_that_writes_to_postgresql_has_at_most_17_lines() -> None:
    code = block("docs/how-to/postgres.md", "Write to PostgreSQL")
    assert len([line for line in code.code.splitlines() if line.strip()]) <= 17
    names = code.run({})
    record = Record("orders", 0, 0, "o1", names["Order"]("ada", 5), 0, [])
    assert names["row"](record) == {"id": "o1", "customer": "ada", "cents": 5}
    assert list(names["app"].extensions["sinks"].declared) == ["row"]


async def test_a_function_gets_batches() -> None:
    uploads: dict[str, Any] = {}

    async def upload(name: str, values: Any) -> None:
        uploads[name] = values

    names = block("docs/how-to/sinks.md", "A function").run(an_app() | {"upload": upload})
    await names["app"].extensions["sinks"].declared["archive"].target.write(batch(3, 5), [])
    assert uploads == {"orders-0-3-4.json": [3, 4]}


def test_sqlite_gets_each_record_once_and_refuses_a_former_owner(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    write = block("docs/how-to/sinks.md", "Any DB-API driver, exactly once").run(an_app() | {"DATABASE": file})[
        "to_sqlite"
    ]
    write(batch(0, 4, token=2))
    # a batch that another worker cut elsewhere, of which the first half is there
    with sqlite3.connect(file) as db:
        db.execute("UPDATE orders SET cents = -1")
    write(batch(2, 6, token=3))
    with pytest.raises(RuntimeError, match="another writer, with token 3"):
        write(batch(6, 7, token=2))
    rows = dict(sqlite3.connect(file).execute("SELECT id, cents FROM orders"))
    assert rows == {"k0": -1, "k1": 4, "k2": 5}


def test_files_and_webhooks_are_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    names = an_app()
    block("docs/how-to/sinks.md", "Parquet files, exactly once").run(names)
    block("docs/how-to/sinks.md", "Webhooks").run(names)
    sinks = names["app"].extensions["sinks"].declared
    record = Record("orders", 0, 7, "o1", 5, 0, [])
    assert {name: sink.row(record)["cents"] for name, sink in sinks.items()} == {"columns": 5, "item": 5}


async def test_a_target_of_one_s_own() -> None:
    written: list[Any] = []

    async def read_offset(source: Any) -> int:
        return 7

    async def write_file(*parts: Any) -> None:
        written.append(parts)

    names = block("docs/how-to/sinks.md", "A target of your own").run(
        {"read_offset": read_offset, "write_file": write_file}
    )
    target = names["Files"]()
    assert await target.claim(batch(7, 8).source, "") == (7, None)
    await target.write(batch(7, 8), [1])
    assert written == [(("orders", 0), 7, 8, [1])]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[poll_source.Page]]:
    """The answers of the service to come; it has nothing new after the last one."""
    pages: list[poll_source.Page] = []

    async def read_page(source: str, cursor: int) -> poll_source.Page:
        return pages.pop(0) if pages else poll_source.Page([], cursor)

    monkeypatch.setattr(poll_source, "read_page", read_page)
    return pages


def test_the_page_s_source_is_the_example_s() -> None:
    app = App("sources", broker="kafka://127.0.0.1:1")
    names = vars(poll_source) | {"app": app, "polls": app.topic("polls", key_type=str)}
    source = block("docs/how-to/sources.md", "Poll a source").run(names)["Source"]
    assert app.definition_of(source).timers is not None


def items_of(driver: ActorTestDriver) -> list[str]:
    return [sent.value.text for sent in driver.outputs(poll_source.items)]


def test_a_source_sends_each_item_once_and_polls_again(pages: list[poll_source.Page]) -> None:
    item = poll_source.Item
    pages += [poll_source.Page([item("1", "a"), item("2", "b")], 2), poll_source.Page([item("3", "c")], 3)]
    with ActorTestDriver(poll_source.app) as driver:
        driver.tell(poll_source.Source, "news", poll_source.Poll())
        driver.advance(poll_source.AT_ONCE.total_seconds())
        assert items_of(driver) == ["a", "b", "c"]
        assert driver.get("Source", "news") == poll_source.Position(3)
        pages.append(poll_source.Page([item("4", "d")], 4))
        driver.advance(poll_source.EVERY.total_seconds())
        driver.crash(keep_disk=False)
        assert items_of(driver) == ["d"]


def test_a_cursor_that_goes_back_is_parked_with_both_positions(pages: list[poll_source.Page]) -> None:
    pages.append(poll_source.Page([poll_source.Item("1", "a")], 9))
    with ActorTestDriver(poll_source.app) as driver:
        driver.tell(poll_source.Source, "news", poll_source.Poll())
        pages += [poll_source.Page([poll_source.Item("1", "a")], 4)] * 9
        driver.advance(300)
        assert items_of(driver) == ["a"]
        (letter,) = driver.dead_letters(poll_source.Source)
        assert "cursor 4, before the 9 read so far" in dict(letter.headers)["fa-error"].decode()


async def test_the_page_s_large_values_are_checked() -> None:
    names = block("docs/how-to/large-values.md", "Large values").run(vars(large_values) | {"STORE": MemoryStore()})
    payload = await names["put"](b"cat")
    assert await names["get"](payload) == b"cat"
    await large_values.obstore.put_async(names["STORE"], payload.sha256, b"dog")
    with pytest.raises(ValueError, match="is damaged"):
        await names["get"](payload)


def test_a_handler_looks_values_up() -> None:
    class Order(msgspec.Struct):
        customer: str
        currency: str

    loads: list[Any] = []

    def loader(answer: Any) -> Any:
        async def load(key: Any) -> Any:
            loads.append(key)
            return answer if key != "nobody" else None

        return lambda *_: load

    app = App("shop", broker="kafka://127.0.0.1:1")
    names = {"app": app, "Context": Context, "Order": Order}
    names |= {
        "orders": app.topic("orders", key_type=str, value_type=Order),
        "priced": app.topic("priced", key_type=str),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.sinks.postgres.SelectRow", loader({"name": "Ada", "tier": "gold"}))
        patch.setattr("actors.sinks.http.GetJson", loader(1.5))
        block("docs/how-to/lookups.md", "Look up").run(names)
    with ActorTestDriver(app) as driver:
        for customer in ("ada", "nobody", "ada", "nobody"):
            driver.send(names["orders"], key="o", value=Order(customer, "EUR"))
        assert [sent.value for sent in driver.outputs(names["priced"])] == [
            {"tier": "gold", "rate": 1.5},
            {"tier": None, "rate": 1.5},
        ] * 2
    assert sorted(loads) == ["EUR", "ada", "nobody"]


async def test_a_large_value_is_fetched_by_its_digest_and_checked() -> None:
    payload = await large_values.put(b"x" * 100)
    assert await large_values.get(payload) == b"x" * 100
    assert await large_values.put(b"x" * 100) == payload
    await large_values.obstore.put_async(large_values.STORE, payload.sha256, b"y")
    with pytest.raises(ValueError, match="is damaged"):
        await large_values.get(payload)
    await large_values.put(b"x" * 100)
    with ActorTestDriver(large_values.app) as driver:
        driver.send(large_values.uploads, key="cat", value=payload)
        assert [sent.value for sent in driver.outputs(large_values.lengths)] == [100]
