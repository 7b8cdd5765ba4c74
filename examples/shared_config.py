"""Shared configuration instead of zNodes (`faust -A examples.shared_config worker`).

Every worker has the whole configuration in a view that follows the compacted changelog of a shared map. Any process can
change it: `python -m examples.shared_config printer-7 20` sets a limit, and waits until it is committed. If two change
the same key at once, one fails, sees the other's value, and decides again. An actor reads its worker's copy of the
configuration while it handles a message, without waiting.
"""

import asyncio
import os
import sys

import msgspec

from actors import App, Context, SharedView

app = App("shared-config", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))


class Limits(msgspec.Struct):
    """What a printer may do."""

    pages: int
    color: bool = False


class Job(msgspec.Struct):
    """Something to print."""

    printer: str
    pages: int


config = app.shared("printers", value_type=Limits)
limits: SharedView[str, Limits] = app.view(config)

jobs = app.topic("print-jobs", key_type=str, value_type=Job)
answers = app.topic("print-answers", key_type=str, value_type=str)


@app.actor(jobs)
async def check(ctx: Context, job: Job) -> None:
    """Refuse what is larger than the printer's limit, as this worker knows it at the moment."""
    limit = limits.get(job.printer)
    if limit is None:
        answer = f"no printer {job.printer}"
    else:
        answer = "printed" if job.pages <= limit.pages else f"more than {limit.pages} pages"
    ctx.send(answers, key=ctx.key, value=answer)


async def set_pages(view: SharedView[str, Limits], printer: str, pages: int) -> Limits:
    """Change one field, whatever others change meanwhile."""
    while True:
        held = view.versioned(printer)
        wanted = Limits(pages, held.value.color if held.value is not None else False)
        if await view.publish(printer, wanted, version=held.version):
            return wanted


async def main(printer: str, pages: int) -> None:
    """Set a printer's limit from the command line."""
    async with limits:
        await set_pages(limits, printer, pages)
        for name, limit in limits.items():
            print(name, limit.pages, "pages", "in color" if limit.color else "")
    await app.close_asks()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
