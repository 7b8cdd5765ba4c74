"""What a member of the group answers disturbs nobody who looks at the dashboard."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from actors.web.dashboard import group as group_module
from actors.web.dashboard.group import ClusterStatus, Group, Report
from tests.browser import statuses
from tests.unit.core.test_outside import HOSTILE
from tests.unit.web.dashboard.test_dashboard import Cluster, page, replace_address, seen

ADDRESS = "http://10.0.0.66:6066"


class Hostile(Cluster):
    """A group with one member beside this worker, which answers what it likes."""

    def __init__(self, raw: bytes, address: str = ADDRESS) -> None:
        super().__init__()
        self.raw, self.in_group = raw, [address]
        self.actors = {name: cast("Any", _Spec()) for name in ("take_order", "ship")}

    async def fetch(
        self, method: str, address: str, path: str, *, partitions: Any, answer_s: float, limits: Any
    ) -> bytes:
        self.asked.append(address)
        return self.raw


class _Spec:
    partition_count = 3


@pytest.fixture(autouse=True)
def members_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "MEMBERS_S", 0.0)


async def look(cluster: Hostile) -> ClusterStatus:
    """Look twice, since rates are of two answers, and draw the pages."""
    own = seen("here", []).report
    assert own is not None

    async def report() -> Report:
        return replace_address(cast("Report", own), "http://here:80")

    group = Group("shop", report)
    for _ in range(2):
        found = await group._look(cast("Any", cluster))
    assert "here" in page(found)
    page(found, "take_order")
    return found


def honest() -> Any:
    """What a worker says, with one of everything."""
    told = next(who.report for who in statuses.busy().workers if who.report is not None and who.report.waiting.lines)
    said = json.loads(msgspec.json.encode(told))
    copied = next(
        who.report for who in statuses.copied().workers if who.report is not None and who.report.status.copies
    )
    said["status"]["copies"] = json.loads(msgspec.json.encode(copied))["status"]["copies"]
    said["status"]["tasks"].sort(key=lambda task: not task["restoring"])
    said["status"]["address"] = ADDRESS
    return _first_of_each(said)


def _first_of_each(said: Any) -> Any:
    if isinstance(said, dict):
        return {name: _first_of_each(part) for name, part in said.items()}
    return [_first_of_each(part) for part in said[:1]] if isinstance(said, list) else said


def _places(said: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    for name, part in said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list) else ():
        yield from _places(part, (*place, name))


def _with(said: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    found = copy.copy(said)
    found[place[0]] = _with(said[place[0]], place[1:], value)
    return found


VALUES: list[Any] = [None, -(2**63), 2**64 - 1, 10**400, 1e308, "\x00\u2028<b>", []]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:20])
async def test_a_value_that_isnt_what_it_should_be_disturbs_nobody(value: Any) -> None:
    said = honest()
    for place in _places(said):
        raw = json.dumps(_with(said, place, value)).encode()
        assert {who.worker for who in (await look(Hostile(raw))).workers} >= {"here"}, place


@pytest.mark.parametrize(
    "raw",
    [
        *HOSTILE.values(),
        b"",
        b"null",
        b"NaN",
        b"\xff" * 100,
        b"[" * 1_000_000,
        b'{"status": ' * 3_000,
        b"x" * 1_000_000,
    ],
    ids=lambda raw: f"{raw[:10]!r} {len(raw)}",
)
async def test_an_answer_that_cant_be_read_disturbs_nobody(raw: bytes) -> None:
    assert [who.worker for who in (await look(Hostile(raw))).workers] == ["here"]


async def test_what_is_there_twice_is_counted_and_nobody_is_disturbed() -> None:
    said = honest()
    for name in ("tasks", "copies"):
        said["status"][name] *= 5
    for name in ("tasks", "lines", "locks"):
        said["waiting"][name] *= 5
    said["status"]["tasks"][0]["stores"] *= 3
    assert len((await look(Hostile(json.dumps(said).encode()))).workers) == 2


@pytest.mark.parametrize("address", ["http://10.0.0.9:99999", "http://[", "http://a/path", "javascript:alert(1)"])
async def test_an_answer_with_another_address_than_an_origin_isnt_taken(address: str) -> None:
    said = honest()
    said["status"]["address"] = address
    found = await look(Hostile(json.dumps(said).encode()))
    assert [who.worker for who in found.workers] == ["here"]
    assert address not in page(found)


async def test_a_member_that_claims_this_workers_name_doesnt_take_its_place() -> None:
    said = honest()
    said["status"]["worker"] = "here"
    (found,) = (await look(Hostile(json.dumps(said).encode()))).workers
    assert (found.worker, found.address) == ("here", "http://here:80")


async def test_members_that_cant_be_understood_are_named_on_the_page() -> None:
    cluster = Hostile(json.dumps(honest()).encode())
    cluster.strangers = [f"member 'm{number}<b>' of the group: it gets no partitions" for number in range(12)]
    text = page(await look(cluster))
    assert "Member &#39;m0&lt;b&gt;&#39; of the group: it gets no partitions" in text
    assert "2 more members can&#39;t be understood" in text
    assert "m10" not in text
