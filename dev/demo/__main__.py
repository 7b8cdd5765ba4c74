"""Runs the demo, and stops what it started, however it ends.

50,000 run commands, each asked for twice, go to a real broker by Kafka's own console producer. Two
workers run each command once; one of them is killed while it is busy, and started again. Then Spark rebuilds the
state from the changelog. The last commands come, and an audit goes on from the rebuild: it reads what the changelog
has behind it, and compares all keys with what the workers hold. All files are in `.local/demo`.

The last line on standard output is a JSON object; the exit code is 1 if a number in it isn't what it has to be.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, replace

from aiokafka.errors import KafkaError

from dev.demo.job import Outcome, demo, take_down
from dev.demo.names import FOLDER, DemoError
from dev.demo.progress import Steps
from dev.kafka import LocalKafkaError


@contextmanager
def fresh_folder() -> Iterator[None]:
    """Take the folder for this process, ending and deleting what an earlier demo left in it.

    Raises:
        DemoError: another demo runs in it.
    """
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with FOLDER.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another demo runs in {FOLDER}: wait for its end") from None
        take_down(FOLDER / "kafka")
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        yield


async def guarded(steps: Steps) -> Outcome:
    """Do everything, and stop what was started.

    A signal cancels the work; a second one changes nothing, because the end is bounded in time.

    Raises:
        DemoError: something is off, or a signal came.
    """
    loop, task, stack = asyncio.get_running_loop(), asyncio.current_task(), AsyncExitStack()
    if task is None:
        raise AssertionError("a coroutine runs in a task")
    stopped: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not stopped:
            task.cancel()
        stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    try:
        return await demo(steps, stack)
    except asyncio.CancelledError:
        raise DemoError(f"stopped by {stopped[0].name if stopped else 'cancellation'}") from None
    finally:
        stopped.append(signal.SIGTERM)
        with steps.step("everything that was started stops"):
            await stack.aclose()


def main() -> int:
    """Run the demo; give the exit code."""
    began = time.monotonic()
    steps = Steps()
    try:
        with fresh_folder():
            logging.basicConfig(filename=FOLDER / "demo.log")
            outcome = asyncio.run(guarded(steps))
            shutil.rmtree(FOLDER / "kafka", ignore_errors=True)
    except (DemoError, LocalKafkaError, KafkaError) as failure:
        steps.say(f"the demo failed: {failure}; logs are in {FOLDER}")
        return 1
    seconds = round(time.monotonic() - began, 1)
    outcome = replace(outcome, seconds=seconds)
    for problem in outcome.problems():
        steps.say(f"the demo failed: {problem}; logs are in {FOLDER}")
    print(json.dumps(asdict(outcome)))
    return 1 if outcome.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
