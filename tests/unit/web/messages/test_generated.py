"""Requests that are made of the OpenAPI document of the FastAPI router."""

from __future__ import annotations

from fastapi import FastAPI
from schemathesis import openapi

from actors.testing import ActorTestDriver
from tests.generated import attack
from tests.unit.web.messages.bank import WRITE, make_app


def test_answers_are_as_the_document_says() -> None:
    app, api = make_app(), FastAPI()
    api.include_router(app.router())
    with ActorTestDriver(app):
        schema = openapi.from_asgi("/openapi.json", api)
        assert attack(schema, "deposit|withdraw|bytes|message", {"Authorization": f"Bearer {WRITE}"}) == 4
