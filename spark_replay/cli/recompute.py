"""`spark_replay recompute`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_replay.cli.options import Given, broker_options, running
from spark_replay.cli.outcome import Outcome
from spark_replay.printing import say
from stores._core.printable import counted

if TYPE_CHECKING:
    from rich.console import Console

    from spark_replay.recompute.plan import Recompute


@click.command()
@broker_options
@click.option(
    "--app", "module", required=True, metavar="MODULE[:NAME]", help="The app's module, as `faust -A` takes it."
)
@click.option(
    "--actor", metavar="NAME", help="The actor whose input is replayed. May be left out if the app has one actor."
)
@click.option("--store", metavar="NAME", help="Compare this store only.")
@click.option(
    "--from-state",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Begin with the rebuilds in this folder: one of each of the actor's stores, made at the same point.",
)
@click.option("--accept-missing-input", is_flag=True, help="Run although the first inputs are deleted.")
@click.option(
    "--py-files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A .py, .zip or .egg with the app, for executors that don't have it. May be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Print which offsets would be replayed, and do nothing else.")
def recompute(
    module: str,
    actor: str | None,
    store: str | None,
    from_state: Path | None,
    accept_missing_input: bool,
    dry_run: bool,
    py_files: tuple[str, ...],
    **options: Any,
) -> Outcome:
    """Replay an actor's input through the app's own handlers, and compare the state with its changelogs.

    With the code that the workers run it finds what isn't a function of the input, and damage; with a newer version of
    it, the keys that it would have treated otherwise.

    The last line on standard output is a JSON object with the counts; the table goes to standard error. Exit codes: 0
    no differences, 1 differences, 2 the question could not be answered.

    \b
    python -m spark_replay recompute --brokers 127.0.0.1:9092 --app examples.run_commands
    """  # noqa: D301  click takes this character for "leave the lines as they are"
    with running(Given.of(options)) as run:
        from spark_replay.recompute.plan import plan_recompute
        from spark_replay.recompute.recompute import recompute_actor

        for file in py_files:
            run.spark.sparkContext.addPyFile(file)
        plan = plan_recompute(
            run.spark,
            options["brokers"],
            module,
            actor=actor,
            store=store,
            from_state=from_state,
            accept_missing_input=accept_missing_input,
            kafka_options=run.given.client(run.spark),
        )
        if dry_run:
            _show_plan(plan, run.console)
            return Outcome(totals=plan.summary)
        with run.progress(f"recompute {plan.input}"):
            result = recompute_actor(run.spark, plan)
    from spark_replay.recompute.report import show

    show(result, run.console)
    return Outcome(totals=result.totals, content=asdict(result), differs=bool(result.mismatches))


def _show_plan(plan: Recompute, console: Console) -> None:
    offsets = counted(plan.offsets, "offset")
    lines = [f"would replay {plan.input} through actor {plan.actor} of {plan.module}, {offsets}:"]
    lines += [
        f"    {part['topic']}[{part['partition']}]: {part['start']} to {part['end']} (by {part['end_by']})"
        for part in plan.summary["partitions"]
    ]
    lines += [f"would compare store {store} with {topic.name}" for store, topic in plan.changelogs.items()]
    for line in lines:
        say(console, line)
