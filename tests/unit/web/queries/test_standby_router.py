"""Where questions go: to the owner; with read=standby to this worker's copy, the owner, any copy; and no further."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from actors._core.group.members import TaskId
from actors.errors import BrokerUnavailableError, NotOwnerError, NotReadyError
from actors.ports import OwnerRecord
from actors.web.access.signature import HOP
from actors.web.access.tls import Hops
from actors.web.queries.routing import Directory, Router
from actors.web.queries.standby_reads import StandbyDirectory, StandbyRouter
from actors.web.workers import WorkerClient

SPEC = SimpleNamespace(name="count")


class World:
    """Three workers besides this one: `a` owns partitions 0 and 1, `b` and `c` keep copies of 1."""

    def __init__(self, *, here: tuple[int, ...] = (), copies: Mapping[TaskId, list[str]] | None = None) -> None:
        self.asked: list[tuple[str, tuple[int, ...]]] = []
        self.failures: dict[str, Exception] = {}
        self.here = here
        self.owners = ["a"]
        """The owner of both partitions at each look at the registry; the last one stays."""

        async def read_owners() -> list[OwnerRecord]:
            owner = self.owners.pop(0) if len(self.owners) > 1 else self.owners[0]
            return [OwnerRecord("count", number, 1, owner, f"http://{owner}", 0) for number in (0, 1)]

        async def read_copies() -> Mapping[TaskId, list[str]]:
            if "group" in self.failures:
                raise self.failures["group"]
            return copies if copies is not None else {TaskId("count", 1): ["http://me", "http://b", "http://c"]}

        self.copies = StandbyDirectory(read_copies)
        reader: Any = SimpleNamespace(has=lambda spec, partition: partition in self.here)
        owners, workers = Directory(read_owners, "me"), WorkerClient(Hops())
        self.router: Router = StandbyRouter(reader, owners, workers, self.copies, "http://me")
        self.committed = Router(reader, owners, workers)

    async def _answer(self, address: str, partitions: list[int]) -> str:
        self.asked.append((address, tuple(partitions)))
        if address in self.failures:
            raise self.failures[address]
        return f"{address} {partitions}"

    def ask(self, *partitions: int, hop: bool = False) -> list[str]:
        request: Any = SimpleNamespace(headers={HOP: "1"} if hop else {})
        return asyncio.run(
            self.router.scatter(
                request,
                SPEC,  # type: ignore[arg-type]
                partitions,
                here=lambda theirs: self._answer("here", theirs),
                there=self._answer,
            )
        )


def test_this_workers_own_copy_answers_and_the_owner_for_the_rest() -> None:
    world = World(here=(1,))
    assert sorted(world.ask(0, 1)) == ["here [1]", "http://a [0]"]
    assert len(world.asked) == 2


def test_a_copy_answers_when_the_owner_doesnt() -> None:
    world = World()
    for failure in (aiohttp.ClientConnectionError("dead"), NotOwnerError("gone"), NotReadyError("restoring")):
        world.failures, world.asked = {"http://a": failure}, []
        assert world.ask(1) == ["http://b [1]"]
        assert [address for address, _ in world.asked] == ["http://a", "http://b"]


def test_another_copy_is_asked_and_then_nobody() -> None:
    world = World()
    world.failures = dict.fromkeys(("http://a", "http://b"), aiohttp.ClientConnectionError("dead"))
    assert world.ask(1) == ["http://c [1]"]
    world.failures["http://c"] = NotReadyError("being built")
    with pytest.raises(NotReadyError, match=r"partitions \[1\]: neither the owner nor a standby answers"):
        world.ask(1)
    assert "http://me" not in [address for address, _ in world.asked]


def test_own_trouble_sends_the_question_on() -> None:
    world = World(here=(1,))
    world.failures = {"here": NotReadyError("restoring")}
    assert world.ask(1) == ["http://a [1]"]


def test_a_question_is_passed_on_once() -> None:
    world = World(here=(1,))
    assert world.ask(1, hop=True) == ["here [1]"]
    with pytest.raises(NotOwnerError):
        world.ask(0, 1, hop=True)
    world.failures = {"here": NotReadyError("restoring")}
    with pytest.raises(NotReadyError, match="restoring"):
        world.ask(1, hop=True)
    assert all(address == "here" for address, _ in world.asked)


def test_what_the_group_said_stands_while_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.web.queries.standby_reads.KNOWN_S", -1.0)
    world = World()
    world.failures = {"http://a": NotOwnerError("gone")}
    assert world.ask(1) == ["http://b [1]"]
    world.failures["group"] = BrokerUnavailableError("away")
    assert world.ask(1) == ["http://b [1]"]


def test_a_wrong_question_isnt_asked_again() -> None:
    world = World(here=(1,))
    world.failures = {"here": ValueError("no such key")}
    with pytest.raises(ValueError, match="no such key"):
        world.ask(1)
    assert len(world.asked) == 1


def test_a_committed_read_asks_the_owner_that_a_second_look_at_the_registry_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.web.queries.routing.REGISTRY_REST_S", 0.0)
    world = World(here=(1,))
    world.router, world.owners = world.committed, ["a", "b"]
    assert sorted(world.ask(0, 1)) == ["here [1]", "http://a [0]"]
    world.failures, world.asked = {"http://a": NotOwnerError("gone")}, []
    assert sorted(world.ask(0, 1)) == ["here [1]", "http://b [0]"]
    assert [address for address, _ in world.asked] == ["here", "http://a", "http://b"]


def test_a_committed_read_is_no_copys() -> None:
    world = World()
    world.router, world.failures = world.committed, {"http://a": aiohttp.ClientConnectionError("dead")}
    with pytest.raises(NotReadyError, match=r"partitions \[1\]: the owner doesn't answer: dead"):
        world.ask(1)
    world.failures = {"http://a": NotReadyError("restoring")}
    with pytest.raises(NotReadyError, match=r"^restoring$"):
        world.ask(1)
    with pytest.raises(NotOwnerError):
        world.ask(1, hop=True)
    assert {address for address, _ in world.asked} == {"http://a"}
