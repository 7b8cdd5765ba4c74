"""A program with nothing but a view: waits for the key `go`, and prints all that it holds."""

import asyncio
import json
import sys
from datetime import timedelta

from actors import View


async def main(brokers: str, topic: str, folder: str) -> None:
    """Run."""
    async with View(topic, broker=brokers, value_type=str, folder=folder or None) as view:
        print("ready", flush=True)
        await view.wait_for("go", timeout=timedelta(seconds=60))
        await view.caught_up()
        print(json.dumps(dict(view.items())), flush=True)


asyncio.run(main(*sys.argv[1:]))
