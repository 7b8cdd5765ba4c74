"""Where a reset leads to, what belongs together, and the marks that it commits."""

from __future__ import annotations

import pytest

from actors import App
from actors._core.task.commit import CommitMark, parse_mark
from actors._core.task.takeover import LogBounds
from actors._core.task.topic_ids import TopicIds
from actors.admin.reset.moves import Move, marked
from actors.admin.reset.scope import scope_of
from actors.admin.reset.targets import Target, parse_target
from actors.errors import ConfigurationError
from actors.ports import Committed, OwnerInput, OwnerRecord, TopicPartition

OLD, NEW, INPUT = (f"00000000-0000-0000-0000-00000000000{number}" for number in (1, 2, 3))
SOURCE = TopicPartition("in", 0)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", Target(name="earliest")),
        ("latest", Target(name="latest")),
        ("1970-01-01T00:00:01Z", Target(at_ms=1000)),
        ("1970-01-01T00:00:01", Target(at_ms=1000)),
        ("1970-01-01T02:00:01+02:00", Target(at_ms=1000)),
        ("in:0=15, in:1=0", Target(offsets={SOURCE: 15, TopicPartition("in", 1): 0})),
        ("a:b:3=7", Target(offsets={TopicPartition("a:b", 3): 7})),
        ("1970-01-01T00:00:01.001Z", Target(at_ms=1001)),
        ("2004-05-27T07:39:12.241999+00:00", Target(at_ms=1_085_643_552_241)),
    ],
)
def test_targets(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("earlyest", "did you mean earliest?"),
        ("", "there is no target ''"),
        ("yesterday", "there is no target 'yesterday'"),
        ("1969-12-31", "is before 1970"),
        ("in=3", "'in=3' is no offset"),
        ("in:0=-1", "'in:0=-1' is no offset"),
        ("in:x=1", "is no offset"),
        ("in:0=1,in:0=2", "is there twice"),
        ("in:0=" + "9" * 19, "is no offset"),
    ],
)
def test_what_is_no_target(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_target(text)
    assert said in str(error.value)


def an_app() -> App:
    app = App("shop", broker="kafka://127.0.0.1:1")
    app.actor(app.topic("in"), name="plain")(lambda ctx, value: None)
    app.actor(app.topic("keyed"), by="id", name="by-id")(lambda ctx, value: None)
    return app


def test_what_belongs_together() -> None:
    app = an_app()
    assert [one.name for one in scope_of(app, ["plain"]).actors] == ["plain"]
    for name in ("by-id", "keyed-repartition"):
        scope = scope_of(app, [name])
        assert {one.name for one in scope.actors} == {"by-id", "keyed-repartition"}
        assert (scope.outer, scope.made) == (["keyed"], {"shop--by-id-keyed-repartition"})
        assert scope.made <= scope.forwarded
    assert len(scope_of(app, []).actors) == 3
    with pytest.raises(ConfigurationError, match="there is no actor 'plane', did you mean plain"):
        scope_of(app, ["plane"])


def a_move(offset: int, before: Committed | None) -> Move:
    return Move(actor="a", source=SOURCE, before=before, offset=offset, bounds=LogBounds(2, 9))


def made(before: Committed | None, *, owner: OwnerRecord | None = None, is_without_state: bool) -> CommitMark | None:
    found = marked(
        [a_move(4, before)],
        committed={"in": before},
        owner=owner,
        inputs={"in": INPUT},
        changelogs={"s": NEW},
        is_without_state=is_without_state,
    )
    if found is None:
        return None
    epoch, offsets = found
    mark = parse_mark(offsets[SOURCE].metadata)
    assert (mark.epoch if mark is not None else 0, offsets[SOURCE].offset) == (epoch, 4)
    return mark


def test_a_mark_is_of_a_newer_epoch_and_voids_what_the_state_knows_of_offsets() -> None:
    topics = TopicIds.of(INPUT, {"s": OLD}, since=2)
    before = Committed(8, CommitMark(5, 7, "n", finished="BQ==", now_ms=99, topics=topics).encode())
    for is_without_state, changelog in ((False, OLD), (True, NEW)):
        mark = made(before, is_without_state=is_without_state)
        assert mark is not None
        assert mark.topics is not None
        assert (mark.epoch, mark.finished, mark.now_ms) == (6, "", 99)
        assert (mark.topics.since, mark.topics.input_id, mark.topics.is_recreated) == (6, INPUT, False)
        assert mark.topics.changelog_id("s") == changelog


def test_an_input_that_was_created_again_is_known_as_such() -> None:
    topics = TopicIds.of(OLD, {"s": OLD})
    mark = made(Committed(8, CommitMark(5, 7, "n", topics=topics).encode()), is_without_state=False)
    assert mark is not None
    assert mark.topics is not None
    assert mark.topics.is_recreated


def test_the_registry_knows_an_epoch_where_the_offset_is_gone_or_set_by_hand() -> None:
    owner = OwnerRecord("a", 0, 7, "w", "", 1, (OwnerInput("in", "", None),))
    for before in (None, Committed(3, "by hand")):
        mark = made(before, owner=owner, is_without_state=False)
        assert mark is not None
        assert mark.epoch == 8
        assert made(before, is_without_state=False) is None, "whose state it is isn't known"
        assert made(before, is_without_state=True) is not None


def test_what_becomes_of_records() -> None:
    assert a_move(4, Committed(8, "")).effect == "4 offsets again"
    assert a_move(8, Committed(4, "")).effect == "4 offsets skipped"
    assert a_move(2, None).effect == a_move(5, Committed(5, "")).effect == "-"
