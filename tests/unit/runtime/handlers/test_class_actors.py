"""Class actors on the test driver: dispatch by type, state per key, versions of states."""

from dataclasses import dataclass
from types import new_class
from typing import Any, Generic, Literal, NewType, TypedDict, TypeVar

import faust
import msgspec
import pytest

from actors import (
    Actor,
    App,
    ConfigurationError,
    Context,
    HandlerFailedError,
    NewerProgramError,
    UndecodableRecordError,
    UsageError,
    query,
    receive,
)
from actors.testing import ActorTestDriver


class Deposit(msgspec.Struct, tag="deposit"):
    amount: int


class Withdraw(msgspec.Struct, tag="withdraw"):
    amount: int


class Balance(msgspec.Struct):
    amount: int = 0


class Refused(msgspec.Struct):
    missing: int


def an_app():
    return App("bank", broker="kafka://127.0.0.1:1")


def bank():
    app = an_app()
    commands = app.topic("commands", key_type=str)
    refusals = app.topic("refusals", key_type=str, value_type=Refused)

    @app.actor(commands)
    class Account(Actor[Balance]):
        @receive
        async def deposit(self, message: Deposit) -> None:
            self.state.amount += message.amount

        @receive(Withdraw)
        def withdraw(self, message):
            self.state.amount -= message.amount
            if self.state.amount < 0:
                self.ctx.send(refusals, key=self.key, value=Refused(-self.state.amount))
                raise ValueError("no money")

    return app, commands, refusals, Account


def test_each_type_of_message_has_its_handler_and_each_key_its_state():
    app, _, _, account = bank()
    with ActorTestDriver(app, partitions=3) as driver:
        for name, amount in (("ada", 5), ("bob", 7), ("ada", 10)):
            driver.tell(account, name, Deposit(amount))
        driver.tell("Account", "ada", Withdraw(3))
        assert driver.items(account) == {"ada": Balance(12), "bob": Balance(7)}
        assert driver.get(account, "nobody") is None


def test_a_handler_that_raises_leaves_no_change_of_the_state_and_no_output():
    app, _, refusals, account = bank()
    with ActorTestDriver(app, partitions=1) as driver:
        driver.tell(account, "ada", Deposit(5))
        with pytest.raises(HandlerFailedError, match=r"commands\[0\] offset 1 key 'ada'.*ValueError: no money"):
            driver.tell(account, "ada", Withdraw(8))
        assert driver.get(account, "ada") == Balance(5)
        assert driver.outputs(refusals) == []


def test_state_survives_a_kill_with_and_without_the_disk():
    app, _, _, account = bank()
    with ActorTestDriver(app) as driver:
        driver.tell(account, "ada", Deposit(5))
        driver.crash()
        driver.tell(account, "ada", Deposit(6))
        driver.crash(keep_disk=False)
        assert driver.get(account, "ada") == Balance(11)
        driver.tell(account, "ada", Deposit(1))
        assert driver.get(account, "ada") == Balance(12)


def test_a_message_of_an_unknown_type_is_a_clear_error():
    app, commands, _, _ = bank()
    with ActorTestDriver(app, partitions=1) as driver, pytest.raises(NewerProgramError) as caught:
        driver.send(commands, key="ada", value={"type": "transfer", "amount": 1})
    text = str(caught.value)
    assert "'transfer'" in text
    assert "Account takes Deposit, Withdraw" in text
    assert "commands[0] offset 0 key 'ada'" in text


def test_an_unchanged_state_is_not_written_again():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=int)
    seen = []

    @app.actor(topic)
    class Looks(Actor[Balance]):
        @receive
        def look(self, message: int) -> None:
            seen.append(self.state.amount)
            if message:
                self.state = Balance(message)

    with ActorTestDriver(app) as driver:
        for number in (0, 0, 4, 0, 4):
            driver.send(topic, key="a", value=number)
        written = driver.changelog(Looks)
    assert seen == [0, 0, 0, 4, 4]
    assert [one.value for one in written] == [Balance(4)]


def test_forget_removes_the_state():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic)
    class Counts(Actor[Balance]):
        @receive
        async def on(self, message: str) -> None:
            if message == "forget":
                self.state.amount += 100
                self.forget()
                return
            self.state.amount += 1

    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value="one")
        driver.send(topic, key="a", value="forget")
        assert driver.items(Counts) == {}
        driver.crash(keep_disk=False)
        driver.send(topic, key="a", value="one")
        assert driver.items(Counts) == {"a": Balance(1)}


