"""The program of the page of messages by HTTP, which is the example too."""

from __future__ import annotations

from starlette.testclient import TestClient

from actors.testing import ActorTestDriver
from examples import http_orders
from tests.documents import ROOT, block

TOKEN = "writer-0123456789-abcd"


def test_orders_are_placed() -> None:
    names = block("docs/how-to/http-commands.md", "Take commands by HTTP").run({})
    with ActorTestDriver(names["app"]) as driver:
        assert driver.ask("Order", "o-1", names["Place"](["hat"])) == 1


def test_orders_in_fastapi() -> None:
    change = {'"kafka://127.0.0.1:9092"))': f'"kafka://127.0.0.1:9092"), write_tokens=["{TOKEN}"])'}
    names = block("docs/how-to/http-commands.md", "Take commands by HTTP").run({"WRITE_TOKEN": TOKEN}, changes=change)
    for number in (1, 2):
        names = block("docs/how-to/http-commands.md", "The same in FastAPI", number).run(names)
    names["test_an_order_is_placed_once"]()


def test_the_example_is_short_and_takes_orders() -> None:
    from fastapi import FastAPI

    lines = (ROOT / "examples/http_orders.py").read_text().splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith(('"""', "#"))]
    assert len(code) <= 26
    api = FastAPI()
    api.include_router(http_orders.app.router(check_tokens=False))
    with ActorTestDriver(http_orders.app) as driver:
        reply = TestClient(api).post(
            "/actors/Order/o-1/place", json={"items": ["hat", "coat"]}, headers={"Prefer": "wait=5"}
        )
        assert (reply.status_code, reply.json()["value"]) == (200, 2)
        assert driver.get(http_orders.Order, "o-1") == ["hat", "coat"]
