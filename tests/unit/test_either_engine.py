"""What a program meets in the engine, interpreted or compiled: subclasses, copies, tracebacks, cancellation, errors.

`make test` runs these tests on the interpreted engine, `make test-compiled` on the compiled one.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import IntEnum
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from actors import (
    App,
    Context,
    HandlerFailedError,
    Hopping,
    RecordError,
    Session,
    Sliding,
    Store,
    Table,
    Tumbling,
    UsageError,
    Window,
    WindowStore,
    aggregates,
)
from actors.testing import ActorTestDriver
from tests.documents import ROOT

MINUTE = timedelta(minutes=1)
NOON_MS = 1_700_049_600_000
KINDS = (Hopping(2 * MINUTE, MINUTE), Tumbling(days=1, tz="Europe/Berlin"), Sliding(MINUTE), Session(MINUTE))
HANDLES = (Context, Store, Table, WindowStore)

app = App("either", broker="kafka://127.0.0.1:9092")
words, told, doings, questions = (
    app.topic(name, key_type=str, value_type=str) for name in ("words", "told", "doings", "questions")
)
counts = app.store("counts", key_type=str, value_type=int)
minutes = app.window_store("minutes", Tumbling(MINUTE), value_type=int)
test = SimpleNamespace(act=None)


@app.actor(words, stores=[counts, minutes], timers=True)
async def handle(ctx: Context, value: str) -> None:
    result = test.act(ctx)
    if inspect.isawaitable(result):
        await result


@app.actor(questions, concurrency=2)
async def answer(ctx: Context, value: str) -> str:
    if value == "slow":
        await asyncio.sleep(10)
    return f"{value}!"


@app.actor(doings, concurrency=2)
async def wait(ctx: Context, value: str) -> None:
    await test.act(ctx)


def done(act: Callable[[Context], Any], topic: Any = words) -> list[Any]:
    """Handle one message by a function; return the values of what it sent to `told`."""
    test.act = act
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="ada", value="word", headers={"count": b"many"}, timestamp_ms=NOON_MS)
        return [sent.value for sent in driver.outputs(told)]


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda kind: pickle.loads(pickle.dumps(kind))])
def test_windows_are_copied_and_pickled(kind: Any, copied: Callable[[Any], Any]) -> None:
    other = copied(kind)
    assert other is not kind
    assert (repr(other), other.longest_ms) == (repr(kind), kind.longest_ms)
    assert copied(Window(1, 2)) == Window(1, 2)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_program_subclasses_windows(kind: Any) -> None:
    class Own(type(kind)):
        """As a program's: with its own arguments, an attribute, and a text."""

        def __init__(self) -> None:
            super().__init__(MINUTE, **({"advance": MINUTE} if isinstance(kind, Hopping) else {}))
            self.note = "ours"

    own = Own()
    assert (own.longest_ms, own.note, isinstance(own, type(kind))) == (60_000, "ours", True)
    assert own.closes_ms(Window(0, 60_000), 0) == type(kind).closes_ms(own, Window(0, 60_000), 0)


def test_what_a_subclass_replaces_is_called() -> None:
    class Early(Tumbling):
        """Windows that begin half a minute early."""

        def holding(self, at_ms: int) -> Sequence[Window]:
            [window] = super().holding(at_ms + 30_000)
            return (Window(window.start_ms - 30_000, window.end_ms - 30_000),)

    early = App("early", broker="kafka://127.0.0.1:9092")
    sales = early.topic("sales", key_type=str, value_type=int)
    windows = early.window_store("windows", Early(MINUTE), aggregate=aggregates.sum())
    results: list[Any] = []

    @early.actor(sales, stores=[windows])
    async def add(ctx: Context, cents: int) -> None:
        results.append(windows.add(ctx.key, cents))

    with ActorTestDriver(early) as driver:
        driver.send(sales, key="rome", value=1, timestamp_ms=NOON_MS)
    assert results == [[(Window(NOON_MS - 30_000, NOON_MS + 30_000), 1)]]


@pytest.mark.parametrize("handle", HANDLES)
def test_a_program_makes_doubles_of_what_handlers_use(handle: Any) -> None:
    class Double(handle):
        """As a program's tests have it: it keeps what it is told."""

        def __init__(self) -> None:
            self.calls: list[tuple[Any, ...]] = []

        def send(self, *args: Any, **options: Any) -> None:
            self.calls.append((args, options))

    double = Double()
    double.send("told", key="a")
    assert double.calls == [(("told",), {"key": "a"})]
    assert isinstance(double, handle)
    assert isinstance(mock.Mock(spec=handle), handle)
    assert mock.create_autospec(handle, instance=True)


