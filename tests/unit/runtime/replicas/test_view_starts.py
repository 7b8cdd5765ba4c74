"""Views that start, also again on what they kept, on a simulated broker."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.errors import RestoreError
from actors.ports import TopicPartition
from actors.runtime.state.restore import LOOK_BACK
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.unit.runtime.replicas.test_views import HOUR_MS, World


@pytest.fixture
def world() -> Iterator[World]:
    made = World(delete_retention_ms=HOUR_MS)
    yield made
    made.loop.close()


def test_a_second_start_reads_the_tail_only(world: World, tmp_path: Path):
    async def test() -> None:
        count, partitions = 2_000, 2
        for number in range(count):
            world.put(f"k{number}", "1")
        async with world.view(tmp_path / "v"):
            world.put("k1", "2")
        assert sum(world.read) == count
        world.read.clear()
        for number in range(4):
            world.put(f"k{number}", "3")
        async with world.view(tmp_path / "v") as view:
            # And what lies shortly before it, to see whether it is still the same log.
            assert 4 <= sum(world.read) <= 5 + partitions * LOOK_BACK
            assert view.get("k0") == "3"
            assert len(view) == count

    world.run(test())


def test_a_second_start_goes_on_behind_what_owners_wrote_meanwhile(world: World, tmp_path: Path, caplog):
    """Write metadata grows while a changelog is followed, and tells at the next start whether it is another log."""

    def write(epoch: int, offset: int) -> None:
        metadata = [(METADATA_HEADER, encode_metadata(epoch, offset))]
        world.cluster.produce(TopicPartition("t", 0), [(b"key", b"%d" % offset, metadata)])

    async def test() -> None:
        write(1, 0)
        async with world.view(tmp_path / "v") as view:
            write(1, 1)
            write(2, 2)
            await view.caught_up()
        async with world.view(tmp_path / "v") as view:
            assert view.get("key") == "2"

    with caplog.at_level(logging.WARNING):
        world.run(test())
    assert caplog.text == ""


@pytest.mark.parametrize("how", ["made anew", "compacted away", "long away"])
def test_a_kept_view_that_cant_be_continued_is_built_anew(world: World, tmp_path: Path, how: str, caplog):
    async def test() -> None:
        for number in range(20):
            world.put(f"k{number}", "1")
        async with world.view(tmp_path / "v"):
            pass
        if how == "made anew":
            world.cluster.make_topic("t", 2, is_compacted=True)
        else:
            for key in ("k3", "k4"):
                world.put(key, None)
            for number in range(5, 10):
                world.put(f"k{number}", "2")
            for log in world.cluster.topic("t").partitions:
                log.compact(world.clock.wall_ms(), log.end)
                if how == "compacted away":
                    log.delete_before(log.end - 1)
        if how == "long away":
            await asyncio.sleep(3700)
            for log in world.cluster.topic("t").partitions:
                log.compact(world.clock.wall_ms(), log.end)
        world.put("new", "1")
        async with world.view(tmp_path / "v") as view:
            assert view.get("new") == "1"
            assert "k3" not in view
            assert len(view) == {"made anew": 1, "long away": 19}.get(how, len(view))

    with caplog.at_level(logging.WARNING):
        world.run(test())
    assert "rebuilding the store" in caplog.text


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS - 1000])
def test_a_clock_that_is_set_during_the_first_read_has_it_read_again(
    world: World, tmp_path: Path, is_kept: bool, step_ms: int
):
    async def test() -> None:
        world.put("a", "1")
        world.put("a", "2")
        world.step_ms = step_ms
        async with world.view(tmp_path / "v" if is_kept else None) as view:
            assert view.get("a") == "2"
            assert sum(world.read) == 4

    world.run(test())


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_topic_that_is_made_anew_during_the_first_read_is_read(
    world: World, tmp_path: Path, is_kept: bool, partitions: int
):
    async def test() -> None:
        for number in range(10):
            world.put(f"k{number}", "old")

        def happens() -> None:
            world.cluster.delete_topic("t")
            world.cluster.make_topic("t", partitions, is_compacted=True, delete_retention_ms=HOUR_MS)
            world.put("a", "new")

        world.happening = happens
        async with world.view(tmp_path / "v" if is_kept else None, chunk_records=1) as view:
            assert dict(view.items()) == {"a": "new"}
            world.put("b", "new")
            await view.caught_up()
            assert dict(view.items()) == {"a": "new", "b": "new"}

    world.run(test())


@pytest.mark.parametrize("is_kept", [False, True])
def test_records_that_are_deleted_during_the_first_read_do_not_end_it(
    world: World, tmp_path: Path, is_kept: bool, caplog
):
    async def test() -> None:
        for number in range(10):
            world.put(f"k{number}", "1", partition=0)
        world.happening = lambda: world.cluster.log(TopicPartition("t", 0)).delete_before(7)
        async with world.view(tmp_path / "v" if is_kept else None, chunk_records=1) as view:
            assert [key for key, _ in view.items()] == ["k7", "k8", "k9"]

    world.run(test())
    assert "following t: t[0] doesn't have offset 1 any more" in caplog.text


@pytest.mark.parametrize("step_ms", [0, -HOUR_MS // 2])
def test_a_first_read_that_is_longer_than_deletes_are_kept_is_refused(world: World, step_ms: int):
    async def test() -> None:
        world.put("a", "1")
        world.put("a", "2")
        world.read_s, world.step_ms = HOUR_MS / 1000, step_ms
        with pytest.raises(RestoreError, match=r"longer than delete.retention.ms=3600000.*: raise the topic's setting"):
            await world.view().open()

    world.run(test())
