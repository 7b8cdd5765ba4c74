"""Requests: each question is handled once and answered once, however often the message that asks is handled."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

from actors._core.values.ids import digest_of
from actors.errors import AskRejectedError, AskTimeoutError, BrokerUnavailableError, Rejected
from actors.ports import ActorReply, ActorRequest, Requests
from actors.runtime.handlers.actor import Actor, handler_of, receive
from actors.runtime.message.context import Context, Recipient
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.message.store import Store
from actors.runtime.requests.replies import Replies, ReplyTypes
from actors.runtime.requests.requests import ASK, CONTENT_BYTES, CONTENT_MARK, REUSED, Refusal
from actors.runtime.requests.requests import REJECTED as REFUSED
from tests.sim import app
from tests.sim.fakes.requests import SimRequests
from tests.sim.part import Handler, Host, Operation, Part, Stores, raw_store

ACCOUNTS, ANSWERS = "accounts", "answers"
TOPIC, REPLIES = "asks", "replies"
ACCOUNT_KEYS = ("a0", "a1", "a2")
"""Who is asked; they ask nobody and get no other inputs, so that no two messages wait for each other."""
REJECTED, UNKNOWN = "rejected", "unknown"
TIMEOUTS_S = (0.5, 2.0)
ATTEMPTS = 1_000


@dataclass(frozen=True, slots=True)
class Book:
    """A question: add to the account, and answer with its balance and the number of the attempt, as one number."""

    entry: str


@dataclass
class Ledger:
    """The state of an account."""

    bookings: int = 0


@dataclass(frozen=True, slots=True)
class Booked:
    """A booking that was committed: the question's id, the account, and the answer."""

    id: str
    account: bytes
    answer: int

    @property
    def balance(self) -> int:
        """How many bookings the account has with this one."""
        return self.answer // ATTEMPTS


class Account(Actor[Ledger]):
    """An actor that is asked; `part` is set in a class of its own for each run."""

    part: ClassVar[AsksPart]

    @receive
    async def book(self, message: Book) -> int:
        if message.entry.endswith("!"):
            raise Rejected(message.entry)
        self.state.bookings += 1
        id = dict(self.ctx.headers)[ASK].decode()
        # Two attempts never have the same answer: that of one which isn't committed is nobody's.
        answer = self.state.bookings * ATTEMPTS + self.part.attempt("booking", id)
        self.ctx.send(TOPIC, key=self.key, value=f"booked {message.entry} {id} {answer}")
        return answer


