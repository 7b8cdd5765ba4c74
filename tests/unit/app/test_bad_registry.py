"""Bad records in the registry of owners: each is named once and skipped, and hides nothing else."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from actors._kafka.admin.owners import MAX_NAMED, KafkaOwners, encode_owner
from actors.errors import BrokerUnavailableError
from actors.ports import LogBounds, OwnerRecord
from actors.testing.fakes.log import StoredRecord
from actors.web.dashboard.group import Report
from actors.web.dashboard.waiting import Waiting
from tests.browser.statuses import seen
from tests.unit.web.query_server import ELSEWHERE, Served, is_here, served

GOOD = OwnerRecord("talk", ELSEWHERE, 3, "other", "http://127.0.0.1:1", 5)
KEY = b"talk/%d" % ELSEWHERE
THERE = next(key for key in (f"there{number}" for number in range(60)) if not is_here(key))


def said(**changed: Any) -> bytes:
    fields = {"actor": "talk", "partition": ELSEWHERE, "epoch": 4, "worker": "w2", "address": "", "at_ms": 6}
    return json.dumps({**fields, **changed}).encode()


def said_of_input(**changed: Any) -> bytes:
    return said(inputs=[{"topic": "in", "topic_id": "", "input_offset": 1, **changed}])


BAD: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"owner",
    "not UTF-8": b'{"actor": "\xff"}',
    "a list": b"[]",
    "null": b"null",
    "nested": b"[" * 100_000,
    "nested inside": b'{"more": ' + b"[" * 100_000,
    "a null actor": said(actor=None),
    "a null partition": said(partition=None),
    "a null epoch": said(epoch=None),
    "a null address": said(address=None),
    "a number as text": said(partition=str(ELSEWHERE)),
    "a text as number": said(worker=7),
    "a fraction": said(epoch=1.5),
    "a negative partition": said(partition=-1),
    "another partition": said(partition=0),
    "another actor": said(actor="else"),
    "half of a pair": b'{"actor": "\\ud800", "partition": 3, "epoch": 1, "worker": "", "address": "", "at_ms": 1}',
    "a negative epoch": said(epoch=-1),
    "an epoch above 64 bits": said(epoch=10**30),
    "an epoch that stamps can't hold": said(epoch=2**64 - 1),
    "a time far away": said(at_ms=10**18),
    "a negative time": said(at_ms=-(10**18)),
    "a huge offset": said_of_input(input_offset=10**40),
    "a negative since": said_of_input(since=-1),
    "an input's id that is none": said_of_input(topic_id="i"),
    "a changelog's id that is none": said(changelog_ids={"words": "i"}),
    "changelogs that are none": said(changelog_ids=["words"]),
    "5,000 digits": b'{"epoch": ' + b"9" * 5_000 + b"}",
    "no fields": b"{}",
}
STORES: dict[str, bytes] = {
    "another store": json.dumps({"store": "other", "changelog": "c", "at_ms": 1}).encode(),
    "a null changelog": json.dumps({"store": "words", "changelog": None, "at_ms": 1}).encode(),
    "a huge version": json.dumps({"store": "words", "changelog": "c", "at_ms": 1, "version": 10**40}).encode(),
    "versions that are none": json.dumps(
        {"store": "words", "changelog": "c", "at_ms": 1, "former": {"x": []}}
    ).encode(),
}


class Records:
    """A log with one partition."""

    def __init__(self, *records: tuple[bytes | None, bytes | None]) -> None:
        self.records = [
            StoredRecord("owners", 0, offset, 0, key, value, (), None) for offset, (key, value) in enumerate(records)
        ]

    async def bounds(self, _: Any) -> LogBounds:
        return LogBounds(0, len(self.records))

    async def read(self, _: Any, start: int, end: int) -> Any:
        yield self.records[start:end], end


def registry(*records: tuple[bytes | None, bytes | None]) -> KafkaOwners:
    first = encode_owner("owners", GOOD)
    return KafkaOwners("owners", Records((first.key, first.value), *records))  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
async def test_what_a_record_said_before_stays_and_the_bad_one_is_named_once(
    raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    owners = registry((KEY, raw))
    for _ in range(3):
        assert await owners.all() == [GOOD]
    assert caplog.text.count("offset 1 isn't a record of the registry") == 1
    assert "offset 1" in owners.trouble
    assert "talk/3" in owners.trouble
    # A good one behind it ends the trouble.
    owners._logs.records.append(StoredRecord("owners", 0, 2, 0, KEY, said(), (), None))  # type: ignore[attr-defined]
    assert [record.epoch for record in await owners.all()] == [4]
    assert owners.trouble == ""


@pytest.mark.parametrize("raw", STORES.values(), ids=STORES)
async def test_a_stores_bad_record_is_no_store(raw: bytes) -> None:
    owners = registry((b"store:words", raw))
    assert await owners.stores() == {}
    assert "store:words" in owners.trouble


async def test_tombstones_and_records_without_a_key_are_none_of_what_is_known() -> None:
    owners = registry((b"nobody/9", None), (b"store:nobody", None), (None, b"{"), (b"\xff/1", None), (b"", b""))
    assert await owners.all() == [GOOD]
    owners = registry((KEY, None))
    assert await owners.all() == []


async def test_an_actor_that_nobody_knows_is_a_record_like_others() -> None:
    owners = registry((b"gone/0", said(actor="gone", partition=0)))
    assert [record.actor for record in await owners.all()] == ["gone", "talk"]
    assert owners.trouble == ""


async def test_so_many_are_named_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    owners = registry(*((b"a/%d" % number, b"{") for number in range(MAX_NAMED + 50)))
    await owners.all()
    assert len(caplog.records) == MAX_NAMED
    assert f"and {MAX_NAMED - 1} more" in owners.trouble


async def test_actors_and_dashboard_and_routing_answer_whatever_the_registry_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = [(KEY, raw) for raw in BAD.values()] + [(b"store:words", raw) for raw in STORES.values()]
    bad += [(b"talk/-1", said(partition=-1)), (b"else/0", said(actor="else", partition=0)), (None, b"x"), (b"x", None)]
    # Well-formed, with addresses that lead nowhere.
    for number, address in enumerate(("http://[", "http://127.0.0.1:99999", "nonsense")):
        bad.append((b"talk/%d" % number, said(partition=number, address=address, worker=f"w{number}")))
    owners = registry(*bad)

    async def own_report(_: Any) -> Report:
        found = seen("w", []).report
        assert found is not None
        return Report(found.status, Waiting())

    async def members() -> list[str]:
        raise BrokerUnavailableError("no broker here")

    monkeypatch.setattr("actors.web.dashboard.pages.Dashboard._own_report", own_report)
    async with served() as there, aiohttp.ClientSession() as session:
        assert isinstance(there, Served)
        there.queries.members = members
        there.queries.router.directory._read = owners.all
        there.queries.router.directory.trouble = lambda: owners.trouble
        there.app._actor_service.copies = []
        base = f"http://127.0.0.1:{there.app.conf.web_port}"
        for _ in range(2):
            async with session.get(f"{base}/actors") as reply:
                assert reply.status == 200
                partitions = {one["partition"]: one["worker"] for one in (await reply.json())["partitions"]}
                assert partitions[ELSEWHERE] == "other"
            async with session.get(f"{base}/dashboard", headers={"Accept": "text/html"}) as reply:
                page = await reply.text()
                assert reply.status == 200
                assert "of the registry" in page
            async with session.get(f"{base}/actors/words/{THERE}") as reply:
                # Its owner's address has nobody behind it.
                assert (reply.status, (await reply.json())["type"].rpartition(":")[2]) == (503, "not-ready")
            async with session.get(f"{base}/actors/words/ada") as reply:
                assert reply.status == 200


async def test_a_registry_that_was_re_created_is_read_from_its_start(caplog: pytest.LogCaptureFixture) -> None:
    logs = Records((KEY, said(epoch=4)), (KEY, said(epoch=5)))
    owners = KafkaOwners("owners", logs)
    assert (await owners.latest("talk", ELSEWHERE)).epoch == 5
    logs.records = Records((KEY, said(epoch=6))).records
    assert (await owners.latest("talk", ELSEWHERE)).epoch == 6
    assert "owners[0] ends at offset 1, and was read up to 2" in caplog.text
