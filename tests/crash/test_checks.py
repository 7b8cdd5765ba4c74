"""Each check of the crash run finds the damage that it is there for."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from actors._core.partitioner import partition_for
from dev.kafka import Cluster
from stores._core.record import Position, encode_metadata
from stores.rocks import RocksStore
from tests.crash import harness, rules
from tests.crash.checks import Findings, Placed, Record, Run, check_readers, check_run, fold_account, fold_stats
from tests.crash.chore_checks import COUNTS, ChoreFindings, Evidence, Line, check_chores, read_lines
from tests.crash.harness import CHORE_KINDS, FLAWS, Outcome, wrong_views
from tests.crash.world import CLICKS, INPUTS, PAIRED, PARTITIONS, World

KEYS = [b"a", b"b", b"a", b"a", b"b"]
VALUES = [3, 1, 5, 2, 7]


def good_run() -> Run:
    """Give a run with one input: lists that a test can damage."""
    stats: dict[bytes, dict[str, int]] = {}
    inputs, echoes, changelog = [], [], []
    for offset, (key, value) in enumerate(zip(KEYS, VALUES, strict=True)):
        held = stats.get(key)
        stats[key] = {
            "count": held["count"] + 1 if held else 1,
            "sum": held["sum"] + value if held else value,
            "min": min(held["min"], value) if held else value,
            "max": max(held["max"], value) if held else value,
        }
        inputs.append(Record(0, offset, key, b"%d" % value, 1_000 + offset))
        said = {"offset": offset, "value": value, "stats": stats[key]}
        echoes.append(Record(0, offset * 2, key, json.dumps(said).encode(), 1_000 + offset))
        changelog.append(Record(0, offset * 2, key, json.dumps(stats[key]).encode()))
    return Run(inputs={INPUTS[0]: inputs}, echoes=echoes, changelog=changelog, fold=fold_stats)


def good_pairs() -> Run:
    """Give a run with two inputs of one key: order 3, payment 2, order 5, payment 7."""
    balances = [3, 37 * 3 + 2, 31 * 113 + 5, 37 * 3508 + 7]
    inputs: dict[str, list[Record]] = {topic: [] for topic in PAIRED}
    echoes, changelog = [], []
    for place, (value, balance) in enumerate(zip((3, 2, 5, 7), balances, strict=True)):
        offset, topic = place // 2, PAIRED[place % 2]
        account = {"orders": (place + 2) // 2, "payments": (place + 1) // 2, "balance": balance}
        inputs[topic].append(Record(0, offset, b"a", b"%d" % value, place))
        said = {"input": topic, "offset": offset, "value": value, "stats": account}
        echoes.append(Record(0, place, b"a", json.dumps(said).encode(), place))
        changelog.append(Record(0, place, b"a", json.dumps(account).encode()))
    return Run(inputs=inputs, echoes=echoes, changelog=changelog, fold=fold_account)


GOOD = [good_run, good_pairs]


def found(run: Run) -> Findings:
    return check_run(run, Findings())


def counts(run: Run) -> dict[str, int]:
    """Give what was found wrong."""
    findings = found(run)
    assert not findings.clean
    return {name: count for name, count in dataclasses.asdict(findings).items() if count and name != "examples"}


def changed(record: Record, **changes: object) -> Record:
    said = {**json.loads(record.value or b""), **changes}
    return record._replace(value=json.dumps(said).encode())


@pytest.mark.parametrize("good", GOOD)
def test_a_good_run_is_clean(good: Callable[[], Run]) -> None:
    assert found(good()).clean


@pytest.mark.parametrize("good", GOOD)
def test_a_lost_input(good: Callable[[], Run]) -> None:
    run = good()
    del run.echoes[-1]
    assert counts(run) == {"lost": 1, "wrong_state": 1}


@pytest.mark.parametrize("good", GOOD)
def test_a_doubled_input(good: Callable[[], Run]) -> None:
    run = good()
    run.echoes.append(run.echoes[1]._replace(offset=99))
    assert counts(run) == {"doubled": 1}


def test_an_input_counted_twice_in_the_state_only() -> None:
    run = good_run()
    stats = json.loads(run.echoes[3].value or b"")["stats"]
    run.echoes[3] = changed(run.echoes[3], stats={**stats, "count": stats["count"] + 1})
    assert counts(run) == {"wrong_running_values": 1}


def test_an_echo_of_what_was_never_sent() -> None:
    run = good_run()
    run.echoes[2] = changed(run.echoes[2], value=6)
    assert counts(run)["wrong_running_values"]


@pytest.mark.parametrize(("good", "later"), [(good_run, 1), (good_pairs, 2)])
def test_echoes_out_of_order(good: Callable[[], Run], later: int) -> None:
    run = good()
    first, second = run.echoes[0], run.echoes[later]
    run.echoes[0], run.echoes[later] = first._replace(offset=second.offset), second._replace(offset=first.offset)
    assert counts(run)["out_of_order"] == 1


def test_inputs_in_another_order_than_the_recorded_one() -> None:
    run = good_pairs()
    one, two = run.echoes[1:3]
    run.echoes[1:3] = [one._replace(offset=2), two._replace(offset=1)]
    # Each input is in order: only the state tells that a payment was taken after the order behind it, or before.
    assert counts(run) == {"wrong_running_values": 3, "wrong_state": 1}


def test_a_payment_taken_for_an_order() -> None:
    run = good_pairs()
    run.echoes[1] = changed(run.echoes[1], input=PAIRED[0], offset=1)
    assert counts(run)["wrong_running_values"]


@pytest.mark.parametrize("good", GOOD)
def test_an_echo_of_another_time(good: Callable[[], Run]) -> None:
    run = good()
    run.echoes[1] = run.echoes[1]._replace(timestamp_ms=5)
    assert counts(run) == {"wrong_timestamps": 1}


@pytest.mark.parametrize("good", GOOD)
def test_a_state_that_lacks_the_last_write(good: Callable[[], Run]) -> None:
    run = good()
    del run.changelog[-1]
    assert counts(run) == {"wrong_state": 1}


def test_a_key_in_another_partition() -> None:
    run = good_run()
    run.changelog[:] = [record._replace(partition=1) for record in run.changelog]
    assert counts(run) == {"wrong_state": 4}


def test_a_deleted_key_is_missed() -> None:
    run = good_run()
    run.changelog.append(Record(0, 100, b"a", None))
    assert counts(run) == {"wrong_state": 1}


def test_a_reader_that_misses_or_repeats_records() -> None:
    records = good_run().echoes
    kafkas = [Placed(record.partition, record.offset, record.value or b"") for record in records]
    for ours, misread in ((records, 0), (records[1:], 1), ([*records, records[0]], 1), ([*records[1:], records[1]], 2)):
        findings = Findings()
        check_readers("topic", ours, kafkas, findings)
        assert (findings.misread, findings.clean) == (misread, misread == 0)


# --- the second actor ------------------------------------------------------------------------------------------------

CHORES = 400
SAID_AT_MS = 10_000_000


def timer_key(name: str) -> bytes:
    return b"n" + len(b"key").to_bytes(4, "big") + b"key" + name.encode()


@dataclasses.dataclass
class Story:
    """What a good run of the second actor leaves, as lists that a test can damage. All inputs are in one partition."""

    inputs: list[Record] = dataclasses.field(default_factory=list)
    said: list[Record] = dataclasses.field(default_factory=list)
    state: list[Record] = dataclasses.field(default_factory=list)
    kept: list[Record] = dataclasses.field(default_factory=list)
    timers: list[Record] = dataclasses.field(default_factory=list)
    effects: list[Record] = dataclasses.field(default_factory=list)
    lines: list[Line] = dataclasses.field(default_factory=list)

    def say(self, key: bytes, what: str, name: object, offset: int = 0, *, at_ms: int = SAID_AT_MS) -> None:
        value = json.dumps({"what": what, "name": str(name), "offset": offset}).encode()
        self.said.append(Record(0, len(self.said), key, value, at_ms))

    def act(self, key: bytes, label: str) -> None:
        self.say(key, "asked", label)
        for attempt in range(1, 4):
            self.lines.append(Line(f"id of {label}", key.decode(), label, 1, attempt))
            if not rules.act_fails(label, attempt):
                break
        self.write(self.effects, b"effect " + label.encode(), b"{}", None)
        if rules.act_answers(label):
            self.say(key, "done", label)

    def write(self, changelog: list[Record], key: bytes, *values: bytes | None) -> None:
        changelog += [Record(0, len(changelog) + each, key, value) for each, value in enumerate(values)]

    def wind(self, key: bytes, message: rules.Wind, *, is_cancelled: bool) -> None:
        name = str(message.number)
        is_far = message.wait_ms == rules.FAR_MS
        self.write(self.timers, timer_key(name), b"{}", *([] if is_far and not is_cancelled else [None]))
        if is_cancelled:
            self.say(key, "cancelled", name)
        elif not is_far:
            self.say(key, "rang", name)
            if rules.ring_acts(message.number):
                self.act(key, f"ring-{name}")

    def keep(self, key: bytes, message: rules.Keep) -> None:
        name = b"%d" % message.number
        self.write(self.kept, name, name, *([] if message.ttl_ms is None else [None]))
        if message.ttl_ms is not None:
            self.say(name, "expired", message.number)
            if rules.expiry_acts(message.number):
                self.act(name, f"expired-{message.number}")
        self.write(self.state, key, b"[]", None)
        self.say(key, "left", message.number)

    def found(self) -> ChoreFindings:
        return check_chores(Evidence(**vars(self)))

    def places(self, what: str, name: str = "") -> list[int]:
        """Give where something was said: `what`, of any name that begins with `name`."""
        text = f'"{what}", "name": "{name}'.encode()
        return [place for place, record in enumerate(self.said) if text in (record.value or b"")]

    def first(self, what: str, name: str = "") -> int:
        return self.places(what, name)[0]

    def again(self, record: Record) -> None:
        self.said.append(record._replace(offset=len(self.said)))


def good_story() -> Story:
    story = Story()
    messages = [rules.chore(number) for number in range(CHORES)]
    cancelled = {message.target for _, message in messages if isinstance(message, rules.Unwind)}
    for offset, (key, message) in enumerate(messages):
        story.inputs.append(Record(0, offset, key, msgspec.json.encode(message), 1_000_000))
        if isinstance(message, rules.Refuse):
            continue
        story.say(key, "handled", message.number, offset)
        if isinstance(message, rules.Wind):
            story.wind(key, message, is_cancelled=message.number in cancelled)
        elif isinstance(message, rules.Keep):
            story.keep(key, message)
        elif isinstance(message, rules.Call):
            story.act(key, f"call-{message.number}")
    return story


def counted(story: Story) -> dict[str, int]:
    """Give the counts that aren't 0."""
    findings = story.found()
    assert not findings.clean
    return {name: times for name, times in findings.counts.items() if times}


