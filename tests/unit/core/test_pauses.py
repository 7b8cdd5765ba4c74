"""Which tasks the registry's records pause."""

from __future__ import annotations

import msgspec
import pytest

from actors._core.outside import MALFORMED
from actors._core.task.pauses import MAX_AT_MS, MAX_BY_CHARS, Pause, Pauses, Release, pause_key, release_key


def told(pauses: Pauses, partition: int | None, *, is_paused: bool, actor: str = "a") -> None:
    pause = Pause(actor=actor, partition=partition, is_paused=is_paused, at_ms=7, by="ann")
    pauses.take(pause_key(actor, partition), msgspec.json.encode(pause))


def paused(pauses: Pauses, actor: str = "a") -> list[int]:
    return [partition for partition in range(4) if pauses.of(actor, partition) is not None]


def test_the_newest_record_about_a_task_decides() -> None:
    pauses = Pauses()
    told(pauses, None, is_paused=True)
    told(pauses, None, is_paused=True, actor="b")
    assert paused(pauses) == [0, 1, 2, 3]
    told(pauses, 2, is_paused=False)
    assert paused(pauses) == [0, 1, 3]
    told(pauses, 3, is_paused=True)
    told(pauses, None, is_paused=False)
    assert paused(pauses) == []
    told(pauses, 1, is_paused=True)
    assert paused(pauses) == [1]
    told(pauses, None, is_paused=True)
    assert paused(pauses) == [0, 1, 2, 3]
    assert paused(pauses, "b") == [0, 1, 2, 3]


def test_a_record_that_was_removed_says_nothing() -> None:
    pauses = Pauses()
    told(pauses, None, is_paused=True)
    told(pauses, 2, is_paused=True)
    assert pauses.keys("a") == [b"pause:a", b"pause:a/2"]
    assert pauses.keys("b") == []
    pauses.take(b"pause:a", None)
    pauses.take(b"pause:never", None)
    assert paused(pauses) == [2]


@pytest.mark.parametrize(
    "change",
    [{"actor": "b"}, {"partition": 1}, {"partition": None}, {"at_ms": -1}, {"at_ms": 2**60}, {"by": "x" * 201}],
    ids=str,
)
def test_a_record_that_can_not_be_read_changes_nothing(change: dict[str, object]) -> None:
    assert MAX_BY_CHARS == 200
    pauses = Pauses()
    told(pauses, 0, is_paused=True)
    lie = {"actor": "a", "partition": 0, "is_paused": False, "at_ms": 7, "by": "ann"} | change
    with pytest.raises(MALFORMED):
        pauses.take(b"pause:a/0", msgspec.json.encode(lie))
    assert paused(pauses) == [0]


def release_of(topic: str = "in", time_ms: int = 5, at_ms: int = 7, by: str = "ann") -> Release:
    return Release(actor="a", topic=topic, partition=3, time_ms=time_ms, at_ms=at_ms, by=by)


def test_a_release_is_of_one_feed_of_an_actor_until_it_is_removed() -> None:
    pauses, key = Pauses(), release_key("a", "in", 3)
    pauses.take(key, msgspec.json.encode(release_of()))
    pauses.take(key, msgspec.json.encode(release_of(time_ms=9)))
    assert (pauses.released("a"), pauses.released("b"), paused(pauses)) == ([release_of(time_ms=9)], [], [])
    assert pauses.keys("a") == [key]
    pauses.take(key, None)
    assert pauses.released("a") == []


@pytest.mark.parametrize(
    "release",
    [
        release_of("other"),
        release_of(time_ms=-2),
        release_of(time_ms=MAX_AT_MS + 1),
        release_of(at_ms=-1),
        release_of(by="x" * (MAX_BY_CHARS + 1)),
    ],
)
def test_a_release_that_is_none_changes_nothing(release: Release) -> None:
    pauses, key = Pauses(), release_key("a", "in", 3)
    with pytest.raises(MALFORMED):
        pauses.take(key, msgspec.json.encode(release))
    assert pauses.released("a") == []
