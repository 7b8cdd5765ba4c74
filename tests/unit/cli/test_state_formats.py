"""`faust state` and `faust send` of stores and topics whose schemas are in a registry, which this process asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from actors._kafka.admin.control import TopicInfo
from actors.cli import cli
from actors.cli.run import send
from actors.declare.values.schemas import topic_codecs
from actors.formats import Avro
from actors.testing import ActorTestDriver, FakeRegistry
from tests.unit.cli import schemas_app
from tests.unit.cli.data_folder import write_data_folder
from tests.unit.formats.served import served


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A registry, and a data folder that another process wrote."""
    fake = FakeRegistry()
    with served(fake) as address:
        app = schemas_app.make(address)
        monkeypatch.setattr(schemas_app, "app", app)
        with ActorTestDriver(schemas_app.make(fake), partitions=1) as driver:
            driver.send("orders", key="ada", value=schemas_app.Order("hat", 3))
            write_data_folder(app, tmp_path, driver)
        yield address


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["-A", "tests.unit.cli.schemas_app", *words])


@pytest.mark.parametrize(("words", "text"), [(("get", "totals", "ada"), ""), (("scan", "totals"), "ada")])
def test_values_are_shown_decoded(address: str, words: tuple[str, ...], text: str) -> None:
    shown = run("state", *words, "--offline")
    assert shown.exit_code == 0, shown.output
    assert text in shown.output
    assert '{"count":3}' in shown.output.replace(" ", "")


SENT = {
    "orders": ('{"item": "hat", "count": 2}', schemas_app.Order("hat", 2)),
    "receipts": ('{"owner": "ada", "cents": "5"}', schemas_app.RECEIPT(owner="ada", cents=5)),
    "notes": ('{"text": "x"}', schemas_app.Note("x")),
}


@pytest.mark.parametrize("topic", SENT)
def test_json_is_sent_as_the_topic_has_it(address: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = SENT[topic]
    sent: list[Any] = []
    monkeypatch.setattr(send.send, "_existing", lambda _, name: TopicInfo(name, UUID(int=1), 4))
    monkeypatch.setattr(send.FaustSend, "__call__", lambda self, *_, **__: sent.append(self.kwargs))
    run("schemas", "register", *(f"{name}-value" for name in SENT))
    assert run("send", topic, text, "--key", "ada").exit_code == 0
    [codec] = [topic_codecs(one)[1] for one in schemas_app.app.declared_topics if one.get_topic_name() == topic]
    assert codec.decode(sent[0]["value"]) == value
    refused = run("send", topic, '{"item": 3, "text": 3, "owner": 3}', "--key", "ada")
    assert (refused.exit_code, "doesn't fit its type" in refused.output) == (2, True), refused.output


def test_what_goes_with_headers_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send.send, "_existing", lambda _, name: TopicInfo(name, UUID(int=1), 4))
    schemas_app.app.topic("headed", key_type=str, format=Avro(schemas_app.Order, ids="header"))
    done = run("send", "headed", '{"item": "hat"}', "--key", "ada")
    assert done.exit_code == 1
    assert "headers have a part of each value, and `send` writes no headers" in done.output