class _Carrier(SimRequests):
    """Gives half of the questions ids that are of one content, and sends some of these ids with another content too."""

    def __init__(self, *args: Any, reused: list[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._reused = reused

    async def ask(self, question: ActorRequest, timeout_s: float) -> ActorReply:
        number = int(digest_of(question.id, size=2), 16)
        if number % 2:
            return await super().ask(question, timeout_s)
        content = digest_of(question.key, question.value, size=CONTENT_BYTES // 2)
        reply = await super().ask(replace(question, id=f"{question.id}{CONTENT_MARK}{content}"), timeout_s)
        if number % 10 == 0:
            with contextlib.suppress(TimeoutError, BrokerUnavailableError):
                other = replace(question, id=f"{question.id}{CONTENT_MARK}{content[::-1]}")
                again = await super().ask(other, timeout_s)
                if again.status != REFUSED or Refusal.read(again.value or b"").type != REUSED:
                    self._reused.append(question.id)
        return reply


class AsksPart(Part):
    """Inputs ask accounts, one after the other or all at once, each behind some I/O of its own."""

    name = "asks"
    stores = (ACCOUNTS, ANSWERS)
    topics = (TOPIC, REPLIES)
    counts = (6, 12, 24)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._numbers = 0
        self._most: Counter[str] = Counter()
        """How often what the inputs ask for is asked."""
        self._once: set[tuple[str, str]] = set()
        """What other parts' messages asked, and their ids; one that is replaced may never be committed."""
        self._reused: list[str] = []
        """Ids that were taken for a second content."""
        self._timeout = timedelta(seconds=self.random.choice(TIMEOUTS_S))
        codec = SimpleNamespace(encode=lambda answer: b"%d" % answer, decode=int)
        self._types = ReplyTypes(app.ACTOR, {str: Account.book}, lambda _: codec)

    def make_input(self, key: str) -> str:
        self._numbers += 1
        way = self.random.choice(("gather", "gather", "row"))
        entries = [f"{self._numbers}.{self.random.randrange(2)}" for _ in range(self.random.choice((1, 2, 2, 3)))]
        if self.random.random() < 0.2:
            entries[-1] += "!"
        self._most.update(entries)
        asked = "+".join(f"{self.random.choice(ACCOUNT_KEYS)}/{entry}" for entry in entries)
        return f"ask:{self._numbers},{way},{asked}"

    # --- what it brings --------------------------------------------------------------------------------------------

    def make_stores(self, host: Host) -> Stores:
        accounts: Store[Any, Any] = Store(
            ACCOUNTS,
            encode_key=str.encode,
            decode_key=bytes.decode,
            encode_value=lambda ledger: json.dumps(ledger.bookings).encode(),
            decode_value=lambda raw: Ledger(json.loads(raw)),
        )
        return accounts, raw_store(ANSWERS)

    def declared(self, host: Host, stores: Stores) -> dict[str, Any]:
        return {"answers": self._answers(stores)}

    def around(self, handler: Handler, stores: Stores) -> Handler:
        return self._answers(stores).around(handler)

    def _answers(self, stores: Stores) -> Replies:
        return Replies(stores[1], self._types, REPLIES)

    def resolve(self, topic: Any) -> OutputTopic:
        """Give the topic of a `ctx.send`, or the input of the actor that is asked."""
        partitions = self.world.partitions
        if isinstance(topic, OutputTopic):
            return topic
        if not isinstance(topic, Recipient):
            return OutputTopic(topic, str.encode, str.encode, 1_000_000, partition_count=partitions)
        return OutputTopic(
            app.INPUT,
            str.encode,
            lambda question: f"book:{question.entry}".encode(),
            1_000_000,
            partition_count=partitions,
            actor=app.ACTOR,
            answer_decoder=lambda _: int,
        )

    def carrier(self) -> Requests:
        """Give what carries the questions of a process."""
        return _Carrier(self.world.cluster, self.world.network, topic=REPLIES, reused=self._reused)

    # --- the handler -----------------------------------------------------------------------------------------------

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        async def ask(ctx: Context, argument: str) -> None:
            number, way, asked = argument.split(",")
            questions = [tuple(one.split("/")) for one in asked.split("+")]
            attempt = self._random_of_attempt(ctx)
            waits_s = [attempt.choice((0.0, 0.0, 0.02, 0.3)) for _ in questions]
            asking = (self._ask(ctx, *one, wait_s) for one, wait_s in zip(questions, waits_s, strict=True))
            answers = await asyncio.gather(*asking) if way == "gather" else [await one for one in asking]
            if int(number) % 5 == 0 and self.is_first_attempt(ctx.partition, ctx.offset):
                self.fail_with_garbage(ctx)
            for place, ((account, entry), answer) in enumerate(zip(questions, answers, strict=True)):
                self._say(ctx, f"{ctx.message_id}#{place}", account, entry, answer)

        handle = handler_of(type("Account", (Account,), {"part": self}), stores[0])

        async def book(ctx: Context, entry: str) -> Any:
            return await handle(ctx, Book(entry))

        return {"ask": ask, "book": book}

    async def ask_once(self, ctx: Context, asker: str, entry: str) -> None:
        """Ask for another part's message: `asker` is another one each time, `entry` may be the same."""
        self._once.add((entry, ctx.message_id))
        account = ACCOUNT_KEYS[len(entry) % len(ACCOUNT_KEYS)]
        self._say(ctx, asker, account, entry, await self._ask(ctx, account, entry, 0.0))

    def _random_of_attempt(self, ctx: Context) -> Random:
        return Random(f"{self._seed} {ctx.message_id} {self.attempt('ask', ctx.message_id)}")

    async def _ask(self, ctx: Context, account: str, entry: str, wait_s: float) -> str:
        await asyncio.sleep(wait_s)
        try:
            return str(await ctx.ask(app.ACTOR, account, Book(entry), timeout=self._timeout))
        except AskRejectedError:
            return REJECTED
        except AskTimeoutError:
            return UNKNOWN

    @staticmethod
    def _say(ctx: Context, asker: str, account: str, entry: str, answer: str) -> None:
        ctx.send(TOPIC, key=ctx.key, value=f"asked {entry} {asker} {account} {answer}")

    # --- the oracle ------------------------------------------------------------------------------------------------

    def check(self) -> Iterator[str]:
        booked, answers = self._said()
        yield from self._check_accounts(booked)
        yield from (f"asks: question {id} was answered to another content too" for id in self._reused)
        for entry, most in self._most.items():
            if len(booked[entry]) > most:
                yield f"asks: {entry} was asked {most} times, and is booked more often: {booked[entry]}"
        for entry, asker in self._once:
            found = [booking for booking in booked[entry] if booking.id.startswith(f"{asker}-")]
            if len(found) > 1:
                yield f"asks: {asker} asked {entry} once, and it is booked more often: {found}"
        for entry, given in answers.items():
            yield from self._check_answers(entry, given, booked[entry])

    def _said(self) -> tuple[defaultdict[str, list[Booked]], defaultdict[str, dict[str, tuple[bytes, str]]]]:
        """Give by entry what was booked, and by entry and asker what was answered."""
        booked: defaultdict[str, list[Booked]] = defaultdict(list)
        answers: defaultdict[str, dict[str, tuple[bytes, str]]] = defaultdict(dict)
        for partition in self.partitions:
            for key, (what, entry, id, *rest) in self.events(TOPIC, partition):
                if what == "booked":
                    self.count("booked")
                    booked[entry].append(Booked(id, key, int(rest[0])))
                    continue
                account, answer = rest
                self.count(f"ask {answer if answer in (REJECTED, UNKNOWN) else 'answered'}")
                answers[entry][id] = account.encode(), answer
        return booked, answers

    def _check_answers(
        self, entry: str, given: Mapping[str, tuple[bytes, str]], booked: Iterable[Booked]
    ) -> Iterator[str]:
        """Compare the answers that came with the bookings: each is of another one."""
        left = Counter((booking.account, str(booking.answer)) for booking in booked)
        for asker, (account, answer) in given.items():
            if answer == UNKNOWN:
                continue
            if entry.endswith("!") != (answer == REJECTED):
                yield f"asks: {asker} asked {entry} of {account!r}, and the answer is {answer}"
            elif answer == REJECTED:
                continue
            elif not left[account, answer]:
                yield f"asks: {asker} has the answer {answer} of {account!r} to {entry}, which is booked as {booked}"
            else:
                left[account, answer] -= 1

    def _check_accounts(self, booked: Mapping[str, list[Booked]]) -> Iterator[str]:
        """Fold the bookings of each account: what the class actor keeps is their number."""
        balances: defaultdict[bytes, list[int]] = defaultdict(list)
        for bookings in booked.values():
            for booking in bookings:
                balances[booking.account].append(booking.balance)
        kept = {key: int(raw) for partition in self.partitions for key, raw in self._accounts(partition)}
        for account in sorted(balances.keys() | kept.keys()):
            found = sorted(balances[account])
            if found != list(range(1, kept.get(account, 0) + 1)):
                yield f"asks: account {account!r} has {kept.get(account)}, and its bookings were {found}"

    def _accounts(self, partition: int) -> Iterable[tuple[bytes, bytes]]:
        return self.folded(ACCOUNTS, partition).items()