def test_a_named_tuple_of_a_program_is_a_window() -> None:
    class Shift(Window):
        """A window with a name."""

        @property
        def hours(self) -> float:
            return (self.end_ms - self.start_ms) / 3_600_000

    assert Shift(0, 7_200_000).hours == 2
    assert Shift(0, 1)._replace(end_ms=2) == (0, 2)


def frames(error: BaseException) -> list[tuple[str, str, str]]:
    """Return (file, function, line of source) of the project's frames of an error, the innermost last."""
    found = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = next((path for path in (ROOT / "actors", ROOT / "tests") if f"{path.name}/" in frame.filename), None)
        if path is not None:
            file = f"{path.name}/" + frame.filename.rpartition(f"{path.name}/")[2]
            found.append((file, frame.name, (ROOT / file).read_text().splitlines()[frame.lineno - 1].strip()))
    return found


def failure(act: Callable[[Context], Any], topic: Any = words) -> BaseException:
    """Handle one message by a function that raises; return its error."""
    with pytest.raises(RecordError) as raised:
        done(act, topic)
    error = raised.value
    cause = error.__cause__ if isinstance(error, HandlerFailedError) else error
    assert cause is not None
    return cause


def test_a_traceback_has_the_frames_of_engine_and_program() -> None:
    def read(ctx: Context) -> int:
        return counts["missing" if ctx.key is None else ctx.key]

    error = failure(read)
    assert (type(error), error.args) == (KeyError, ("ada",))
    *_, once, handler, own, store = frames(error)
    assert once == ("actors/runtime/task/in_order.py", "_handle", "await handler(ctx, value)")
    assert handler == ("tests/unit/test_either_engine.py", "handle", "result = test.act(ctx)")
    assert own[:2] == ("tests/unit/test_either_engine.py", "read")
    assert store == ("actors/runtime/message/store.py", "__getitem__", "raise KeyError(key)")


def test_a_function_that_the_engine_calls_is_in_the_traceback_too() -> None:
    def divide(value: int | None) -> float:
        return 1 / 0

    error = failure(lambda ctx: minutes.update(ctx.key, divide))
    names = [name for _, name, _ in frames(error)]
    assert isinstance(error, ZeroDivisionError)
    assert names[-1] == "divide"
    assert names.index("update") < names.index("_change") < names.index("_into_aligned") < names.index("divide")


def test_an_error_keeps_its_cause_and_its_context() -> None:
    error = failure(lambda ctx: ctx.header("count", int))
    assert str(error).startswith("words[2] offset 0 key 'ada': it doesn't decode: header count is no int")
    assert isinstance(error.__cause__, ValueError)
    assert error.__suppress_context__

    def hide(ctx: Context) -> None:
        try:
            counts.get(5)
        except Exception:
            counts["ada"]

    assert "expected str, got int" in str(failure(hide).__context__)


def test_cancellation_passes_through_an_ask() -> None:
    said: list[Any] = []

    async def give_up(ctx: Context) -> None:
        question = asyncio.create_task(ctx.ask(answer, "bob", "slow"))
        await asyncio.sleep(0.01)
        question.cancel("enough")
        try:
            await question
        except asyncio.CancelledError as error:
            said.append((error.args, question.cancelled()))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ctx.ask(answer, "bob", "slow"), 1)
        try:
            async with asyncio.timeout(1):
                await ctx.ask(answer, "bob", "slow")
        except TimeoutError:
            said.append("too long")
        finally:
            ctx.send(told, key="ada", value="went on")

    assert done(give_up, doings) == ["went on"]
    assert said == [(("enough",), True), "too long"]


def test_a_handler_that_is_cancelled_ends_where_it_waits() -> None:
    said = []

    async def end(ctx: Context) -> None:
        try:
            task = asyncio.current_task()
            assert task is not None
            task.cancel("from outside")
            await ctx.ask(answer, "bob", "slow")
        finally:
            said.append("ended")

    error = failure(end, doings)
    assert (type(error), error.args) == (asyncio.CancelledError, ("from outside",))
    assert said == ["ended"]


def test_questions_go_side_by_side() -> None:
    async def ask_both(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.ask(answer, key, key)) for key in ("bob", "eve")]
        ctx.send(told, key="ada", value=" ".join([task.result() for task in tasks]))
        ctx.send(told, key="ada", value=" ".join(await asyncio.gather(ctx.ask(answer, "bob", "again"))))

    assert done(ask_both, doings) == ["bob! eve!", "again!"]