def test_a_good_story_is_clean_and_has_everything() -> None:
    findings = good_story().found()
    assert findings.clean, findings.examples
    assert findings.seen.keys() == set(CHORE_KINDS)


def test_every_count_has_a_test() -> None:
    text = Path(__file__).read_text()
    assert [name for name in COUNTS if f'"{name}"' not in text] == []


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("handled", "chores_lost"),
        ("rang", "timers_lost"),
        ("cancelled", "timers_lost"),
        ("expired", "expired_lost"),
        ("left", "expired_lost"),
        ("done", "results_lost"),
    ],
)
def test_something_that_did_not_happen(what: str, count: str) -> None:
    story = good_story()
    del story.said[story.first(what, "10" if what == "cancelled" else "")]
    assert counted(story)[count] == 1


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("handled", "chores_doubled"),
        ("rang", "timers_doubled"),
        ("cancelled", "timers_doubled"),
        ("expired", "expired_doubled"),
        ("left", "expired_doubled"),
        ("asked", "effects_doubled"),
        ("done", "results_doubled"),
    ],
)
def test_something_that_happened_again(what: str, count: str) -> None:
    story = good_story()
    story.again(story.said[story.first(what)])
    assert counted(story)[count] == 1


@pytest.mark.parametrize(
    ("what", "name", "count"),
    [
        ("handled", 9, "chores_unasked"),
        ("rang", 9, "timers_unasked"),
        ("expired", 9, "expired_unasked"),
        ("left", 9, "expired_unasked"),
        ("done", "call-10", "results_unasked"),
    ],
)
def test_something_of_a_message_that_was_refused(what: str, name: object, count: str) -> None:
    story = good_story()
    assert isinstance(rules.chore(9)[1], rules.Refuse)
    story.say(b"key", what, name, 9)
    assert counted(story)[count] == 1