def test_a_look_after_forget_brings_nothing_back():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=int)
    seen = []

    @app.actor(topic)
    class Forgets(Actor[Balance]):
        @receive
        def on(self, message: int) -> None:
            if message:
                self.state.amount += message
                return
            self.forget()
            seen.append(self.state.amount)

    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value=1)
        driver.send(topic, key="a", value=0)
        assert (seen, driver.items(Forgets)) == ([0], {})


@dataclass
class Opened:
    owner: str


@dataclass
class Closed:
    reason: str = ""


class Renamed(faust.Record):
    owner: str


def test_types_that_are_not_tagged_are_told_apart_by_a_header():
    app = an_app()
    topic = app.topic("in", key_type=str)
    got = []

    @app.actor(topic)
    class Doors(Actor[None]):
        @receive
        def opened(self, message: Opened) -> None:
            got.append(message)

        @receive(name="shut")
        def closed(self, message: Closed) -> None:
            got.append(message)
            self.ctx.tell(Doors, "other", Renamed(owner="x"))

        @receive
        def renamed(self, message: Renamed) -> None:
            got.append((self.key, message.owner))

    with ActorTestDriver(app) as driver:
        driver.tell(Doors, "a", Opened("ada"))
        driver.tell(Doors, "a", Closed())
        assert got == [Opened("ada"), Closed(), ("other", "x")]
        sent = driver.outputs(topic)
        assert [one.headers for one in sent[:2]] == [[("fa-type", b"Opened")], [("fa-type", b"shut")]]
        with pytest.raises(UndecodableRecordError, match=r"header fa-type is missing.*Opened, Renamed, shut"):
            driver.send(topic, key="a", value={})


@pytest.mark.parametrize("headers", [{"fa-type": b"Slammed"}])
def test_a_header_that_names_no_type_is_a_clear_error(headers):
    app = an_app()
    topic = app.topic("in", key_type=str)

    @app.actor(topic)
    class Doors(Actor[None]):
        @receive
        def opened(self, message: Opened | Closed) -> None:
            """Take both."""

    with ActorTestDriver(app) as driver, pytest.raises(NewerProgramError, match="unknown type 'Slammed'"):
        driver.send(topic, key="a", value={}, headers=headers)


def test_a_topic_may_declare_the_union_itself():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=Deposit | Withdraw)

    class Partial(Actor[None]):
        @receive
        def deposit(self, message: Deposit) -> None:
            """Take it."""

    app.actor(topic)(Partial)
    with pytest.raises(ConfigurationError, match=r"Partial: topic in is declared to carry Withdraw"):
        ActorTestDriver(app).__enter__()


def test_what_an_actor_cannot_be():
    app = an_app()
    topic = app.topic("in", key_type=str)
    with pytest.raises(ConfigurationError, match="no method is marked @receive"):
        app.actor(topic)(type("Silent", (Actor,), {}))
    with pytest.raises(ConfigurationError, match=r"has to be a subclass of actors.Actor"):
        app.actor(topic)(type("Odd", (), {}))
    with pytest.raises(ConfigurationError, match="two handlers take Deposit"):

        class Twice(Actor[None]):
            @receive
            def one(self, message: Deposit) -> None:
                """Take it."""

            @receive(Deposit)
            def two(self, message: Any) -> None:
                """Take it too."""

    with pytest.raises(ConfigurationError, match=r"Vague.on has to take one message whose type is annotated"):

        class Vague(Actor[None]):
            @receive
            def on(self, message):
                """Take what?"""


class Items(TypedDict):
    count: int


def test_a_method_without_its_mark_takes_no_handlers_place():
    class Base(Actor[Balance]):
        @receive
        async def deposit(self, message: Deposit) -> int:
            return message.amount

        @query
        def amount(self) -> int:
            return self.state.amount

    with pytest.raises(ConfigurationError, match=r"Sub\.deposit has no @receive, and the method of the parent class"):
        type("Sub", (Base,), {"deposit": lambda self, message: 0})
    with pytest.raises(ConfigurationError, match=r"Sub\.amount has no @query"):
        type("Sub", (type("Middle", (Base,), {}),), {"amount": lambda self: 0})

    app = an_app()

    @app.actor(app.topic("commands", key_type=str))
    class Twice(Base):
        @receive
        async def deposit(self, message: Deposit) -> int:
            return 2 * await super().deposit(message)

    with ActorTestDriver(app) as driver:
        assert driver.run(Twice.at("ada").deposit(Deposit(4))) == 8


