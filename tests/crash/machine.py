"""Faults of a worker's machine that need root: no memory left, and a file system that becomes read-only."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from tests.crash.world import NAME, World
from tests.kafka.helpers import WorkerProcess, eventually

DISK_BYTES = 1 << 30
FSCK_CORRECTED = 1
MOUNT = 'mount -o loop,errors=remount-ro "$0" "$1" && shift && exec "$@"'
TRY_TRIGGER = ': >> "/sys/fs/ext4/$(basename "$(findmnt -n -o SOURCE "$0")")/trigger_fs_error"'


class SkippedError(Exception):
    """This machine doesn't allow the fault."""


async def run_out_of_memory(world: World) -> None:
    """The kernel kills a worker that allocates more than its cgroup may have."""
    worker = world.a_running_one()
    async with _memory_cgroup(f"{NAME}-{worker.pid}") as group:
        try:
            # Memory that the worker has already isn't counted: it is killed for the next page that it needs.
            (group / "cgroup.procs").write_text(str(worker.pid))
            await eventually(lambda: not worker.is_running(), what="the kernel to kill the worker")
        finally:
            worker.kill()
        assert worker.wait() == -signal.SIGKILL
        assert _kills(group) > 0, "the worker wasn't killed for want of memory"
    worker.start()


@contextlib.asynccontextmanager
async def _memory_cgroup(name: str) -> AsyncIterator[Path]:
    """Make a cgroup without memory below that of this process, whose limits go on to hold."""
    try:
        parent, limit = _parent_cgroup()
        group = parent / name
        group.mkdir()
    except (OSError, KeyError) as error:
        raise SkippedError(f"no memory cgroup can be made: {error}") from error
    try:
        try:
            (group / limit).write_text("0")
        except OSError as error:
            raise SkippedError(f"the memory of a cgroup can't be limited: {error}") from error
        yield group
    finally:
        await eventually(lambda: _removed(group), what=f"{group} to be empty")


def _parent_cgroup() -> tuple[Path, str]:
    """Return the nearest group that can have children with a limit of memory, and the limit's name."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    groups = {controllers: path for _, controllers, path in lines}
    if "memory" in groups:
        return Path(f"/sys/fs/cgroup/memory{groups['memory']}"), "memory.limit_in_bytes"
    group = Path(f"/sys/fs/cgroup{groups['']}")
    # In the second version of cgroups a group with processes has no children with limits.
    while "memory" not in (group / "cgroup.subtree_control").read_text().split():
        group = group.parent
    return group, "memory.max"


def _kills(group: Path) -> int:
    """Return how many processes of the group the kernel killed for want of memory."""
    names = [group / name for name in ("memory.oom_control", "memory.events")]
    lines = [line.split() for file in names if file.exists() for line in file.read_text().splitlines()]
    return sum(int(count) for name, count in lines if name == "oom_kill")


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


async def read_only_disk(world: World) -> None:
    """A worker's file system meets an error, and the kernel makes it read-only under open files; it is repaired."""
    worker = world.a_running_one()
    image = worker.folder.with_name("disk.img")
    # The mount is in a namespace of the worker's own: it ends with the worker, and the loop device with it.
    within = ("unshare", "--mount", "sh", "-c", MOUNT, str(image), str(worker.folder))
    async with _file_system(image, within):
        try:
            worker.kill()
            shutil.rmtree(worker.folder)
            await _start_and_own(worker, within, 2 * world.recovery_limit_s)
            seen = len(worker.log())
            (device,) = _loop_devices(image)
            await asyncio.to_thread(Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text, "1")
            await eventually(lambda: "Read-only file system" in worker.log()[seen:], what=lambda: worker.log()[seen:])
            worker.kill()
            await _unmounted(image)
            await _run("e2fsck", "-p", str(image), fine=(0, FSCK_CORRECTED))
            await _start_and_own(worker, within, 2 * world.recovery_limit_s)
        finally:
            worker.kill()
    worker.start()


@contextlib.asynccontextmanager
async def _file_system(image: Path, within: tuple[str, ...]) -> AsyncIterator[None]:
    """Make a file system in a file, and try whether it can be mounted and damaged."""
    try:
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        try:
            await _run("mkfs.ext4", "-q", "-F", str(image))
            await _run(*within, "sh", "-c", TRY_TRIGGER, within[-1])
        except OSError as error:
            raise SkippedError(f"no file system can be mounted and damaged: {error}") from error
        await _unmounted(image)
        yield
    finally:
        await _unmounted(image)
        await asyncio.to_thread(image.unlink, missing_ok=True)


async def _start_and_own(worker: WorkerProcess, within: tuple[str, ...], deadline_s: float) -> None:
    seen = len(worker.log())
    worker.start(within=within)
    # On an empty disk it reads all partitions of its view first.
    await eventually(lambda: " owns " in worker.log()[seen:], deadline_s=deadline_s, what=lambda: worker.log()[seen:])


async def _unmounted(image: Path) -> None:
    await eventually(lambda: not _loop_devices(image), what=f"{image} to be unmounted")


def _loop_devices(image: Path) -> list[str]:
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        # A device may be released meanwhile.
        with contextlib.suppress(OSError):
            found += [file.parents[1].name] if file.read_text().strip() == str(image) else []
    return found


async def _run(*command: str, fine: tuple[int, ...] = (0,)) -> str:
    """Run a command, and return what it writes.

    Raises:
        OSError: it isn't there, or failed.
    """
    done = await asyncio.to_thread(subprocess.run, command, check=False, capture_output=True, text=True)
    if done.returncode not in fine:
        raise OSError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