def test_a_timer_that_was_cancelled_and_rang() -> None:
    story = good_story()
    record = story.said[story.first("cancelled")]
    story.again(record._replace(value=(record.value or b"").replace(b"cancelled", b"rang")))
    assert counted(story)["timers_doubled"] == 1


def test_a_timer_that_is_far_away_and_rang() -> None:
    story = good_story()
    far = next(record.key for record in story.timers if [each.key for each in story.timers].count(record.key) == 1)
    story.say(b"key", "rang", (far or b"").removeprefix(timer_key("")).decode())
    assert counted(story)["timers_unasked"] == 1


def test_a_timer_that_rang_early() -> None:
    story = good_story()
    rang = [json.loads(record.value or b"") for record in story.said]
    waits = {str(number): rules.chore(number)[1] for number in range(CHORES)}
    by_clock = [
        place
        for place, told in enumerate(rang)
        if told["what"] == "rang" and not waits[told["name"]].by_stream and waits[told["name"]].wait_ms > 0
    ]
    story.said[by_clock[0]] = story.said[by_clock[0]]._replace(timestamp_ms=1_000_000)
    assert counted(story) == {"timers_early": 1}


def test_a_timer_that_is_left_or_gone() -> None:
    story = good_story()
    story.write(story.timers, timer_key("11"), b"{}")
    assert counted(story) == {"timers_left": 1}
    story = good_story()
    story.write(story.timers, timer_key("20"), None)
    assert counted(story) == {"timers_left": 1}


