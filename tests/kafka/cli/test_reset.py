"""`faust reset` on real brokers: what workers make of it, and what a death in the middle leaves."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from actors._core.partitioner import partition_for
from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.topics import Topics
from actors.admin.reset import reset as steps
from actors.admin.reset.reset import Resetter
from actors.admin.reset.scope import scope_of
from actors.admin.reset.targets import parse_target
from actors.errors import ConfigurationError
from actors.ports import TopicPartition
from tests.kafka import forked
from tests.kafka.apps.reset_app import make
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, send, topic_id, unique

MODULE = "tests.kafka.apps.reset_app"
KEYS = [f"key-{number}".encode() for number in range(6)]
PARTITIONS = 2
TOPICS = ("in", "values", "out", "watched", "left", "right", "seen")
STORES = ("counts", "count-timers", "by-value", "minutes", "watch-timers", "watch-effects", "watch-parked", "pair")
HOME = partition_for(KEYS[0], PARTITIONS)
BAD = next(key for n in range(1_000) if partition_for(key := b"bad-%d" % n, PARTITIONS) == HOME)
MINUTE_MS = 60_000
BEGIN_MS = time.time_ns() // 1_000_000 // MINUTE_MS * MINUTE_MS - 60 * MINUTE_MS
WATCHED = [(0, "first"), (10, "second"), (70, "last"), (71, "bad")]
PAIRED = [("left", 0, "a"), ("right", 5, "b"), ("left", 20, "c"), ("left", 100, "d")]
SEEN = Counter(
    {("final", 2): 1, ("rung", "first"): 1, ("rung", "second"): 1, ("pair", "a", "b"): 1, ("pair", "c", None): 1}
)


class Operator:
    """An app whose worker is started and stopped, and what an operator calls meanwhile."""

    def __init__(self, brokers: str, folder: Path) -> None:
        self.brokers = brokers
        self.name = unique("reset")
        self.folder = folder
        self.worker: WorkerProcess | None = None
        self.starts = 0
        self.reads = "in"

    def setup(self) -> Setup:
        return Setup(
            make(self.name, self.reads, broker=f"kafka://{self.brokers}", datadir=str(self.folder / "command"))
        )

    def environment(self) -> dict[str, str]:
        return {"APP_NAME": self.name, "APP_READS": self.reads}

    async def prepare(self) -> None:
        """Have each of `KEYS` counted once, by both actors, and stop the worker."""
        await make_topics(self.brokers, *(f"{self.name}-{kind}" for kind in TOPICS))
        await send(self.brokers, f"{self.name}-in", [(key, key) for key in KEYS])
        await send(self.brokers, f"{self.name}-values", [(b"any", key) for key in KEYS])
        await self.happen([("watched", *one) for one in WATCHED] + PAIRED)
        await self.start()
        await self.said({1: 2 * len(KEYS)})
        await self.saw(SEEN)
        await self.stop()

    async def happen(self, records: Iterable[tuple[str, int, str]]) -> None:
        """Send values of one key, but "bad", with a topic and the seconds since `BEGIN_MS` at which they happened."""
        async with producing(self.brokers) as producer:
            for topic, at_s, value in records:
                await producer.send_and_wait(
                    f"{self.name}-{topic}",
                    value.encode(),
                    BAD if value == "bad" else KEYS[0],
                    partition=HOME,
                    timestamp_ms=BEGIN_MS + at_s * 1000,
                )

    async def saw(self, wanted: Counter[tuple[Any, ...]]) -> None:
        """Wait until windows, timers by stream time and the join have said this, and nothing else."""
        assert self.worker is not None

        async def done() -> bool:
            return await self.seen() == wanted

        await eventually(done, what=self.worker.log)

    async def seen(self) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(json.loads(one.value)) for one in await read_all(self.brokers, f"{self.name}-seen"))

    async def start(self) -> None:
        self.worker = WorkerProcess(MODULE, self.brokers, self.folder / "data", **self.environment())
        self.starts += 1
        self.worker.log_file = self.folder / f"{self.starts}.log"
        self.worker.start()

    async def stop(self) -> None:
        assert self.worker is not None
        assert await asyncio.to_thread(self.worker.terminate) == 0, self.worker.log()

    async def said(self, wanted: dict[int, int]) -> None:
        """Wait until the outputs are so many counts of each size, and no others."""
        assert self.worker is not None

        async def done() -> bool:
            return (
                dict(Counter(int(record.value) for record in await read_all(self.brokers, f"{self.name}-out")))
                == wanted
            )

        await eventually(done, what=self.worker.log)

    async def refused(self, text: str) -> None:
        """Start a worker that doesn't run."""
        await self.start()
        assert self.worker is not None
        assert await asyncio.to_thread(self.worker.wait) == 1
        assert text in self.worker.log()

    async def faust(self, *arguments: str) -> CompletedProcess[str]:
        environment = {**self.environment(), "KAFKA_URL": f"kafka://{self.brokers}"}
        command = ("-A", MODULE, "-D", str(self.folder / "command"), *arguments)
        return await asyncio.to_thread(forked.faust, *command, environment=environment)

    async def reset(self, *arguments: str) -> dict[str, Any]:
        done = await self.faust("--json", "reset", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    async def perform(self, to: str, *, deletes_state: bool, is_done: bool = True) -> list[steps.Move]:
        """Do it in this process."""
        setup = self.setup()
        async with ControlPlane.connect(setup.connection, setup.group) as control:
            resetter = Resetter(setup, control, scope_of(setup.app, []), parse_target(to), deletes_state=deletes_state)
            return await (resetter.perform() if is_done else resetter.look())

    async def committed(self) -> dict[str, int | None]:
        setup = self.setup()
        names = [f"{self.name}-in", f"{self.name}-values"]
        async with ControlPlane.connect(setup.connection, setup.group) as control:
            found = {
                f"{name[len(self.name) + 1 :]}[{number}]": await control.committed(TopicPartition(name, number))
                for name in names
                for number in range(PARTITIONS)
            }
        return {name: None if one is None else one.offset for name, one in found.items()}

    async def ids(self) -> list[str | None]:
        return [await topic_id(self.brokers, f"{self.name}--{store}-changelog") for store in STORES]

    async def held(self) -> dict[str, int]:
        """How many keys the changelogs hold."""
        return {store: len(await self.state(store)) for store in STORES}

    async def state(self, store: str) -> dict[bytes, bytes]:
        """What the changelog holds."""
        found: dict[bytes, bytes] = {}
        for record in await read_all(self.brokers, f"{self.name}--{store}-changelog"):
            if record.value is None:
                found.pop(record.key, None)
            else:
                found[record.key] = record.value
        return found


@pytest.fixture
async def operator(brokers: str, tmp_path: Path) -> Operator:
    made = Operator(brokers, tmp_path)
    await made.prepare()
    return made


async def test_on_top_of_the_state(operator: Operator) -> None:
    before, ids = await operator.committed(), await operator.ids()
    state = {store: await operator.state(store) for store in STORES}
    seen = await operator.reset("--to", "earliest")
    assert (seen["done"], seen["changelogs"]) == (False, [])
    assert {row["new_offset"] for row in seen["offsets"] if not row["topic"].endswith("-repartition")} == {0}
    assert await operator.committed() == before, "it was only looked at"
    assert (await operator.reset("--to", "earliest", "--yes"))["done"]
    assert set((await operator.committed()).values()) == {0}
    assert await operator.ids() == ids
    assert {store: await operator.state(store) for store in STORES} == state
    await operator.start()
    await operator.said({1: 2 * len(KEYS), 2: 2 * len(KEYS)})
    assert "taking over again" not in operator.worker.log()
    held = {store: len(kept) for store, kept in state.items()}
    assert min(held.values()) > 0
    # What waits is still there. The records of the window that is closed are late; the last one calls its effect again,
    # the message of the parked key waits behind the parked one, and the join takes the row of its last left record.
    wanted = held | {"watch-effects": held["watch-effects"] + 1, "watch-parked": 2, "pair": held["pair"] + 1}

    async def is_held() -> bool:
        return await operator.held() == wanted

    await eventually(is_held, what=operator.worker.log)
    assert await operator.seen() == SEEN
    assert (await operator.faust("reset", "--to", "latest", "--yes")).returncode == 1
    await operator.stop()
    await operator.reset("--to", "latest", "--yes")
    await operator.start()
    await send(operator.brokers, f"{operator.name}-in", [(KEYS[0], b"x")])
    await operator.said({1: 2 * len(KEYS), 2: 2 * len(KEYS), 3: 1})
    await operator.stop()


async def test_without_the_state(operator: Operator) -> None:
    ids, held = await operator.ids(), await operator.held()
    seen = await operator.reset("--to", "earliest", "--state", "delete")
    assert seen["changelogs"] == [f"{operator.name}--{store}-changelog" for store in STORES]
    assert await operator.ids() == ids, "it was only looked at"
    await operator.reset("--to", "latest", "--state", "delete", "--yes")
    assert not set(await operator.ids()) & set(ids)
    assert set((await operator.held()).values()) == {0}
    model = await read_all(operator.brokers, f"{operator.name}-model")
    assert {record.key for record in model if record.value is None} == set(KEYS)
    assert (await operator.faust("plan")).returncode == 0
    # Twice is as once.
    await operator.reset("--to", "earliest", "--state", "delete", "--yes")
    await operator.start()
    # The worker's disk has the former state, and the former records by their new key are in their topic.
    await operator.said({1: 4 * len(KEYS)})
    assert sorted((await operator.state("counts")).values()) == [b"1"] * len(KEYS)
    # Stream time begins anew too: no record is late for its window or its pair, and no timer is rung at once.
    await operator.saw(SEEN + SEEN)
    await operator.stop()
    # No effect, parked message or timer of before is there beside its repeat.
    assert await operator.held() == held
    await operator.reset("--to", "latest", "--state", "delete", "--yes")
    await operator.start()
    await operator.happen([("watched", 0, "first"), ("watched", 70, "last"), ("right", 5, "b"), ("left", 0, "e")])
    await operator.saw(SEEN + SEEN + Counter({("final", 1): 1, ("rung", "first"): 1, ("pair", "e", "b"): 1}))
    await operator.stop()


DEATHS = ("changelog", "read model", "offsets", "owners", "registry")


@pytest.mark.nightly
@pytest.mark.parametrize("step", DEATHS)
async def test_a_death_in_the_middle(operator: Operator, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    places: dict[str, tuple[Any, str]] = {
        "changelog": (Topics, "create"),
        "read model": (Resetter, "_empty"),
        "offsets": (ControlPlane, "commit"),
        "owners": (steps, "write_owners"),
        "registry": (steps, "write_stores"),
    }

    async def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(*places[step], die)
        with pytest.raises(Killed):
            await operator.perform("earliest", deletes_state=True)
    await operator.refused("can't start")
    await operator.perform("earliest", deletes_state=True)
    await operator.start()
    await operator.said({1: 4 * len(KEYS)})
    await operator.stop()


@pytest.mark.nightly
async def test_where_offsets_go(operator: Operator) -> None:
    name, topic = operator.name, f"{operator.name}-in"
    soon = datetime.now(UTC) + timedelta(minutes=30)
    async with producing(operator.brokers) as producer:
        at_ms = int(soon.timestamp() * 1000)
        sent = await producer.send_and_wait(topic, b"late", KEYS[0], partition=0, timestamp_ms=at_ms)

    async def found(to: str) -> dict[int, int]:
        moves = await operator.perform(to, deletes_state=False, is_done=False)
        return {move.source.partition: move.offset for move in moves if move.source.topic == topic}

    assert await found("earliest") == {0: 0, 1: 0}
    assert (await found("latest"))[0] == sent.offset + 1
    between = (soon - timedelta(minutes=15)).replace(tzinfo=None).isoformat()
    assert (await found(between))[0] == (await found(f"{between}Z"))[0] == sent.offset
    assert (await found(between))[1] == (await found("latest"))[1], "no record is that late"
    offsets = [
        (f"{name}-{kind}", number, int(kind == "in"))
        for kind in ("in", "values", "watched", "left", "right")
        for number in range(PARTITIONS)
    ]
    every = ",".join(f"{one}:{number}={offset}" for one, number, offset in offsets)
    assert await found(every) == {0: 1, 1: 1}
    for wrong, said in (
        (f"{every},{name}-im:0=1", f"did you mean {name}-in?"),
        (f"{every},{name}-in:7=1", "has 2 partitions, which start at 0"),
        (every.replace("in:0=1", "in:0=99"), "and not 99"),
        (f"{name}-in:0=1", "each partition needs an offset"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(said)):
            await found(wrong)


@pytest.mark.nightly
async def test_a_worker_that_joins_meanwhile(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await operator.committed()
    marks = Resetter._marks

    async def then_a_worker_joins(self: Resetter, *arguments: Any) -> Any:
        made = await marks(self, *arguments)
        await operator.start()
        worker = operator.worker
        assert worker is not None
        await eventually(lambda: worker.log().count(" owns ") >= 3, what=worker.log)
        return made

    monkeypatch.setattr(Resetter, "_marks", then_a_worker_joins)
    with pytest.raises(ConfigurationError, match="a worker joined group"):
        await operator.perform("earliest", deletes_state=False)
    assert await operator.committed() == before
    await operator.stop()


@pytest.mark.nightly
async def test_names_with_a_typo(operator: Operator) -> None:
    wrong = await operator.faust("reset", "--to", "earliest", "--actor", "cuont")
    assert wrong.returncode == 1
    assert "there is no actor 'cuont', did you mean count?" in wrong.stderr
    assert "did you mean earliest?" in (await operator.faust("reset", "--to", "earlyest")).stderr
    assert (await operator.faust("reset", "--state", "delete")).returncode == 2


@pytest.mark.nightly
async def test_another_topic_as_the_only_input(operator: Operator) -> None:
    """The errors say what happened, and what they offer works."""
    name, count = operator.name, len(KEYS)
    for number, (read, partitions) in enumerate((("other", PARTITIONS), ("third", PARTITIONS + 1))):
        before, operator.reads = operator.reads, read
        await make_topics(operator.brokers, f"{name}-{read}", partitions=partitions)
        await send(operator.brokers, f"{name}-{read}", [(key, b"x") for key in KEYS], partitions=partitions)
        await operator.refused(f"actor count reads topic {name}-{read} now, and read {name}-{before} when worker ")
        log = operator.worker.log() if operator.worker is not None else ""
        assert "`faust -A … reset --to earliest --actor count --yes` keeps the state" in log
        if number:
            kept = await operator.faust("reset", "--to", "earliest", "--actor", "count", "--yes")
            assert (kept.returncode, kept.stderr.count("\n")) == (1, 1)
            assert (
                f"has {PARTITIONS} partitions, and topic {name}-third, the input of actor count, has 3" in kept.stderr
            )
        some = await operator.faust("reset", "--to", f"{name}-{read}:0=0", "--actor", "count", "--yes")
        assert some.returncode == 1
        await operator.reset(
            "--to", "earliest", "--actor", "count", "--yes", *(["--state", "delete"] if number else [])
        )
        await operator.start()
        await operator.said({1: 3 * count, 2: count} if number else {1: 2 * count, 2: count})
        await operator.stop()
    # It goes on like any other.
    await operator.start()
    await send(operator.brokers, f"{name}-third", [(KEYS[0], b"x")], partitions=PARTITIONS + 1)
    await operator.said({1: 3 * count, 2: count + 1})
    await operator.stop()
