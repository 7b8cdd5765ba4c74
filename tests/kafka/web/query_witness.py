"""Judges answers about many counters at once, whatever the question, while they are counted up.

While it asks, a `Witness` holds each answer against what was seen and sent by then. When all is over, `Changelog` holds
it against the log: what it says of a partition has to be what was committed before its position, all of it and no more.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp

from tests.kafka.helpers import DEADLINE_S
from tests.kafka.web.query_judge import Judge

ROUNDED_S = 0.002
"""Ages are told in whole milliseconds."""


@dataclass
class Sightings:
    """What was seen of something that only grows, and when."""

    times_s: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=lambda: [0])

    def note(self, number: int) -> None:
        """Note what is seen now."""
        if number > self.numbers[-1]:
            self.times_s.append(time.monotonic())
            self.numbers.append(number)

    def by(self, time_s: float) -> int:
        """Give the highest that was seen by then."""
        return self.numbers[bisect_right(self.times_s, time_s)]


@dataclass(frozen=True)
class Question:
    """A question: `key`, `many`, `page`, `ask` or `count`.

    Attributes:
        keys: whose numbers are asked for, where they are named.
        start, end: where a page begins, and where its range ends; both as keys, the end isn't in it.
        after: whether the page begins behind `start`, because the page before ended there.
    """

    kind: str
    path: str
    keys: tuple[str, ...] = ()
    read: str = "committed"
    start: str = ""
    end: str = "~"
    after: bool = False
    limit: int = 0
    cursor: str = ""

    def request(self, url: str) -> dict[str, Any]:
        """Give what goes to a worker, for aiohttp."""
        if self.kind == "many":
            return {"method": "POST", "url": url + self.path, "json": {"keys": self.keys, "read": self.read}}
        read = "" if self.read == "committed" else self.read
        said = {"read": read, "limit": str(self.limit or ""), "cursor": self.cursor}
        given = {name: text for name, text in said.items() if text}
        return {"method": "GET", "url": url + self.path, "params": given}


class Told(NamedTuple):
    """What an answer says of a key; 0 says that it isn't there."""

    key: str
    partition: int
    number: int


@dataclass(frozen=True)
class Answer:
    """What a worker said.

    Attributes:
        told: of each key, in the order of the answer.
        offsets: the next changelog offset of each partition that the answer is of.
        ages_s: how old it may be, by partition; of copies only.
        next: where the next page begins, None behind the last one.
    """

    question: Question
    url: str
    told: tuple[Told, ...]
    offsets: Mapping[int, int]
    ages_s: Mapping[int, float]
    next: str | None = None

    def __str__(self) -> str:
        told = ", ".join(f"{one.key}[{one.partition}]={one.number}" for one in self.told[:3])
        return f"{self.question.kind} {self.question.read} {self.question.path} from {self.url}: {told}"


def read_answer(question: Question, url: str, status: int, content: Any) -> Answer:
    """Read what a worker said; what isn't as it should be raises `ValueError`, `KeyError` or `TypeError`."""
    told: list[Told] = []
    if question.kind == "key":
        if status == 404 and not content["type"].endswith(":no-such-key"):
            raise ValueError("another 404")
        positions = {content["partition"]: content["position"]}
        number = content["value"] if status == 200 else 0
        told.append(Told(content["key"], content["partition"], number))
    elif status != 200:
        raise ValueError("no answer, and no 503")
    elif question.kind == "ask":
        positions = {content["partition"]: content["positions"]["counts"]}
        key, _, number = content["value"].partition(": ")
        told.append(Told(key, content["partition"], int(number)))
    else:
        positions = {int(partition): position for partition, position in content["positions"].items()}
        for item in content["results" if question.kind == "many" else "items"]:
            if item.get("found", True) != (item["value"] is not None):
                raise ValueError("found and value contradict each other")
            told.append(Told(item["key"], item["partition"], item["value"] or 0))
    if question.keys and [one.key for one in told] != list(question.keys):
        raise ValueError("of other keys")
    ages_ms = {partition: one["staleness_ms"] for partition, one in positions.items() if "staleness_ms" in one}
    expected = ("standby" if ages_ms else "committed", max(ages_ms.values(), default=0))
    if (content["read"], content["staleness_ms"]) != expected or (ages_ms and question.read == "committed"):
        raise ValueError("it says something else of its age than its positions, or is a copy's")
    return Answer(
        question,
        url,
        tuple(told),
        offsets={partition: one["changelog_offset"] for partition, one in positions.items()},
        ages_s={partition: age_ms / 1000 + ROUNDED_S for partition, age_ms in ages_ms.items()},
        next=content.get("next"),
    )


