"""Map, list and set stores on the test driver: what handlers and queries see, and what is committed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors import (
    Actor,
    App,
    ConfigurationError,
    Context,
    ForeignKeyError,
    NewerVersionError,
    ReadOnlyQueryError,
    RecordTooLargeError,
    StoreOutsideHandlerError,
    UsageError,
    query,
    receive,
)
from actors.runtime.rows.stores import ListRows, MapRows, SetRows
from actors.testing import ActorTestDriver
from tests.unit.runtime.rows.played import Played, extend


@pytest.fixture
def played() -> Played:
    return Played()


def test_a_list_is_read_by_index_and_slice(played: Played) -> None:
    def look(ctx: Context) -> Any:
        rows: ListRows[str] = played.lines.at(ctx.key)
        extend(rows, "abcdef")
        rows[1] = "B"
        return (
            rows[0],
            rows[-1],
            rows[1:3],
            rows[-2:],
            rows[::-2],
            rows[9:],
            len(rows),
            list(reversed(rows)),
            bool(rows),
        )

    with ActorTestDriver(played.app) as driver:
        shown = played.run(driver, look)
        assert shown == ("a", "f", ["B", "c"], ["e", "f"], ["f", "d", "B"], [], 6, list("fedcBa"), True)
        assert driver.get(played.lines, "ada") == list("aBcdef")
        assert driver.get(played.lines, "nobody") == []
        assert played.run(driver, lambda ctx: list(played.lines.at(ctx.key))) == list("aBcdef")


def test_rows_are_removed_at_the_front_of_a_list(played: Played) -> None:
    def cut(ctx: Context) -> Any:
        rows = played.lines.at(ctx.key)
        extend(rows, "abcdef")
        del rows[:2]
        first = rows[0]
        del rows[:1]
        del rows[:-2]
        return first, list(rows)

    def empty(ctx: Context) -> Any:
        rows = played.lines.at(ctx.key)
        del rows[:]
        with pytest.raises(IndexError, match="store lines: the list has no row 0"):
            rows[0]
        return len(rows), bool(rows)

    with ActorTestDriver(played.app) as driver:
        assert played.run(driver, cut) == ("c", ["e", "f"])
        assert driver.get(played.lines, "ada") == ["e", "f"]
        assert played.run(driver, empty) == (0, False)
        assert driver.items(played.lines.rows) == {}


@pytest.mark.parametrize("rows", [slice(1, 2), slice(None, None, 2), slice(-1, None), 0])
def test_other_rows_of_a_list_cant_be_removed(played: Played, rows: Any) -> None:
    def cut(ctx: Context) -> Any:
        extend(played.lines.at(ctx.key), "abc")
        with pytest.raises(
            UsageError, match=r"store lines: the rows of a list are removed at its front: del rows\[:n\]"
        ):
            del played.lines.at(ctx.key)[rows]
        return len(played.lines.at(ctx.key))

    with ActorTestDriver(played.app) as driver:
        assert played.run(driver, cut) == 3


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_that_a_list_doesnt_have(played: Played, index: int) -> None:
    def look(ctx: Context) -> Any:
        rows = played.lines.at(ctx.key)
        extend(rows, "abc")
        with pytest.raises(IndexError, match=f"the list has no row {index}"):
            rows[index]
        with pytest.raises(IndexError, match=f"the list has no row {index}"):
            rows[index] = "x"

    with ActorTestDriver(played.app) as driver:
        played.run(driver, look)


def test_a_map_is_read_by_row_range_and_prefix(played: Played) -> None:
    def look(ctx: Context) -> Any:
        rows: MapRows[str, int] = played.cart.at(ctx.key)
        for number, row in enumerate(("hat", "hut", "pen", "")):
            rows[row] = number
        rows["hat"] = 7
        del rows["pen"]
        with pytest.raises(KeyError, match="pen"):
            rows["pen"]
        with pytest.raises(KeyError, match="pen"):
            del rows["pen"]
        return (
            rows["hat"],
            rows.get("pen"),
            rows.get("pen", 3),
            "hut" in rows,
            "pen" in rows,
            len(rows),
            list(rows),
            list(rows.range("hb")),
            list(rows.range(None, "hb", reverse=True)),
            list(rows.prefix("h")),
            rows.delete("pen"),
        )

    with ActorTestDriver(played.app) as driver:
        shown = played.run(driver, look)
        assert shown == (
            7,
            None,
            3,
            True,
            False,
            3,
            ["", "hat", "hut"],
            [("hut", 1)],
            [("hat", 7), ("", 3)],
            [("hat", 7), ("hut", 1)],
            False,
        )
        assert driver.get(played.cart, "ada") == {"": 3, "hat": 7, "hut": 1}


def test_a_set_tells_what_is_new(played: Played) -> None:
    def look(ctx: Context) -> Any:
        rows: SetRows[str] = played.tags.at(ctx.key)
        news = [rows.add(row) for row in ("b", "a", "b")]
        return (
            news,
            "a" in rows,
            len(rows),
            list(rows),
            rows.discard("a"),
            rows.discard("a"),
            list(rows.range("a", "c")),
        )

    with ActorTestDriver(played.app) as driver:
        assert played.run(driver, look) == ([True, True, False], True, 2, ["a", "b"], True, False, ["b"])
        assert driver.get(played.tags, "ada") == {"b"}
        logged = len(driver.changelog(played.tags))
        assert played.run(driver, lambda ctx: played.tags.at(ctx.key).add("b")) is False
        assert len(driver.changelog(played.tags)) == logged, "nothing is written for what is there"


def test_keys_have_rows_of_their_own(played: Played) -> None:
    """A key that another one begins with is another key, as is an empty one."""
    with ActorTestDriver(played.app, partitions=1) as driver:
        for key in ("a", "ab", "abr", ""):
            played.run(driver, lambda ctx: played.cart.at(ctx.key).set("r", len(ctx.key)), key=key)
            played.run(driver, lambda ctx: played.lines.at(ctx.key).append(ctx.key), key=key)
        assert driver.items(played.cart) == {"": {"r": 0}, "a": {"r": 1}, "ab": {"r": 2}, "abr": {"r": 3}}
        played.run(driver, lambda ctx: played.cart.at(ctx.key).clear(), key="ab")
        assert driver.items(played.cart) == {"": {"r": 0}, "a": {"r": 1}, "abr": {"r": 3}}
        assert driver.items(played.lines) == {key: [key] for key in ("", "a", "ab", "abr")}


def test_a_message_that_fails_leaves_no_row() -> None:
    played = Played(on_error="skip")

    def fail(ctx: Context) -> Any:
        played.lines.at(ctx.key).append("lost")
        played.cart.at(ctx.key)["lost"] = 1
        played.tags.at(ctx.key).clear()
        raise ValueError

    with ActorTestDriver(played.app) as driver:
        played.run(driver, lambda ctx: (played.lines.at(ctx.key).append("kept"), played.tags.at(ctx.key).add("kept")))
        played.run(driver, fail)
        played.run(driver, lambda ctx: played.lines.at(ctx.key).append("next"))
        assert driver.get(played.lines, "ada") == ["kept", "next"]
        assert (driver.get(played.cart, "ada"), driver.get(played.tags, "ada")) == ({}, {"kept"})


def test_rows_are_restored_and_kept_over_a_crash(played: Played) -> None:
    with ActorTestDriver(played.app) as driver:
        for text in "abc":
            played.run(driver, lambda ctx, text=text: played.lines.at(ctx.key).append(text))
        driver.crash(keep_disk=False)
        assert (
            played.run(driver, lambda ctx: (played.lines.at(ctx.key).append("d"), len(played.lines.at(ctx.key)))[1])
            == 4
        )
        assert driver.get(played.lines, "ada") == list("abcd")


def test_clearing_leaves_nothing_in_the_changelog_but_tombstones(played: Played) -> None:
    def fill(ctx: Context) -> None:
        extend(played.lines.at(ctx.key), "abc")
        played.cart.at(ctx.key)["x"] = 1
        played.tags.at(ctx.key).add("y")

    def clear(ctx: Context) -> None:
        for store in (played.lines, played.cart, played.tags):
            store.at(ctx.key).clear()

    with ActorTestDriver(played.app) as driver:
        played.run(driver, fill)
        played.run(driver, clear)
        for store in (played.lines, played.cart, played.tags):
            last = {sent.key: sent.value for sent in driver.changelog(store)}
            assert last, store
            assert set(last.values()) == {None}, store


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_row_that_is_too_large_is_named(played: Played) -> None:
    def put(ctx: Context) -> Any:
        rows = played.lines.at(ctx.key)
        rows.append("x")
        with pytest.raises(
            RecordTooLargeError,
            match=r"changelog of store lines, row 1: a record of \d+ bytes for key 'ada' doesn't fit",
        ):
            rows.append("x" * 2_000_000)
        return len(rows), list(rows)

    with ActorTestDriver(played.app) as driver:
        assert played.run(driver, put) == (1, ["x"])


def test_rows_of_another_partitions_key_are_refused(played: Played) -> None:
    def reach(ctx: Context) -> None:
        with pytest.raises(ForeignKeyError, match=r"store lines: key '.*' lives in partition"):
            [played.lines.at(f"k{number}") for number in range(100)]

    with ActorTestDriver(played.app) as driver:
        played.run(driver, reach)


def test_with_concurrency_only_the_messages_own_key_is_reached() -> None:
    played = Played(concurrency=10)

    def reach(ctx: Context) -> Any:
        with pytest.raises(ForeignKeyError, match="store lines: key 'eve' isn't the message's own"):
            played.lines.at("eve")
        rows = played.cart.at(ctx.key)
        rows["x"] = 1
        return list(rows.items())

    with ActorTestDriver(played.app, partitions=1) as driver:
        assert played.run(driver, reach) == [("x", 1)]
        assert driver.get(played.cart, "ada") == {"x": 1}


def test_rows_are_of_no_use_after_their_message(played: Played) -> None:
    kept: list[ListRows[str]] = []

    def look(ctx: Context) -> None:
        if kept:
            with pytest.raises(StoreOutsideHandlerError, match="store lines was used outside a handler"):
                kept[0].append("late")
        kept.append(played.lines.at(ctx.key))

    with pytest.raises(StoreOutsideHandlerError):
        played.lines.at("ada")
    with ActorTestDriver(played.app) as driver:
        played.run(driver, look)
        played.run(driver, look)


def test_declarations_that_cant_be_meant() -> None:
    app = App("rows", broker="kafka://127.0.0.1:1")
    app.list_store("lines")
    with pytest.raises(ConfigurationError, match="store lines: the app has a store of that name"):
        app.set_store("lines")
    with pytest.raises(ConfigurationError, match="there is no argument 'valu_type', did you mean value_type"):
        app.map_store("cart", valu_type=int)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="store cart: ttl=3 has to be a timedelta"):
        app.map_store("cart", ttl=3)  # type: ignore[arg-type]


def test_a_store_of_another_kind_isnt_taken_over() -> None:
    def app_of(kind: str) -> App:
        app = App("rows", broker="kafka://127.0.0.1:1")
        store = getattr(app, kind)("things")

        @app.actor(app.topic("inputs", key_type=str, value_type=str), stores=[store], name="player")
        async def say(ctx: Context, line: str) -> None:
            """Do nothing."""

        return app

    with (
        ActorTestDriver(app_of("list_store")) as driver,
        pytest.raises(
            ConfigurationError,
            match="has rows of a list below each key, and this program would keep rows of a set below each key there",
        ),
    ):
        driver.restart(app_of("set_store"))


# --- classes, queries, publishing -------------------------------------------------------------------------------------


class Say(msgspec.Struct, tag="say"):
    """A line."""

    text: str


class Leave(msgspec.Struct, tag="leave"):
    """The end of a room."""


def room_app() -> tuple[App, Any, Any, type[Any]]:
    app = App("rows", broker="kafka://127.0.0.1:1")
    chat = app.topic("chat", key_type=str)
    lines = app.list_store("lines", value_type=str)

    @app.actor(chat, stores=[lines])
    class Room(Actor[int]):
        @receive
        async def say(self, message: Say) -> None:
            self.state += 1
            lines.at(self.key).append(message.text)

        @receive
        async def leave(self, _: Leave) -> None:
            self.forget()

        @query
        def newest(self, count: int) -> list[str]:
            rows: list[str] = lines.at(self.key)[-count:]
            return rows

        @query
        def clear(self) -> None:
            lines.at(self.key).clear()

        @query
        def other(self) -> int:
            return len(lines.at("eve"))

    return app, chat, lines, Room


def test_a_query_reads_the_rows_of_its_key_and_writes_none() -> None:
    app, _, _, room = room_app()
    with ActorTestDriver(app, partitions=1) as driver:
        for text in "abc":
            driver.tell(room, "ada", Say(text))
        assert driver.query(room, "newest", "ada", count=2) == ["b", "c"]
        assert driver.query(room, "newest", "nobody", count=2) == []
        with pytest.raises(ReadOnlyQueryError, match="a query only reads, and it deletes"):
            driver.query(room, "clear", "ada")
        with pytest.raises(ReadOnlyQueryError, match="it reached for another key than its own"):
            driver.query(room, "other", "ada")


def test_forgetting_a_key_removes_its_rows() -> None:
    app, _, lines, room = room_app()
    with ActorTestDriver(app) as driver:
        for key in ("ada", "eve"):
            driver.tell(room, key, Say("hello"))
        driver.tell(room, "ada", Leave())
        assert driver.items(lines) == {"eve": ["hello"]}
        assert driver.get(room, "ada") is None
        assert all(sent.value is None for sent in driver.changelog(lines) if sent.key[0] == "ada" and sent.offset > 1)


def test_rows_are_published_with_pairs_as_keys() -> None:
    app = App("rows", broker="kafka://127.0.0.1:1")
    inputs = app.topic("inputs", key_type=str, value_type=str)
    readers = app.topic("readers", key_type=tuple[str, int], value_type=str)
    lines = app.list_store("lines", value_type=str, publish=readers)

    @app.actor(inputs, stores=[lines], concurrency=5)
    async def say(ctx: Context, line: str) -> None:
        rows = lines.at(ctx.key)
        rows.append(line)
        if line == "end":
            rows.clear()

    with ActorTestDriver(app) as driver:
        for line in ("a", "b", "end"):
            driver.send(inputs, key="ada", value=line)
        sent = [(one.key, one.value) for one in driver.outputs(readers)]
        assert sorted(sent[:2]) == [(("ada", 0), "a"), (("ada", 1), "b")]
        assert {key for key, value in sent if value is None} >= {("ada", 0), ("ada", 1)}
        assert {key for key, _ in sent} <= {("ada", place) for place in range(3)}


def test_rows_of_a_later_version_arent_replaced() -> None:
    class Old(msgspec.Struct):
        count: int

    class New(msgspec.Struct):
        total: int

    def app_of(version: int) -> tuple[App, Any, Any]:
        app = App("rows", broker="kafka://127.0.0.1:1")
        inputs = app.topic("inputs", key_type=str, value_type=int)
        options: dict[str, Any] = {"value_type": Old, "version": 1}
        if version == 2:
            options = {"value_type": New, "version": 2, "upgrades": {1: lambda old: {"total": old["count"]}}}
        cart = app.map_store("cart", **options)

        @app.actor(inputs, stores=[cart], name="player", on_error="skip")
        async def put(ctx: Context, number: int) -> None:
            rows = cart.at(ctx.key)
            rows["x"] = options["value_type"](number)

        return app, inputs, cart

    app, inputs, cart = app_of(1)
    with ActorTestDriver(app) as driver:
        driver.send(inputs, key="ada", value=1)
        app, inputs, cart = app_of(2)
        driver.restart(app)
        assert driver.get(cart, "ada") == {"x": New(1)}
        driver.send(inputs, key="ada", value=2)
        app, inputs, cart = app_of(1)
        driver.restart(app)
        with pytest.raises(NewerVersionError, match=r"version 2"):
            driver.get(cart, "ada")


def test_many_rows_of_a_list_are_read_as_a_range_or_one_by_one(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(ctx: Context) -> Any:
        rows = played.lines.at(ctx.key)
        return rows[2:], rows[::-1], rows[1:-1:3], list(rows), list(reversed(rows)), rows[3:1]

    def write_and_look(ctx: Context) -> Any:
        played.lines.at(ctx.key)[0] = "0"
        return look(ctx)

    texts = [str(number) for number in range(30)]
    with ActorTestDriver(played.app) as driver:
        played.run(driver, lambda ctx: extend(played.lines.at(ctx.key), texts))
        wanted = (texts[2:], texts[::-1], texts[1:-1:3], texts, texts[::-1], [])
        assert played.run(driver, look) == wanted
        assert played.run(driver, write_and_look) == wanted
