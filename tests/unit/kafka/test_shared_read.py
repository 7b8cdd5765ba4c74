"""One read for all callers that wait when it begins."""

import asyncio

import pytest

from actors._kafka.admin.asking import SharedRead


async def test_callers_of_the_same_time_share_a_read_and_later_ones_get_a_later_read():
    begun, go_on = 0, asyncio.Event()

    async def read():
        nonlocal begun
        begun += 1
        await go_on.wait()

    shared = SharedRead(read)
    first = asyncio.create_task(shared())
    await asyncio.sleep(0)
    later = [asyncio.create_task(shared()) for _ in range(5)]
    await asyncio.sleep(0)
    assert begun == 1
    go_on.set()
    await asyncio.gather(first, *later)
    assert begun == 2, "the first read began before the later callers asked"


async def test_an_error_is_the_callers_and_the_next_one_reads_again():
    errors = [ValueError("away"), None]

    async def read():
        error = errors.pop(0)
        if error is not None:
            raise error

    shared = SharedRead(read)
    with pytest.raises(ValueError, match="away"):
        await shared()
    await shared()
    assert errors == []