@dataclass
class Witness(Judge):
    """What was seen and answered when.

    Attributes:
        silent: addresses of workers that may be unreachable.
        answers: those that had nothing wrong when they came.
        kinds: how many there were, by kind and by who answered.
    """

    silent: set[str] = field(default_factory=set)
    answers: list[Answer] = field(default_factory=list)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    turn: int = 0
    _numbers: defaultdict[str, Sightings] = field(default_factory=lambda: defaultdict(Sightings))
    _offsets: defaultdict[int, Sightings] = field(default_factory=lambda: defaultdict(Sightings))

    def committed(self, key: str, number: int) -> None:
        """Note that somebody saw this number."""
        super().committed(key, number)
        self._numbers[key].note(number)

    async def put(self, session: aiohttp.ClientSession, url: str, question: Question) -> Answer | None:
        """Ask once; give the answer if there is one, right or wrong."""
        asked_s = time.monotonic()
        try:
            async with session.request(**question.request(url)) as reply:
                content = await reply.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError) as error:
            self.unreached += 1
            if url not in self.silent:
                self.wrong.append(f"{url} runs and can't be reached: {error!r}")
            return None
        if reply.status == 503 and int(reply.headers["Retry-After"]) >= 1 and content["detail"]:
            self.refused += 1
            self.reasons.add(content["detail"])
            return None
        if question.kind == "count":
            return self._counted(question, url, asked_s, content)
        try:
            answer = read_answer(question, url, reply.status, content)
        except (ValueError, KeyError, TypeError) as error:
            self.wrong.append(f"{question} from {url}: {error!r}: {reply.status} {str(content)[:500]}")
            return Answer(question, url, (), {}, {})
        return self.take(answer, asked_s)

    def take(self, answer: Answer, asked_s: float) -> Answer:
        """Hold an answer against what was seen before it was asked for, and what was sent by now."""
        wrong = [*self._too_old(answer, asked_s), *self._too_new(answer)]
        self.wrong += [f"{answer}: {what}" for what in wrong]
        if wrong:
            return answer
        self.right += 1
        self.kinds[answer.question.kind, "standby" if answer.ages_s else "committed"] += 1
        self.answers.append(answer)
        for one in answer.told:
            self.committed(one.key, one.number)
        for partition, offset in answer.offsets.items():
            # A copy's may lie behind the last transaction's marker, and the owner's before it: they are the same.
            if partition not in answer.ages_s:
                self._offsets[partition].note(offset)
        return answer

    def _too_old(self, answer: Answer, asked_s: float) -> Iterable[str]:
        def since_s(partition: int) -> float:
            return asked_s - answer.ages_s.get(partition, 0.0)

        for one in answer.told:
            seen = self._numbers[one.key].by(since_s(one.partition))
            if one.number < seen:
                yield f"{one.key} was {seen} before, and is {one.number}; ages {answer.ages_s}"
        for partition, offset in answer.offsets.items():
            seen = self._offsets[partition].by(since_s(partition))
            if offset < seen:
                yield f"partition {partition} was at {seen} before, and is at {offset}; ages {answer.ages_s}"

    def _too_new(self, answer: Answer) -> Iterable[str]:
        for one in answer.told:
            if one.number > self.sent.get(one.key, 0):
                yield f"{one.key} is {one.number}, and {self.sent.get(one.key, 0)} were sent"

    def _counted(self, question: Question, url: str, asked_s: float, content: Any) -> Answer:
        seen = sum(one.by(asked_s) > 0 for one in self._numbers.values())
        if content.get("exact") is True and seen <= content["count"] <= len(self.sent):
            self.right += 1
            self.kinds["count", "committed"] += 1
        else:
            self.wrong.append(f"{url} counts {content}: {seen} were seen before, {len(self.sent)} were sent")
        return Answer(question, url, (), {}, {})

    async def put_until_answered(self, session: aiohttp.ClientSession, urls: list[str], question: Question) -> Answer:
        """Ask one worker after the other until one has an answer."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            for _ in range(len(urls)):
                self.turn += 1
                answer = await self.put(session, urls[self.turn % len(urls)], question)
                if answer is not None:
                    return answer
            assert time.monotonic() < deadline_s, f"no answer to {question}: {self.reasons}"
            await asyncio.sleep(0.1)


class Changelog:
    """What was committed.

    Args:
        records: key, partition, offset and number of each committed record.
    """

    def __init__(self, records: Iterable[tuple[str, int, int, int]]) -> None:
        self._partitions: dict[str, int] = {}
        self._offsets: defaultdict[str, list[int]] = defaultdict(list)
        self._numbers: defaultdict[str, list[int]] = defaultdict(lambda: [0])
        for key, partition, offset, number in records:
            if self._partitions.setdefault(key, partition) != partition:
                raise ValueError(f"{key} is in partitions {partition} and {self._partitions[key]}")
            self._offsets[key].append(offset)
            self._numbers[key].append(number)
        self._keys = sorted(self._partitions)

    def contradictions(self, answer: Answer) -> Iterable[str]:
        """Give what an answer says that the log doesn't."""
        for one in answer.told:
            partition = self._partitions.get(one.key, one.partition)
            number = self._number(one.key, answer)
            if (one.partition, one.number) != (partition, number):
                yield f"{answer}: {one} was {number} in partition {partition} at {answer.offsets.get(partition)}"
        if answer.question.kind == "page":
            yield from self._gaps(answer)

    def _number(self, key: str, answer: Answer) -> int:
        """Give a key's number at an answer's position; 0 if there is none, -1 if the answer has no position for it."""
        if key not in self._partitions:
            return 0
        offset = answer.offsets.get(self._partitions[key])
        return -1 if offset is None else self._numbers[key][bisect_left(self._offsets[key], offset)]

    def _gaps(self, answer: Answer) -> Iterable[str]:
        asked, keys = answer.question, [one.key for one in answer.told]
        begin = (bisect_right if asked.after else bisect_left)(self._keys, asked.start)
        there = [key for key in self._keys[begin : bisect_left(self._keys, asked.end)] if self._number(key, answer)]
        if answer.next is not None:
            there = there[: asked.limit]
            if len(keys) != asked.limit:
                yield f"{answer}: {len(keys)} keys of {asked.limit}, and there are more"
        if keys != there:
            lacks, has = sorted(set(there) - set(keys))[:5], sorted(set(keys) - set(there))[:5]
            yield f"{answer}: {len(keys)} keys, not {len(there)}: lacks {lacks}, has {has}, or is out of order"


def changelog_of(records: Iterable[Any]) -> Changelog:
    """Read the records of a changelog, as a consumer gives them, of all partitions in the order of their offsets."""
    return Changelog((one.key.decode(), one.partition, one.offset, json.loads(one.value)) for one in records)
