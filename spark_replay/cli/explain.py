"""`spark_replay explain`."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click

from spark_replay.cli.options import Given, running, source_options
from spark_replay.cli.outcome import Outcome
from spark_replay.printing import key_bytes, say


@click.command()
@click.argument("key")
@partial(source_options, several=True)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Show the newest N records of each changelog.",
)
def explain(key: str, limit: int, **options: Any) -> Outcome:
    """Show the history of one key: each write, its input's offset, its writer's epoch, and what became of it.

    KEY is the message's key, as reports show it: text, or base64 after `base64:`. Writes that were aborted are shown
    too, deletes, expiries, and records that no owner can have written. Of a window store or a join all windows of the
    key are shown. The changelog APP--ACTOR-timers-changelog has the key's timers, …-effects-changelog its effects, and
    …-parked-changelog its parked messages: name them too.

    The time line goes to standard error; --json prints it as one object. The exit code is 2 if there is no record of
    the key.

    \b
    python -m spark_replay explain customer-7 --brokers 127.0.0.1:9092 --archive archive \\
        --changelog shop--spent-changelog --changelog shop--count-timers-changelog
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    names = options.pop("changelog")
    shared = Given.of(options)
    with running(shared) as run:
        from spark_replay.comparison.history import key_history

        raw = key_bytes(key)
        sources = [replace(shared, changelog=name).source(run.spark) for name in names]
        with run.progress(f"explain {key}"):
            history = key_history(sources, raw, limit=limit)
    for line in (*map(str, history.events), *history.notes):
        say(run.console, line)
    missing = None if history.records else f"{' and '.join(map(str, sources))} has no record of the key {history.key}"
    return Outcome(totals={"records": history.records}, content=asdict(history), error=missing)
