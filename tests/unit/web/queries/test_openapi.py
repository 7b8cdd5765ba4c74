"""What the description of the queries says of each path."""

from __future__ import annotations

from typing import Any

import pytest

from actors import App, Context, Tumbling
from actors.web.queries.openapi import description


@pytest.fixture(scope="module")
def said() -> Any:
    app = App("x", broker="kafka://127.0.0.1:1")
    words = app.store("words", key_type=str, value_type=str)

    @app.actor(app.topic("in", key_type=str, value_type=str), stores=[words])
    async def talk(ctx: Context, word: str) -> None: ...

    @app.query(talk)
    def has(ctx: Context, word: str) -> bool:
        return ctx.key == word

    @app.query(talk)
    def like(ctx: Context, read: bool, word: str) -> bool:
        return read or ctx.key == word

    return description(app)


ASK = "/actors/talk/_ask/has/{key}"


def test_who_answers_can_be_chosen_where_a_copy_may(said: Any) -> None:
    choosing = {
        (path, method)
        for path, of_path in said["paths"].items()
        for method, operation in of_path.items()
        if "read" in [parameter["name"] for parameter in operation["parameters"]]
    }
    asks = {(path, method) for path in (ASK, ASK.replace("has", "like")) for method in ("get", "post")}
    assert choosing == {("/actors/{store}", "get"), ("/actors/{store}/{key}", "get")} | asks


def test_no_parameter_is_there_twice(said: Any) -> None:
    for of_path in said["paths"].values():
        for operation in of_path.values():
            names = [parameter["name"] for parameter in operation["parameters"]]
            assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("path", "method", "more"),
    [
        ("/actors", "get", set()),
        ("/actors/{store}/{key}", "get", {"421"}),
        ("/actors/{store}", "get", {"421"}),
        ("/actors/{store}/_count", "get", {"421"}),
        ("/actors/{store}/_many", "post", {"413", "421"}),
        (ASK, "get", {"421", "422"}),
        (ASK, "post", {"413", "421", "422"}),
    ],
)
def test_refusals_are_described_where_they_can_come(said: Any, path: str, method: str, more: set[str]) -> None:
    responses = said["paths"][path][method]["responses"]
    assert responses.keys() == {"200", "400", "401", "403", "404", "503"} | more
    assert said["components"]["responses"].keys() >= responses.keys() - {"200"}


def test_windows_have_a_path_for_each_store() -> None:
    app = App("x", broker="kafka://127.0.0.1:1")
    minutes = app.window_store("minutes", Tumbling(minutes=1))

    @app.actor(app.topic("in", key_type=str), stores=[minutes])
    async def count(ctx: Context, value: Any) -> None: ...

    found = description(app)
    asked = found["paths"]["/actors/minutes/{key}"]["get"]
    assert [one["name"] for one in asked["parameters"]][:3] == ["key", "from", "to"]
    answer = asked["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    assert answer.rpartition("/")[2] in found["components"]["schemas"]
    # A range shows all rows, as of other stores.
    (store, *_) = found["paths"]["/actors/{store}"]["get"]["parameters"]
    assert store["schema"] == {"type": "string", "enum": ["minutes"]}


def test_the_rows_of_a_key_are_described() -> None:
    app = App("x", broker="kafka://127.0.0.1:1")
    lines = app.list_store("lines", value_type=str)

    @app.actor(app.topic("in", key_type=str, value_type=str), stores=[lines])
    async def say(ctx: Context, line: str) -> None: ...

    [operation] = description(app)["paths"]["/actors/lines/{key}"].values()
    names = {parameter["name"] for parameter in operation["parameters"]}
    assert names >= {"key", "from", "to", "prefix", "reverse", "limit", "cursor"}
    assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/RowsAnswer")
