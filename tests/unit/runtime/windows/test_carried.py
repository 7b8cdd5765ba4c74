"""Headers that windows keep for their closes: those of the message that changed a window last."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from actors import App, Context, Every, Hopping, OnError, Session, Sliding, Tumbling, aggregates
from actors._core.windows.join_rows import encode_headers
from actors._core.windows.rows import aligned_key, close_key
from actors.testing import ActorTestDriver
from spark_replay.printing import row_key, row_value

MINUTE = timedelta(minutes=1)
START_MS = 1_700_000_040_000
EARLY, LATE = ({"tenant": name, "other": b"x"} for name in (b"early", b"late"))
TENANT = ("tenant",)


def counting(windows: Any, *, names: Sequence[str] = TENANT, on_error: Any = "stop", **options: Any) -> App:
    """Return an app that counts in windows, and sends what closes, or has changed, to the topic `out`."""
    app = App("shop", broker="kafka://127.0.0.1:9092", propagate_headers=names)
    orders, out = app.topic("orders", key_type=str, value_type=str), app.topic("out", key_type=str, value_type=int)
    counts = app.window_store("counts", windows, aggregate=aggregates.count(), **options)

    @app.actor(orders, stores=[counts], on_error=on_error)
    async def count(ctx: Context, text: str) -> None:
        counts.add(ctx.key, text)

    @(counts.on_close if "emit" not in options else counts.on_emit)
    async def closed(ctx: Context, window: Any, number: int) -> None:
        assert {name for name, _ in ctx.headers} <= {*names}
        ctx.send(out, key=ctx.key, value=number)

    return app


def send(driver: ActorTestDriver, key: str, at_s: float, headers: Any, topic: str = "orders") -> None:
    driver.send(topic, key=key, value="hat", headers=headers, timestamp_ms=START_MS + int(at_s * 1000))


def tenants(driver: ActorTestDriver) -> list[tuple[str, Any, str | None]]:
    """Return key, value and tenant of what was sent, by key."""
    sent = sorted(driver.outputs("out"), key=lambda it: it.key)
    return [(it.key, it.value, dict(it.headers).get("tenant", b"").decode() or None) for it in sent]


def rows_with_headers(driver: ActorTestDriver, store: str = "counts") -> tuple[int, int]:
    """Return how many records of a changelog had headers in them, and how many rows of them are left."""
    definition = next(iter(driver._app.actors.values()))
    rows = next(it for it in definition.stores if it.name == store)
    records = [it for it in driver.changelog(rows) if it.key[0] == "headers"]
    left = {it.key: it.value for it in records}
    return sum(it.value is not None for it in records), sum(value is not None for value in left.values())


@pytest.mark.parametrize("windows", [Tumbling(MINUTE), Hopping(MINUTE, MINUTE), Session(MINUTE)], ids=str)
def test_a_close_passes_on_the_headers_of_the_message_that_changed_the_window_last(windows: Any) -> None:
    with ActorTestDriver(counting(windows)) as driver:
        send(driver, "ada", 1, EARLY)
        send(driver, "ada", 2, LATE)
        send(driver, "bob", 3, LATE)
        send(driver, "bob", 4, {"other": b"x"})
        driver.crash()
        assert rows_with_headers(driver)[1] == 1
        driver.close_windows()
        assert tenants(driver) == [("ada", 2, "late"), ("bob", 2, None)]
        assert rows_with_headers(driver)[1] == 0


def test_sliding_windows_keep_the_headers_of_their_last_messages() -> None:
    with ActorTestDriver(counting(Sliding(MINUTE))) as driver:
        send(driver, "ada", 60, EARLY)
        send(driver, "ada", 70, LATE)
        driver.close_windows()
        # [0, 60] ends before the second message, [10, 70] and [60.001, 120.001] have it.
        assert tenants(driver) == [("ada", 1, "early"), ("ada", 2, "late"), ("ada", 1, "late")]
        assert rows_with_headers(driver) == (3, 0)


def test_sessions_that_merge_keep_the_headers_of_the_message_that_merged_them() -> None:
    with ActorTestDriver(counting(Session(MINUTE), grace=MINUTE)) as driver:
        send(driver, "ada", 0, EARLY)
        send(driver, "ada", 100, EARLY)
        send(driver, "ada", 50, LATE)
        assert rows_with_headers(driver)[1] == 1
        driver.close_windows()
        assert tenants(driver) == [("ada", 3, "late")]
        assert rows_with_headers(driver)[1] == 0


def test_changed_windows_are_handed_out_with_headers() -> None:
    with ActorTestDriver(counting(Tumbling(MINUTE), emit=Every(seconds=10))) as driver:
        send(driver, "ada", 1, EARLY)
        send(driver, "ada", 2, LATE)
        driver.crash()
        driver.close_windows()
        assert tenants(driver) == [("ada", 2, "late")]
        assert rows_with_headers(driver, "counts-changes")[1] == 0


def test_a_close_that_is_tried_again_has_the_headers_again() -> None:
    fails = [True]
    app = counting(Tumbling(MINUTE), on_error=OnError(then="stop", retries=2))
    store = next(iter(app.actors.values())).windows[0]
    function = store.on_close_function

    async def closed(ctx: Context, window: Any, number: int) -> None:
        await function(ctx, window, number)
        if fails:
            fails.clear()
            raise ValueError("once")

    store.on_close_function = closed
    with ActorTestDriver(app) as driver:
        send(driver, "ada", 1, LATE)
        driver.close_windows()
        driver.advance(60)
        assert (tenants(driver), fails) == ([("ada", 1, "late")], [])


def test_a_window_that_is_removed_leaves_no_headers() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092", propagate_headers=TENANT)
    last = app.window_store("last", Tumbling(MINUTE), value_type=str)

    @app.actor(app.topic("orders", key_type=str, value_type=str), stores=[last])
    async def keep(ctx: Context, text: str) -> None:
        last.set(ctx.key, text)
        if ("tenant", b"late") in ctx.headers:
            last.delete(ctx.key)

    @last.on_close
    async def closed(ctx: Context, window: Any, text: str) -> None: ...

    with ActorTestDriver(app) as driver:
        send(driver, "ada", 1, EARLY)
        assert rows_with_headers(driver, "last") == (1, 1)
        send(driver, "ada", 2, LATE)
        assert rows_with_headers(driver, "last") == (1, 0)


@pytest.mark.parametrize("of_one", [False, True], ids=["join", "join of one with many"])
def test_a_record_of_a_join_without_a_match_is_handed_out_with_its_headers(of_one: bool) -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092", propagate_headers=TENANT)
    orders, paid = (app.topic(name, key_type=str, value_type=str) for name in ("orders", "paid"))
    out = app.topic("out", key_type=str, value_type=str)
    inputs = {"one": orders, "many": paid, "retention": MINUTE}
    inputs = inputs if of_one else {"left": orders, "right": paid, "within": MINUTE}

    @app.join(how="left", **inputs)
    async def pair(ctx: Context, left: str, right: str | None) -> None:
        ctx.send(out, key=ctx.key, value=f"{right}")

    with ActorTestDriver(app) as driver:
        send(driver, "ada", 1, LATE)
        send(driver, "bob", 2, EARLY)
        send(driver, "bob", 3, LATE, topic="paid")
        driver.crash()
        driver.close_windows()
        assert tenants(driver) == [("ada", "None", "late"), ("bob", "hat", "late")]


@pytest.mark.parametrize(("how", "kept"), [("inner", 0), ("left", 1)])
def test_a_join_of_one_with_many_keeps_headers_that_something_reads(how: Any, kept: int) -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092", propagate_headers=TENANT)
    orders, paid = (app.topic(name, key_type=str, value_type=str) for name in ("orders", "paid"))

    @app.join(one=orders, many=paid, retention=MINUTE, how=how)
    async def pair(ctx: Context, order: str, payment: Any) -> None: ...

    with ActorTestDriver(app) as driver:
        send(driver, "ada", 1, LATE)
        (definition,) = app.actors.values()
        values = [it.value for store in definition.stores for it in driver.changelog(store)]
        assert values.count([("tenant", b"late")]) == kept


def test_a_stage_across_keys_has_the_headers_of_the_close_that_fed_it() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092", propagate_headers=TENANT)
    orders, out = app.topic("orders", key_type=str, value_type=str), app.topic("out", key_type=str, value_type=int)
    counts = app.window_store("counts", Tumbling(MINUTE), aggregate=aggregates.count())

    @app.actor(orders, stores=[counts])
    async def count(ctx: Context, text: str) -> None:
        counts.add(ctx.key, text)

    total = counts.across("total", key=lambda key: key[:1], aggregate=aggregates.sum())

    @total.on_close
    async def closed(ctx: Context, window: Any, number: int) -> None:
        ctx.send(out, key=ctx.key, value=number)

    with ActorTestDriver(app) as driver:
        send(driver, "ada", 1, LATE)
        driver.close_windows()
        assert tenants(driver) == [("a", 1, "late")]


@pytest.mark.parametrize("windows", [Tumbling(MINUTE), Sliding(MINUTE), Session(MINUTE)], ids=str)
def test_without_names_nothing_is_kept(windows: Any) -> None:
    with ActorTestDriver(counting(windows, names=())) as driver:
        send(driver, "ada", 1, LATE)
        driver.close_windows()
        assert {tenant for _, _, tenant in tenants(driver)} == {None}
        assert rows_with_headers(driver) == (0, 0)


@pytest.mark.parametrize("windows", [Tumbling(MINUTE), Session(MINUTE)], ids=str)
def test_what_was_kept_goes_when_the_app_passes_no_headers_on_any_more(windows: Any) -> None:
    with ActorTestDriver(counting(windows)) as driver:
        send(driver, "ada", 1, EARLY)
        assert rows_with_headers(driver)[1] == 1
        driver.restart(counting(windows, names=()))
        send(driver, "ada", 1, LATE)
        assert rows_with_headers(driver)[1] == 0
        driver.restart(counting(windows))
        driver.close_windows()
        # Those of the first message aren't of the one that changed the window last.
        assert tenants(driver) == [("ada", 2, None)]


def test_what_was_kept_goes_when_nothing_is_called_for_closes_any_more() -> None:
    with ActorTestDriver(counting(Tumbling(MINUTE))) as driver:
        send(driver, "ada", 1, EARLY)
        silent = counting(Tumbling(MINUTE))
        next(iter(silent.actors.values())).windows[0].on_close_function = None
        driver.restart(silent)
        send(driver, "ada", 2, LATE)
        assert rows_with_headers(driver) == (1, 0)
        driver.restart(counting(Tumbling(MINUTE)))
        driver.close_windows()
        assert tenants(driver) == [("ada", 2, None)]


def test_changes_keep_no_headers_when_the_app_passes_none_on_any_more() -> None:
    with ActorTestDriver(counting(Tumbling(MINUTE), emit=Every(seconds=10))) as driver:
        send(driver, "ada", 1, EARLY)
        driver.restart(counting(Tumbling(MINUTE), names=(), emit=Every(seconds=10)))
        driver.close_windows()
        assert tenants(driver) == [("ada", 1, None)]
        assert rows_with_headers(driver, "counts-changes")[1] == 0


def test_headers_that_are_too_large_for_the_changelog_are_left_out() -> None:
    with ActorTestDriver(counting(Tumbling(MINUTE))) as driver:
        send(driver, "ada", 1, {"tenant": b"x" * 1_048_400})
        driver.close_windows()
        assert tenants(driver) == [("ada", 1, None)]


def test_reports_of_spark_replay_show_the_rows() -> None:
    aligned, listed = b"W" + aligned_key(60_000, b"ada")[1:], b"E" + close_key(60_000, 7, b"ada")[1:]
    assert row_key(aligned, has_windows=True).startswith("ada, the headers for the window from 1970-01-01")
    assert row_key(listed, has_windows=True).startswith("ada, the headers for what ends at 1970-01-01")
    assert row_value(encode_headers([("tenant", b"acme"), ("id", b"\xff")]), has_windows=True) == (
        "tenant: acme; id: base64:/w=="
    )
