"""Topics of CloudEvents, in both modes, as the public specification has them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from actors import App, Context
from actors.errors import ConfigurationError, RecordError
from actors.formats import Avro, CloudEvent, CloudEvents, CodecError, Place, Raw
from actors.testing import ActorTestDriver, FakeRegistry
from tests.unit.app.test_hostile_bytes import RAW

AT = datetime(2026, 1, 2, 3, 4, 5, 600000, UTC)


class Order(msgspec.Struct):
    item: str
    count: int = 1


EVENT = CloudEvent(
    id="1",
    source="/shop",
    type="order.placed",
    subject="ada",
    time=AT,
    data=Order("hat"),
    extensions={"tenant": "acme"},
)
READ = CloudEvent(
    id="1",
    source="/shop",
    type="order.placed",
    subject="ada",
    time=AT,
    datacontenttype="application/json",
    data=Order("hat"),
    extensions={"tenant": "acme"},
)
# As the Python library of the CloudEvents project writes them.
BINARY = [
    ("ce_specversion", b"1.0"),
    ("ce_id", b"1"),
    ("ce_source", b"/shop"),
    ("ce_type", b"order.placed"),
    ("ce_subject", b"ada"),
    ("ce_time", b"2026-01-02T03:04:05.600000Z"),
    ("content-type", b"application/json"),
    ("ce_tenant", b"acme"),
]
STRUCTURED = {
    "specversion": "1.0",
    "id": "1",
    "source": "/shop",
    "type": "order.placed",
    "subject": "ada",
    "time": "2026-01-02T03:04:05.600000Z",
    "datacontenttype": "application/json",
    "tenant": "acme",
    "data": {"item": "hat", "count": 1},
}
STRUCTURED_HEADERS = [("content-type", b"application/cloudevents+json; charset=utf-8")]


def shop(format_: Any, registry: FakeRegistry | None = None, **options: Any) -> tuple[App, Any, Any, list]:
    """An app that sends the events on that it gets."""
    app, seen = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=registry, register_schemas=True), []
    events, out = (app.topic(name, key_type=str, format=format_) for name in ("events", "out"))

    @app.actor(events, **options)
    async def handle(ctx: Context, event: CloudEvent[Any]) -> None:
        seen.append(event)
        ctx.send(out, key=ctx.key, value=event, headers=ctx.headers)

    return app, events, out, seen


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_both_modes_are_read_and_one_is_written(mode: Any) -> None:
    app, events, out, seen = shop(CloudEvents(Order, mode=mode))
    with ActorTestDriver(app) as driver:
        driver.send(events, key=b"ada", value=b'{"item":"hat"}', headers=[*BINARY, ("other", b"x")], raw=True)
        driver.send(events, key=b"ada", value=json.dumps(STRUCTURED).encode(), headers=STRUCTURED_HEADERS, raw=True)
        driver.send(events, key=b"ada", value=json.dumps(STRUCTURED).encode(), raw=True)
        driver.send(events, key="ada", value=EVENT)
        sent = driver.outputs(out)
    assert seen == [READ] * 4
    assert [record.value for record in sent] == [READ] * 4
    for record in sent:
        own = [(name, value) for name, value in record.headers if name != "other"]
        if mode == "binary":
            assert sorted(own) == sorted(BINARY)
        else:
            assert own == [("content-type", b"application/cloudevents+json")]


def test_the_bytes_of_both_modes() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092")
    place = Place("events", "value")
    binary = CloudEvents(Order).bind(place, CloudEvent[Order], app)
    assert (binary.encode(EVENT), binary.headers and sorted(binary.headers(EVENT))[-1]) == (
        b'{"item":"hat","count":1}',
        ("content-type", b"application/json"),
    )
    structured = CloudEvents(Order, mode="structured").bind(place, CloudEvent[Order], app)
    assert json.loads(structured.encode(EVENT)) == STRUCTURED


def test_data_that_is_no_json_is_base64_or_text() -> None:
    app, events, out, seen = shop(CloudEvents(Raw(bytes), mode="structured", datacontenttype="image/png"))
    with ActorTestDriver(app) as driver:
        driver.send(events, key="ada", value=CloudEvent(id="1", source="/shop", type="t", data=b"\xff\0"))
        text = b'{"specversion":"1.0","id":"1","source":"/shop","type":"t","data":"\xc3\xa4","number":3,"flag":true}'
        driver.send(events, key=b"ada", value=text, raw=True)
        first = driver.outputs(out)[0]
    assert [event.data for event in seen] == [b"\xff\0", "ä".encode()]
    assert seen[1].extensions == {"number": "3", "flag": "true"}
    assert first.value.datacontenttype == "image/png"


def test_the_data_may_be_of_another_format() -> None:
    registry = FakeRegistry()
    app, events, out, _ = shop(CloudEvents(Avro(Order), datacontenttype="application/avro"), registry)
    with ActorTestDriver(app) as driver:
        driver.send(events, key="ada", value=CloudEvent(id="1", source="/shop", type="t", data=Order("hat", 2)))
        (sent,) = driver.outputs(out)
    assert sent.value.data == Order("hat", 2)
    assert dict(sent.headers)["content-type"] == b"application/avro"


def test_an_event_without_data_and_a_tombstone() -> None:
    app, events, out, seen = shop(CloudEvents(Order), tombstones=True)
    with ActorTestDriver(app) as driver:
        driver.send(events, key="ada", value=CloudEvent(id="1", source="/shop", type="t"))
        driver.send(events, key="ada", value=None)
        sent = driver.outputs(out)
    assert [event and event.data for event in seen] == [None, None]
    assert (sent[1].value, dict(sent[1].headers)) == (None, {})


WRONG = {
    "no JSON": (b"{", [], "truncated"),
    "no event": (b"[]", [], "Expected `object`"),
    "no version": (b'{"id":"1","source":"/","type":"t"}', [], "specversion is None"),
    "another version": (b"{}", [("ce_specversion", b"0.3"), ("ce_id", b"1")], "specversion is '0.3'"),
    "no id": (b'{"specversion":"1.0","source":"/","type":"t"}', [], "attribute id is missing"),
    "wrong data": (b'{"specversion":"1.0","id":"1","source":"/","type":"t","data":{"item":3}}', [], "item"),
    "two data": (
        b'{"specversion":"1.0","id":"1","source":"/","type":"t","data":1,"data_base64":"AA=="}',
        [],
        "has data and",
    ),
    "no time": (b'{"specversion":"1.0","id":"1","source":"/","type":"t","time":"noon"}', [], "RFC3339"),
    "an object": (b'{"specversion":"1.0","id":"1","source":"/","type":"t","more":{}}', [], "attribute is a text"),
    "deep": (b'{"specversion":"1.0","id":"1","source":"/","type":"t","data":' + b"[" * 100_000, [], "recursion"),
    "no text": (b"{}", [("ce_specversion", b"1.0"), ("ce_id", b"\xff")], "utf-8"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_event_goes_by_the_policy(name: str) -> None:
    value, headers, text = WRONG[name]
    app, events, _, seen = shop(CloudEvents(Order), on_error="skip")
    with ActorTestDriver(app) as driver:
        driver.send(events, key=b"ada", value=value, headers=headers, raw=True)
        driver.send(events, key="ada", value=EVENT)
    assert seen == [READ]
    app, events, _, _ = shop(CloudEvents(Order))
    with ActorTestDriver(app) as driver, pytest.raises(RecordError, match=rf"events(?s:.)*({text})"):
        driver.send(events, key=b"ada", value=value, headers=headers, raw=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": ""}, "its id is ''"),
        ({"source": None}, "its source is None"),
        ({"subject": ""}, "its subject is ''"),
        ({"time": datetime(2026, 1, 1)}, "no time zone"),
        ({"extensions": {"Tenant": "a"}}, "'Tenant' can't be"),
        ({"extensions": {"data": "a"}}, "'data' can't be"),
        ({"extensions": {"tenant": 3}}, "its tenant is 3"),
    ],
)
@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_an_event_that_readers_would_refuse_isnt_written(change: dict[str, Any], text: str, mode: Any) -> None:
    values = {"id": "1", "source": "/", "type": "t", **change}
    codec = CloudEvents(Order, mode=mode).bind(Place("events", "value"), CloudEvent[Order], None)
    with pytest.raises(CodecError, match=text):
        codec.encode(CloudEvent(**values))


def test_what_cant_be_is_refused_when_it_is_declared() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092")
    with pytest.raises(ConfigurationError, match="mode"):
        CloudEvents(Order, mode="batched")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a key is no event"):
        CloudEvents(Order).bind(Place("events", "key"), None, app)
    with pytest.raises(ConfigurationError, match="format= is of"):
        app.topic("events", value_type=Order, format=CloudEvents(Order))


def test_hostile_bytes_are_refused() -> None:
    codec = CloudEvents(Order).bind(Place("events", "value"), CloudEvent[Order], None)
    for raw in RAW:
        for headers in ((), [("ce_specversion", b"1.0"), ("ce_id", raw), ("ce_source", b"/"), ("ce_type", b"t")]):
            with pytest.raises(CodecError):
                codec.from_record(headers, raw or b"x")
