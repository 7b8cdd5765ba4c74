"""A clean stop on the test driver: what SIGTERM does, and a rebalance to a partition that moves."""

from collections.abc import Callable

from actors.testing import ActorTestDriver

STOP_S = 5.0


def leave(
    driver: ActorTestDriver,
    *,
    keep_disk: bool = True,
    settle: bool = True,
    before_start: Callable[[], None] = lambda: None,
) -> None:
    """Stop the worker as SIGTERM does, and start the next one, on the same disk or on an empty one."""
    process, worker = driver._process, driver._worker
    assert process is not None
    assert worker is not None

    async def stop() -> None:
        await process.spawn(worker.stop(STOP_S), name="stop")

    driver._run(stop())
    before_start()
    driver.crash(keep_disk=keep_disk, settle=settle)
