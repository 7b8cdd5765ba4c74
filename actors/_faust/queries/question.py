"""A question for one key, as it is answered where its partition is."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from actors._faust.queries import answers
from actors._faust.queries.coding import StoreCoding, json_bytes
from actors._faust.queries.problems import Problem
from actors._faust.queries.routing import Router
from actors.errors import NotReadyError
from actors.runtime.queries import Found, Held, StateReader
from actors.runtime.spec import ActorSpec


class Question(NamedTuple):
    """What is asked for, and who is asked first.

    Attributes:
        router: to the owners, or to copies too.
        is_raw: whether the value's bytes are asked for.
    """

    router: Router
    spec: ActorSpec
    coding: StoreCoding
    partition: int
    key: bytes
    is_raw: bool

    @property
    def reader(self) -> StateReader:
        """What this worker has."""
        return self.router.reader

    def held(self, since_s: float | None = None) -> Held | None:
        """See `StateReader.at_once`."""
        return self.router.reader.at_once(self.spec, self.coding.store.name, self.partition, since_s)

    async def waited(self) -> Held:
        """See `StateReader.hold_one`."""
        return await self.reader.hold_one(self.spec, self.coding.store.name, self.partition)

    def now_s(self) -> float:
        """Give the time of questions."""
        return self.reader.now_s()

    def commit_under_way(self) -> object | None:
        """See `StateReader.commit_under_way`."""
        return self.reader.commit_under_way(self.spec, self.partition)

    def is_late(self, since_s: float) -> bool:
        """See `StateReader.is_late`."""
        return self.reader.is_late(since_s)

    def too_late(self) -> NotReadyError:
        """See `StateReader.too_late`."""
        return self.reader.too_late(self.spec, self.partition)

    def content(self, held: Held, found: Found | None = None) -> bytes:
        """Give the answer as JSON; `found` is what was read of the key, if it was.

        Raises:
            Problem: the key isn't there, or its value can't be shown.
        """
        found, answer = answers.one_value(self.coding, held, self.key, is_raw=self.is_raw, found=found)
        if found.value is None:
            raise _absent(self.coding.store.name, answer)
        return json_bytes(answer)


def _absent(store: str, answer: dict[str, Any]) -> Problem:
    key = msgspec.json.decode(json_bytes(answer["key"]))
    more = {name: answer[name] for name in ("partition", "position", "read", "staleness_ms")}
    return Problem(404, "no-such-key", "The key isn't there", f"store {store} has no key {key!r}", key=key, **more)
