"""The same cases through the product's own worker, on the broker, disk and clock of `ActorTestDriver`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

from actors import App, Context, Every, Hopping, Session, Sliding, Tumbling, aggregates
from actors._core.aggregates import Aggregate
from actors._core.windows.kinds import Window, Windows
from actors.runtime import clock
from actors.testing import ActorTestDriver
from tests.equivalence.generate import EVERY, Batch, Case, Config

Row = tuple[int, int, Any]
"""(window's start, its end, value)."""


@dataclass(frozen=True, slots=True)
class Update:
    """What the handling of a record led to.

    Attributes:
        key: the record's key.
        changed: the windows that `WindowStore.add` returned.
        table: the key's windows afterwards, as far as they begin in `reach` of the record.
    """

    key: str
    changed: list[Row]
    table: list[Row]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a case.

    Attributes:
        updates: by the number of the record; those that are too late have none.
        finals: by key, (start, end, value, timestamp) of the windows that closed, or were emitted, in order.
    """

    updates: dict[int, Update]
    finals: dict[str, list[tuple[int, int, Any, int]]]


def reach(config: Config, at_ms: int) -> tuple[int, int]:
    """Return in which span of time windows are looked at after a record."""
    return max(0, at_ms - 4 * config.size_ms), at_ms + config.size_ms + 1


def answer(batch: Batch) -> list[Answer]:
    """Return what comes of each case of a batch."""
    app, records, results = _declare(batch.config)
    cases = batch.cases
    with _quiet(), ActorTestDriver(app, partitions=len(cases)) as driver:
        home = app.partitioner_for("records").home
        names = [_names(case, at, lambda name: home(name.encode(), len(cases))) for at, case in enumerate(cases)]
        for number in range(max(len(case.records) for case in cases)):
            if number in batch.crashes:
                driver.crash(settle=number in batch.settles)
            elif number in batch.settles:
                driver.settle()
            for at, case in enumerate(cases):
                if number < len(case.records):
                    one = case.records[number]
                    driver.post(records, key=names[at][one.key], value=one.value, timestamp_ms=one.timestamp_ms)
        driver.settle()
        answers = [Answer({}, {}) for _ in cases]
        keys = [{name: key for key, name in of_case.items()} for of_case in names]
        for sent in driver.outputs(results):
            _collect(answers[sent.partition], keys[sent.partition][sent.key], sent.value, batch.config)
        return answers


def _declare(config: Config) -> tuple[App, Any, Any]:
    app = App("judged", broker="kafka://127.0.0.1:1")
    records = app.topic("records", key_type=str, value_type=int)
    results = app.topic("results", key_type=str, value_type=list)
    aggregate = _aggregate(config)
    grace = timedelta(milliseconds=config.grace_ms)
    emit = Every(milliseconds=config.every_ms) if config.emit == EVERY else None
    windows = app.window_store("windows", _windows(config), grace=grace, aggregate=aggregate, emit=emit)

    async def send(ctx: Context, window: Window, value: Any) -> None:
        ctx.send(results, key=ctx.key, value=[*window, value, ctx.timestamp_ms])

    if config.emit == "final":
        windows.on_close(send)
    elif config.emit == EVERY:
        windows.on_emit(send)

    @app.actor(records, stores=[windows], tombstones=True)
    async def aggregated(ctx: Context, value: int | None) -> None:
        if value is None and config.kind == "sliding":
            return
        changed = windows.add(ctx.key, value)
        if config.emit == "updates":
            from_ms, to_ms = reach(config, ctx.timestamp_ms)
            table = [(*window, held) for window, held in windows.fetch(ctx.key, from_ms, to_ms)]
            ctx.send(results, key=ctx.key, value=[ctx.offset, [(*window, held) for window, held in changed], table])

    return app, records, results


def _windows(config: Config) -> Windows:
    size = timedelta(milliseconds=config.size_ms)
    match config.kind:
        case "tumbling":
            return Tumbling(size)
        case "hopping":
            return Hopping(size, timedelta(milliseconds=config.advance_ms))
        case "sliding":
            return Sliding(size)
        case _:
            return Session(size)


def _aggregate(config: Config) -> Aggregate[Any]:
    if config.aggregate == "count":
        return aggregates.count()
    if config.aggregate == "collect":
        return aggregates.collect(1_000)
    found = aggregates.sum()
    return Aggregate(0, lambda state, value: found.add(state, value or 0), found.merge, found.state_type)


def _names(case: Case, partition: int, home: Any) -> dict[str, str]:
    """Return names of a case's keys that belong into its partition, in the order of the keys."""
    found: dict[str, str] = {}
    numbers = count()
    for key in sorted({record.key for record in case.records if record.key is not None}):
        found[key] = next(name for name in (f"{key}{number}" for number in numbers) if home(name) == partition)
    return found


def _collect(answer: Answer, key: str, value: list[Any], config: Config) -> None:
    if config.emit != "updates":
        start_ms, end_ms, held, timestamp_ms = value
        answer.finals.setdefault(key, []).append((start_ms, end_ms, _shown(held), timestamp_ms))
        return
    offset, changed, table = value
    rows = [[(start_ms, end_ms, _shown(held)) for start_ms, end_ms, held in rows] for rows in (changed, table)]
    answer.updates[offset] = Update(key, *rows)


def _shown(value: Any) -> Any:
    """Return a value as the judge writes it."""
    if isinstance(value, list):
        return "".join(" null" if one is None else f" {one}" for one in value)
    return value


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the log free of warnings of timestamps in 1970, which are what the cases are about."""
    logger = clock.logger
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
