"""Shared configuration instead of zNodes (`faust -A examples.shared_config worker`).

A class actor owns each printer's limits, and every worker has all of them in a view that follows the actor's compacted
changelog. Any process can change a limit: `python -m examples.shared_config printer-7 20` returns when the change is
committed. An actor handles one message of a key at a time, so changes of different fields don't overwrite each other.
Another actor reads its worker's copy while it handles a message, without waiting.
"""

import asyncio
import os
import sys

import msgspec

from actors import Actor, App, Context, View, receive

app = App("shared-config", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Limits(msgspec.Struct):
    """The limits of a printer."""

    pages: int = 0
    color: bool = False


class Change(msgspec.Struct):
    """New values of some fields; None keeps a field as it is."""

    pages: int | None = None
    color: bool | None = None


class Job(msgspec.Struct):
    """Something to print."""

    printer: str
    pages: int


changes = app.topic("printer-changes", key_type=str)
jobs = app.topic("print-jobs", key_type=str, value_type=Job)
answers = app.topic("print-answers", key_type=str, value_type=str)


@app.actor(changes)
class Printer(Actor[Limits]):
    """The limits of one printer."""

    @receive
    def change(self, message: Change) -> Limits:
        """Change some fields; returns all of them."""
        if message.pages is not None:
            self.state.pages = message.pages
        if message.color is not None:
            self.state.color = message.color
        return self.state


limits: View[str, Limits] = app.view(Printer)


@app.actor(jobs)
async def check(ctx: Context, job: Job) -> None:
    """Refuse what is larger than the printer's limit, as this worker knows it at the moment."""
    limit = limits.get(job.printer)
    if limit is None:
        answer = f"no printer {job.printer}"
    else:
        answer = "printed" if job.pages <= limit.pages else f"more than {limit.pages} pages"
    ctx.send(answers, key=ctx.key, value=answer)


async def main(printer: str, pages: int) -> None:
    """Set a printer's limit from the command line, and print all limits."""
    await app.ask(Printer, printer, Change(pages=pages))
    async with limits:
        await limits.caught_up()
        for name, limit in limits.items():
            print(name, limit.pages, "pages", "in color" if limit.color else "")
    await app.close_asks()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