def test_what_expired_without_a_tombstone() -> None:
    story = good_story()
    story.kept.remove(next(record for record in story.kept if record.value is None))
    assert counted(story) == {"expired_left": 1}
    story = good_story()
    story.write(story.state, b"chore-000", b"[1]")
    assert counted(story) == {"expired_left": 1}


def test_what_was_never_kept() -> None:
    story = good_story()
    story.kept = [record for record in story.kept if record.key != b"5"]
    assert counted(story) == {"expired_left": 1}


def test_what_does_not_expire_and_is_gone() -> None:
    story = good_story()
    story.write(story.kept, b"4", None)
    assert counted(story) == {"kept_lost": 1}


@pytest.mark.parametrize(("what", "count"), [("left", "expired_out_of_order"), ("handled", "chores_out_of_order")])
def test_numbers_and_inputs_out_of_order(what: str, count: str) -> None:
    story = good_story()
    said, places = story.said, story.places(what)
    one, two = next((a, b) for a, b in itertools.combinations(places, 2) if said[a].key == said[b].key)
    said[one], said[two] = said[two]._replace(offset=one), said[one]._replace(offset=two)
    assert counted(story)[count] >= 1


def test_an_effect_that_was_never_called_or_never_succeeded() -> None:
    story = good_story()
    label = next(line.label for line in story.lines if line.attempt > 1)
    story.lines = [line for line in story.lines if line.label != label]
    assert counted(story)["effects_lost"] == 1
    story = good_story()
    story.lines = [line for line in story.lines if line.label != label or rules.act_fails(label, line.attempt)]
    assert any(line.label == label for line in story.lines)
    assert counted(story)["effects_lost"] == 1


@pytest.mark.parametrize("by", ["call", "ring", "expired"])
def test_an_effect_that_the_commit_did_not_hold(by: str) -> None:
    story = good_story()
    del story.said[story.first("asked", by)]
    found = counted(story)
    assert found["effects_lost"] == 1
    assert found["effects_unasked"] >= 1


def test_an_effect_that_nobody_asked_for() -> None:
    story = good_story()
    story.lines.append(Line("id", "chore-000", "call-9", 1, 1))
    assert counted(story)["effects_unasked"] == 1


def test_an_effect_under_another_key() -> None:
    story = good_story()
    story.lines[0] = story.lines[0]._replace(key="another")
    assert counted(story)["effects_unasked"] == 1


def test_effects_out_of_order() -> None:
    story = good_story()
    by_key: dict[str, list[int]] = {}
    for place, line in enumerate(story.lines):
        by_key.setdefault(line.key, []).append(place)
    one, two = next(
        (places[0], later)
        for places in by_key.values()
        for later in places
        if story.lines[later].label != story.lines[places[0]].label
    )
    story.lines[one], story.lines[two] = story.lines[two], story.lines[one]
    assert counted(story)["effects_out_of_order"] >= 1