def test_handlers_of_a_class_that_is_no_actor_are_there():
    class Mixed:
        @receive
        async def withdraw(self, message: Withdraw) -> int:
            return -message.amount

        @query
        def amount(self) -> int:
            return 7

    app = an_app()

    @app.actor(app.topic("commands", key_type=str))
    class Account(Mixed, Actor[Balance]):
        @receive
        async def deposit(self, message: Deposit) -> int:
            return message.amount

    class Sub(Account):
        @receive
        async def withdraw(self, message: Withdraw) -> int:
            return 5 * await super().withdraw(message)

    class Below(Sub, Mixed):
        pass

    with ActorTestDriver(app) as driver:
        ada = Account.at("ada")
        assert driver.run(ada.withdraw(Withdraw(4))) == -4
        assert driver.run(ada.deposit(Deposit(4))) == 4
        assert driver.query(ada.amount) == 7
    assert Below.receivers[Withdraw] is Sub.receivers[Withdraw] is not Account.receivers[Withdraw]
    with pytest.raises(ConfigurationError, match=r"Sub\.withdraw has no @receive"):
        type("Sub", (Mixed, Actor), {"withdraw": lambda self, message: 0})


S, K = TypeVar("S"), TypeVar("K")


class OfKeys(Actor[Balance, K]):
    """A class that leaves the type of keys open."""


class Swapped(Actor[S, K], Generic[K, S]):
    """A class whose type parameters are in another order."""


class OfLists(Actor[list[S]]):
    """A class that leaves a part of a type open."""


class Open(OfLists[K]):
    """A class that hands a type parameter on."""


@pytest.mark.parametrize(
    ("base", "types"),
    [
        (OfKeys[int], (Balance, int)),
        (OfKeys, (Balance, Any)),
        (Swapped[str, Balance], (Balance, str)),
        (OfLists[Balance], (list[Balance], Any)),
        (Open[int], (list[int], Any)),
        (Actor[None], (type(None), Any)),
        (Swapped, (type(None), Any)),
    ],
    ids=str,
)
def test_type_parameters_of_a_parent_class_are_filled(base: Any, types: Any):
    child = new_class("Child", (base,))
    assert (child.state_type, child.key_type) == types
    grandchild = type("Grandchild", (child,), {})
    assert (grandchild.state_type, grandchild.key_type) == types


@pytest.mark.parametrize("type_", [Any, list[int], dict[str, int], Literal["a"], NewType("Id", int), Items])
def test_a_handler_of_what_is_no_class_is_refused(type_):
    with pytest.raises(ConfigurationError, match=r"Basket\.on: handlers are chosen by the class of a message, and"):

        class Basket(Actor[None]):
            @receive(type_)
            async def on(self, message: Any) -> None:
                """It would never be called."""


def test_a_class_that_is_two_actors_is_addressed_by_a_name():
    class Box(Actor[Balance]):
        @receive
        async def deposit(self, message: Deposit) -> None:
            self.state.amount += message.amount

    app = an_app()
    for name in ("first", "second"):
        app.actor(app.topic(name, key_type=str), name=name)(Box)
    orders = app.topic("orders", key_type=str, value_type=int)

    @app.actor(orders)
    async def order(ctx: Context, amount: int) -> None:
        with pytest.raises(UsageError, match="Box is declared as the actors first and second: give the name of one"):
            ctx.tell(Box, ctx.key, Deposit(amount))
        ctx.tell("second", ctx.key, Deposit(amount))

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value=5)
        assert driver.items("first") == {}
        assert driver.items("second") == {"ada": Balance(5)}


def test_tell_needs_an_actor_that_is_there_and_takes_the_message():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic)
    def forward(ctx, value):
        ctx.tell({"nobody": "nobody", "key": forward, "type": forward}[value], None if value == "key" else "k", 5)

    for value, match in (
        ("nobody", "'nobody' is no actor of this app, which has: forward"),
        ("key", "needs a key"),
        ("type", "expected str, got int"),
    ):
        with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match=match):
            driver.send(topic, key="a", value=value)


def test_a_state_that_needs_arguments_asks_for_an_initial_one():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=int)

    class Needs(msgspec.Struct):
        amount: int

    class Plain(Actor[Needs]):
        @receive
        def on(self, message: int) -> None:
            self.state.amount += message

    class Helped(Plain):
        def initial_state(self) -> Needs:
            return Needs(len(self.key))

    app.actor(topic)(Helped)
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="abc", value=1)
        assert driver.get(Helped, "abc") == Needs(4)
    other = an_app()
    other.actor(other.topic("in", key_type=str, value_type=int))(Plain)
    with ActorTestDriver(other) as driver, pytest.raises(HandlerFailedError, match="override initial_state"):
        driver.tell(Plain, "abc", 1)


