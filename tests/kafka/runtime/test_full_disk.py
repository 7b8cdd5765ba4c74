"""A worker whose disk is full: nothing is lost, and it goes on when there is space, started again or not."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.grown_app"
VALUE = b'"%s"' % (b"x" * 4000)
REMEDY = "Free some space: nothing is lost, and it goes on then; taking over again"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no mounts")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Take all space that is left; give the file."""
    file = disk / "fill"
    with file.open("wb", buffering=0) as full, contextlib.suppress(OSError):
        while full.write(bytes(4096)):
            pass
    assert shutil.disk_usage(disk).free == 0
    return file


@pytest.mark.nightly
async def test_nothing_is_lost(brokers: str, disk: Path, tmp_path: Path) -> None:
    name = unique("full")
    await make_topics(brokers, f"{name}-in")
    await make_topics(brokers, f"{name}-plain", f"{name}-out", partitions=1)
    worker = WorkerProcess(MODULE, brokers, disk / "data", APP_NAME=name, SAYS="1")
    worker.log_file = tmp_path / "log"
    worker.start()
    await eventually(lambda: worker.log().count(f"actor keep owns {name}-in") == 2, what=worker.log)
    sent = 0

    async def work() -> None:
        nonlocal sent
        await send(brokers, f"{name}-in", [(b"key-%d" % number, VALUE) for number in range(sent, sent + 1000)])
        sent += 1000

    async def all_ran_once() -> bool:
        found = [(record.key, record.value) for record in await read_all(brokers, f"{name}-out")]
        assert len(found) == len(set(found)), "a message ran twice, or a key's state was lost"
        return set(found) == {(b"key-%d" % number, b"first") for number in range(sent)}

    full = fill(disk)
    await work()
    await eventually(lambda: REMEDY in worker.log(), what=worker.log)
    full.unlink()
    await work()
    await eventually(all_ran_once, what=worker.log)
    said = worker.log().count(REMEDY)
    full = fill(disk)
    await work()
    await eventually(lambda: worker.log().count(REMEDY) > said, what=worker.log)
    worker.kill()
    said = worker.log().count(REMEDY)
    worker.start()
    await eventually(lambda: worker.log().count(REMEDY) > said, what=worker.log)
    full.unlink()
    await work()
    await eventually(all_ran_once, what=worker.log)
    assert await asyncio.to_thread(worker.terminate) == 0