def test_a_question_can_be_closed_and_thrown_into() -> None:
    async def leave(ctx: Context) -> None:
        ctx.ask(answer, "bob", "never").close()
        question = ctx.ask(answer, "bob", "slow")
        assert inspect.isawaitable(question)
        question.send(None)
        with pytest.raises(KeyError):
            question.throw(KeyError("from outside"))

    assert done(leave, doings) == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (GeneratorExit("x"), "GeneratorExit: x"),
        (StopIteration("x"), "RuntimeError: coroutine raised StopIteration"),
        (StopAsyncIteration("x"), "StopAsyncIteration: x"),
        (BaseException("x"), "BaseException: x"),
        (ExceptionGroup("x", [ValueError("a")]), "ExceptionGroup: x (1 sub-exception)"),
    ],
    ids=lambda case: getattr(type(case), "__name__", ""),
)
@pytest.mark.parametrize("topic", [words, doings], ids=str)
def test_what_no_error_should_be_is_the_handlers(error: BaseException, text: str, topic: Any) -> None:
    async def fail(ctx: Context) -> None:
        raise error

    test.act = fail
    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError) as raised:
        driver.send(topic, key="ada", value="word")
    assert f"raised {text}." in str(raised.value)


class Number(IntEnum):
    """A number with a name."""

    ONE = 1


class Time:
    """A whole number that is no `int`, as NumPy's."""

    def __index__(self) -> int:
        return NOON_MS


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda ctx: ctx.send(told, key=5), "expected str, got int"),
        (lambda ctx: ctx.send(told, key="a", partition="x"), "ctx.send(partition='x'): topic told has the partitions"),
        (lambda ctx: ctx.send(told, key="a", timestamp_ms=1.5), "ctx.send(timestamp_ms=1.5): Unix milliseconds are"),
        (lambda ctx: ctx.send(told, key="a", headers="ab"), "ctx.send(headers=…): a header is a pair of str and bytes"),
        (lambda ctx: ctx.send(told, key="a", headers=5), "'int' object is not iterable"),
        (lambda ctx: ctx.schedule("word", after=5), "ctx.schedule(after=5): a duration is a timedelta"),
        (lambda ctx: ctx.answer(5, 5), "ctx.answer(): the actor answers nothing"),
        (lambda ctx: counts.set("ada", 1, ttl=5), "store counts: a write with a ttl in a store whose keys don't"),
        (lambda ctx: counts.set("ada", "one"), "expected int, got str"),
        (lambda ctx: list(counts), "'Store' object is not iterable"),
        (lambda ctx: minutes.add("ada", 1), "window store minutes: add() needs aggregate=…"),
        (lambda ctx: list(minutes.fetch("ada", "x")), "'str' object cannot be interpreted as an integer"),
        (lambda ctx: Tumbling(5), "Tumbling(size=5): give a timedelta"),
        (lambda ctx: Tumbling(days=1, tz="Nowhere"), "Tumbling(tz='Nowhere'): there is no such time zone"),
        (lambda ctx: Hopping(MINUTE, "x"), "Hopping(advance='x'): give a timedelta"),
        (lambda ctx: setattr(ctx, "note", 1), "'Context' object has no attribute 'note'"),
    ],
)
def test_an_error_has_one_text(act: Callable[[Context], Any], error: str) -> None:
    assert error in str(failure(act))


@pytest.mark.parametrize(
    "act",
    [
        lambda ctx: ctx.cancel(5),
        lambda ctx: ctx.scheduled(None),
        lambda ctx: ctx.schedule("word", after=MINUTE, name=5),
        lambda ctx: ctx.effects(limit="x"),
        lambda ctx: minutes.get("ada", "x"),
        lambda ctx: minutes.fetch("ada", 1.5),
        lambda ctx: Tumbling(days="1"),
        lambda ctx: Tumbling(MINUTE, time=5),
    ],
)
def test_an_argument_of_another_type_is_refused(act: Callable[[Context], Any]) -> None:
    """The compiled engine refuses it by its annotation, with a text that Python's own functions have."""
    assert isinstance(failure(act), TypeError | ValueError | AttributeError | UsageError)


@pytest.mark.parametrize(
    "act",
    [
        lambda ctx: [ctx.next_id(number) for number in (5, Number.ONE)],
        lambda ctx: list(minutes.fetch("ada", Time(), True)),
        lambda ctx: list(minutes.fetch_all(Time(), reverse=True)),
        lambda ctx: ctx.send(told, key="a", headers=None),
        lambda ctx: hasattr(ctx, "expired_in"),
        lambda ctx: copy.copy(ctx).key,
        lambda ctx: Tumbling(minutes=True),
    ],
)
def test_what_one_engine_takes_the_other_takes(act: Callable[[Context], Any]) -> None:
    done(act)


@pytest.mark.parametrize("handle", HANDLES)
def test_annotations_and_signatures_can_be_read(handle: Any) -> None:
    assert handle is Context or handle[str, int]
    assert inspect.signature(Context.send).parameters["timestamp_ms"].default is None
    assert list(inspect.signature(Store.put_if_absent).parameters) == ["self", "key", "value", "ttl"]
    assert inspect.iscoroutinefunction(Context.ask)