def test_an_actor_without_a_state_says_so():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=int)

    @app.actor(topic)
    class Stateless(Actor[None]):
        @receive
        def on(self, message: int) -> None:
            self.state = message

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError) as caught:
        driver.send(topic, key="a", value=1)
    assert isinstance(caught.value.__cause__, UsageError)
    assert "Stateless has no state" in str(caught.value)


# --- versions --------------------------------------------------------------------------------------------------------


class Name1(msgspec.Struct):
    name: str = ""


class Name2(msgspec.Struct):
    first: str = ""
    last: str = ""


class Name3(msgspec.Struct):
    first: str = ""
    last: str = ""
    tags: list[str] = msgspec.field(default_factory=list)


def split_name(old):
    first, _, last = old["name"].partition(" ")
    return {"first": first, "last": last}


def add_tags(old):
    return {**old, "tags": ["old"]}


def people(state_type, version, upgrades):
    app = an_app()
    topic = app.topic("people", key_type=str, value_type=str)

    @app.actor(topic, name="person")
    class Person(Actor[state_type]):
        state_version = version
        state_upgrades = upgrades

        @receive
        def on(self, message: str) -> None:
            if isinstance(self.state, Name1):
                self.state.name = message
            else:
                self.state.last = message

    return app, topic


def test_a_state_is_brought_up_to_date_when_it_is_read_by_a_newer_program():
    app, topic = people(Name1, 1, {})
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value="Ada Byron")
        driver.send(topic, key="b", value="Bob Martin")
        newer, topic = people(Name2, 2, {1: split_name})
        driver.restart(newer)
        assert driver.get("person", "a") == Name2("Ada", "Byron")
        driver.send(topic, key="a", value="Lovelace")
        newest, topic = people(Name3, 3, {1: split_name, 2: add_tags})
        driver.restart(newest)
        assert driver.items("person") == {"a": Name3("Ada", "Lovelace", ["old"]), "b": Name3("Bob", "Martin", ["old"])}
        driver.send(topic, key="b", value="Uncle")
        driver.crash(keep_disk=False)
        assert driver.get("person", "b") == Name3("Bob", "Uncle", ["old"])


class Name1WithTitle(msgspec.Struct):
    name: str = ""
    title: str = "none"


@pytest.mark.parametrize(("state_type", "version", "upgrades"), [(Name1WithTitle, 1, {}), (Name2, 2, {1: split_name})])
def test_a_state_that_is_only_read_by_a_newer_program_is_not_written(state_type, version, upgrades):
    app, topic = people(Name1, 1, {})
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value="Ada Byron")
        newer = an_app()
        topic, seen = newer.topic("people", key_type=str, value_type=str), []

        @newer.actor(topic, name="person")
        class Person(Actor[state_type]):
            state_version = version
            state_upgrades = upgrades

            @receive
            def on(self, message: str) -> None:
                seen.append(self.state)

        driver.restart(newer)
        before = len(driver.changelog("person"))
        driver.send(topic, key="a", value="look")
        assert len(driver.changelog("person")) == before
    assert type(seen[0]) is state_type


def test_a_state_of_a_newer_program_stops_an_older_one_in_front_of_it():
    app, topic = people(Name2, 2, {1: split_name})
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value="Lovelace")
        older, topic = people(Name1, 1, {})
        driver.restart(older)
        with pytest.raises(NewerProgramError, match="a value of version 2, this program knows up to 1"):
            driver.send(topic, key="a", value="x")


def test_stores_of_functions_have_versions_too():
    app = an_app()
    with pytest.raises(ConfigurationError, match=r"version 3 needs an upgrade function for each.*\(1, 2\), given: 2"):
        app.store("a", value_type=Name3, version=3, upgrades={2: add_tags})
    with pytest.raises(ConfigurationError, match="kept as JSON"):
        app.store("b", value_type=bytes, version=2, upgrades={1: add_tags})
    raw = app.store("d", value_type=bytes, version=1)
    assert raw.decode_value(raw.encode_value(b"\x00v\x00\x02x")) == b"\x00v\x00\x02x"
    store = app.store("c", value_type=Name2, version=2, upgrades={1: lambda _: 1 / 0})
    assert store.decode_value(store.encode_value(Name2("x", "y"))) == Name2("x", "y")
    with pytest.raises(ValueError, match="store c: the upgrade from version 1 raised ZeroDivisionError"):
        store.decode_value(b'{"name":"x y"}')
    with pytest.raises(ValueError, match="not JSON of version 1"):
        store.decode_value(b"nonsense")