def test_a_later_effect_tried_before_the_one_in_front_of_it_succeeded() -> None:
    story = good_story()
    at, failed = next((at, line) for at, line in enumerate(story.lines) if rules.act_fails(line.label, line.attempt))
    later = next(line for line in story.lines[at:] if line.key == failed.key and line.label != failed.label)
    story.lines.insert(at + 1, later)
    assert counted(story) == {"effects_out_of_order": 1}


def test_an_effect_with_two_ids_and_two_with_one() -> None:
    story = good_story()
    story.lines.append(story.lines[0]._replace(id="another"))
    assert counted(story) == {"effects_of_two_ids": 1}
    story = good_story()
    story.lines.append(story.lines[0]._replace(id=story.lines[-1].id))
    assert counted(story)["effects_of_two_ids"] >= 1


def test_an_effect_that_is_called_again_is_no_damage() -> None:
    story = good_story()
    story.lines.append(story.lines[0]._replace(token=2))
    assert story.found().clean


def test_an_outbox_that_is_not_empty() -> None:
    story = good_story()
    story.write(story.effects, b"effect", b"{}")
    assert counted(story) == {"outbox_left": 1}


def test_a_run_that_did_not_try_something_is_not_clean() -> None:
    happened = dict.fromkeys(CHORE_KINDS, 1)
    good = Outcome(1, 1, *[0] * len(FLAWS), 1.0, 1.0, 1.0, dict.fromkeys(COUNTS, 0), happened)
    assert good.clean
    assert not dataclasses.replace(good, happened={**happened, "rang": 0}).clean
    assert not any(dataclasses.replace(good, chores={**good.chores, name: 1}).clean for name in COUNTS)
    assert not any(dataclasses.replace(good, **{name: 1}).clean for name in FLAWS)
    # Kafka Streams has no second actor.
    assert dataclasses.replace(good, chores={}, happened={}).clean
    told = good.as_dict()
    assert told["happened"] == happened
    assert "chores" not in told
    assert {name: told[name] for name in COUNTS} == good.chores


@pytest.mark.parametrize(
    ("write", "slots", "count"),
    [
        ((b"a", b"as it is"), "a", 0),
        ((b"a", b"an older value"), "a", 1),
        ((b"deleted", b"and here"), "a", 1),
        ((b"a", None), "a", 1),
        ((b"a", b"as it is"), "ab", PARTITIONS),
        ((b"a", b"as it is"), "", PARTITIONS),
    ],
)
async def test_partitions_of_views_that_are_not_the_fold_of_the_topic(
    write: tuple[bytes, bytes | None], slots: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "SETTLE_S", 0.0)
    log = [(b"a", b"an older value"), (b"deleted", b"x"), (b"a", b"as it is"), (b"deleted", None)]
    records = [Record(0, offset, key, value) for offset, (key, value) in enumerate(log)]
    (key, value), metadata = write, encode_metadata(1, 1)
    for slot, number in itertools.product(slots, range(PARTITIONS)):
        store = RocksStore.open(tmp_path / f"v1/views/{slot}/stores/{slot}/{number}")
        content = {b"a": metadata + b"as it is", key: None if value is None else metadata + value}
        store.apply(content.items() if number == 0 else (), Position(0, len(log), 1, 1, "id"))
        store.close()

    async def read(_: str) -> list[Record]:
        return records

    world = SimpleNamespace(workers=[SimpleNamespace(folder=tmp_path)], read=read, partitions=PARTITIONS)
    assert await wrong_views(world) == count


@pytest.mark.parametrize("partitions", [PARTITIONS, 64])
def test_progress_is_asked_of_the_partitions_that_have_keys(partitions: int, tmp_path: Path) -> None:
    world = World(Cluster(tmp_path, ""), tmp_path, random.Random(1), partitions)
    chores = {partition_for(rules.chore(number)[0], partitions) for number in range(5_000)}
    fed = world.fed()
    assert {part.partition for part in fed if part.topic == INPUTS[0]} == set(range(partitions))
    assert {part.partition for part in fed if part.topic == INPUTS[1]} == chores
    assert {part.partition for part in fed if part.topic == CLICKS} <= set(range(PARTITIONS))


def test_lines_that_were_cut_short_are_left_out() -> None:
    line = Line("id", "key", "call-1", 1, 1)
    raw = json.dumps(line._asdict()).encode()
    assert read_lines(b"\n" + raw + b"\n" + raw[:20] + b"\n" + raw + b"\n" + b"12\n") == [line, line]
