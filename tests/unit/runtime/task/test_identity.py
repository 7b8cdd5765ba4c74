"""What stands behind a topic's name: gathered for a takeover, and named in fetches."""

from __future__ import annotations

import asyncio
import io
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NotControllerError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from aiokafka.protocol.fetch import FetchRequest, FetchResponse_v11
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._core.task.commit import CommitMark
from actors._core.task.takeover import LogBounds, ResetPolicy, StartRules
from actors._core.task.topic_ids import TopicIds
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.topics import _check_partitions
from actors._kafka.client import Client, Hook, own
from actors._kafka.connection import Connection, is_denied
from actors._kafka.consume.fetching import FetchesById
from actors._kafka.outage import Outages
from actors._kafka.protocol import FetchRequest_v13, FetchResponse_v13
from actors.errors import BrokerUnavailableError, ConfigurationError, InputGrownError, RestoreError
from actors.ports import NO_ID, Committed, Identity, OwnerInput, OwnerRecord, TopicIdentity, TopicPartition
from actors.runtime.committer import Membership
from actors.runtime.state.restore import Changelog, Restored
from actors.runtime.task.identity import FoundInput, agreed, identify
from actors.runtime.task.task import Task
from stores._core.record import Position
from stores.memory import MemoryStore

OLD, NEW, LOG = (str(uuid.UUID(int=number)) for number in (1, 2, 3))


class Group:
    def __init__(self, **found: TopicIdentity) -> None:
        self._found = found

    def pause_of(self, actor: str, partition: int) -> None:
        """Nothing is paused."""

    async def topic_ids(self, names: Iterable[str]) -> Mapping[str, TopicIdentity]:
        return {name: self._found[name] for name in names if name in self._found}


def spec(*stores: str) -> Any:
    changelogs = {store: SimpleNamespace(topic=f"{store}_log") for store in stores}
    return as_spec(stores, changelogs)


def as_spec(stores: Any, changelogs: Mapping[str, Any]) -> Any:
    """As much of an `ActorSpec` as is asked for topics and their ids."""
    return SimpleNamespace(
        name="a",
        topic="input",
        topics=("input",),
        inputs=(None,),
        partition_count=2,
        is_partitioned=bool(stores),
        stores=stores,
        changelogs=changelogs,
        topic_names=["input", *(changelog.topic for changelog in changelogs.values())],
        concurrency=1,
        event_times={},
        parked=None,
    )


def found(of: Any, **topics: TopicIdentity) -> TopicIds:
    group: Any = Group(**topics)
    (ids,) = asyncio.run(identify(of, group))
    return ids


def test_a_takeover_knows_the_ids_of_its_topics() -> None:
    ids = found(spec("one", "two"), input=TopicIdentity(NEW, 2), one_log=TopicIdentity(LOG, 2))
    assert (ids.input_id, ids.changelog_id("one"), ids.changelog_id("two")) == (NEW, LOG, "")


def test_a_changelog_without_an_id_is_there() -> None:
    ids = found(spec("one", "two"), input=TopicIdentity("", 2), one_log=TopicIdentity("", 2))
    assert (ids.input_id, ids.changelog_id("one"), ids.changelog_id("two")) == ("", NO_ID, "")


def test_an_input_that_does_not_exist_is_waited_for() -> None:
    with pytest.raises(BrokerUnavailableError, match="topic input, the input of actor a, doesn't exist any more"):
        found(spec())


class Replaced(Group):
    """What a takeover asks for; one of its topics is deleted and created again when it has come to a step."""

    def __init__(self, step: str, topic: str) -> None:
        super().__init__(input=TopicIdentity(OLD, 2), log=TopicIdentity(LOG, 2))
        self._step, self._topic = step, topic
        self.claims = 0

    def _at(self, step: str) -> None:
        if step == self._step:
            self._found[self._topic] = TopicIdentity(NEW, 2)

    async def is_member(self, identity: Identity) -> bool:
        return True

    async def stable_offset(self, source: TopicPartition) -> Committed | None:
        self._at("committed")
        return None

    async def open_claims(self) -> None:
        """No transaction is open."""

    async def bounds(self, source: TopicPartition) -> LogBounds:
        self._at("bounds")
        return LogBounds(0, 300)

    async def open(self, store: str, partition: int) -> MemoryStore:
        return MemoryStore()

    async def restore(self, store: MemoryStore, *_: object, **__: object) -> Restored:
        self._at("restore")
        return Restored(store, Position(0, 0, 0, 0, LOG), is_empty=True)

    async def latest(self, actor: str, partition: int) -> OwnerRecord | None:
        return None

    async def fence(self) -> None: ...

    async def commit(self, batch: object) -> None:
        self.claims += 1

    def encode_owner(self, record: OwnerRecord) -> None: ...


@pytest.mark.parametrize(("step", "topic"), [("committed", "input"), ("bounds", "input"), ("restore", "log")])
async def test_a_topic_that_is_re_created_during_a_takeover_is_looked_at_again_before_the_claim(
    step: str, topic: str
) -> None:
    world: Any = Replaced(step, topic)
    changelog = Changelog("one", "log", LOG, 86_400_000, 1_000_000, 2)
    of = as_spec((SimpleNamespace(name="one"),), {"one": changelog})
    clock = SimpleNamespace(wall_ms=lambda: 0, monotonic=lambda: 0.0, sleep=asyncio.sleep)
    services: Any = SimpleNamespace(
        group=world,
        logs=world,
        stores=world,
        restorer=world,
        owners=world,
        clock=clock,
        release=None,
        command_id=None,
    )
    services.encode_owner = world.encode_owner
    rules = StartRules(ResetPolicy.EARLIEST, allow_reprocessing=False, allow_lost_input=False)
    settings: Any = SimpleNamespace(queue_records=1, group="app-actors", rules=rules, transactional_id="")
    task = Task(of, 0, member=Membership(Identity("m", 1)), log=world, services=services, settings=settings)
    with pytest.raises(RestoreError, match="one of the topics input, log was deleted or re-created while"):
        await task._take_over()
    assert world.claims == 0


class Brokers:
    """As much of a client as asks brokers for topics; `says` has what each broker says of them."""

    def __init__(self, *says: Mapping[str, int | uuid.UUID]) -> None:
        self.says = says
        self.counts: dict[int, int] = {}
        self.replicas: dict[int, list[int]] = {}
        self.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=node) for node in range(len(says))])

    def get_random_node(self) -> int:
        return 0

    async def send(self, node: int, request: Any) -> Any:
        topics = []
        for name in request._topics:
            said = self.says[node].get(name, UnknownTopicOrPartitionError.errno)
            code, topic_id = (0, said) if isinstance(said, uuid.UUID) else (said, uuid.UUID(int=0))
            partition = (0, 0, 0, 0, self.replicas.get(node, [0]))
            topics.append((code, name, topic_id, False, [partition] * self.counts.get(node, 1), 0, {}))
        return SimpleNamespace(topics=topics)


def control(*says: Mapping[str, int | uuid.UUID]) -> ControlPlane:
    client: Any = Brokers(*says)
    return ControlPlane(client, "app-actors", Connection(("127.0.0.1:1",)))


async def test_a_topic_that_may_not_be_described_fails_nothing_but_its_own_actor() -> None:
    plane = control({"good": uuid.UUID(OLD), "bad": TopicAuthorizationFailedError.errno})
    with pytest.raises(BrokerUnavailableError, match="topic bad: User:ANONYMOUS isn't allowed Describe on") as raised:
        await plane.topic_ids(["bad"])
    assert raised.value.missing
    assert is_denied(raised.value)
    assert await plane.topic_ids(["good", "gone"]) == {"good": TopicIdentity(OLD, 1)}
    with pytest.raises(BrokerUnavailableError, match="topic bad"):
        await plane.topic_ids(["good", "bad"])


@pytest.mark.parametrize("behind", [{"input": uuid.UUID(OLD)}, {}])
async def test_a_takeover_is_refused_only_if_the_brokers_agree_which_topics_there_are(
    behind: Mapping[str, uuid.UUID],
) -> None:
    now = {"input": uuid.UUID(NEW)}
    disagreeing, away = control(now, behind, now), {"input": NotControllerError.errno}
    without_ids = {"input": uuid.UUID(int=0)}
    with pytest.raises(BrokerUnavailableError, match=r"topic input: the brokers don't agree which topic .* is behind"):
        async with agreed(spec(), disagreeing):
            raise InputGrownError("it has other partitions")
    agreeing = control(now, away, without_ids, now)
    agreeing._client.replicas[3] = [0, 1]
    with pytest.raises(InputGrownError):
        async with agreed(spec(), agreeing):
            raise InputGrownError("it has other partitions")
    agreeing._client.counts[3] = 2
    with pytest.raises(BrokerUnavailableError, match=r"topic input: .* of 1 and .* of 2: one of them is behind"):
        async with agreed(spec(), agreeing):
            raise InputGrownError("it has other partitions")


async def test_a_topic_that_may_not_be_described_any_more_is_waited_for_in_place_of_a_refusal() -> None:
    now, denied = {"input": uuid.UUID(NEW)}, {"input": TopicAuthorizationFailedError.errno}
    for plane in (control(denied), control(now, denied)):
        with pytest.raises(BrokerUnavailableError, match="isn't allowed Describe on topic input") as raised:
            async with agreed(spec(), plane):
                raise InputGrownError("it has other partitions")
        assert raised.value.missing


@pytest.mark.parametrize(("count", "how"), [(1, "was re-created with fewer"), (3, "was given more")])
def test_an_input_with_other_partitions_than_the_state_is_refused(count: int, how: str) -> None:
    with pytest.raises(InputGrownError, match=f"{how} partitions than 2, it has {count}"):
        found(spec("one"), input=TopicIdentity(NEW, count))
    assert found(spec(), input=TopicIdentity(NEW, count)).input_id == NEW


def found_input(mark: CommitMark | None, owner: OwnerRecord | None, topics: TopicIds) -> FoundInput:
    return FoundInput.of(
        spec("one"),
        0,
        topics,
        source=TopicPartition("input", 1),
        committed=Committed(5, "" if mark is None else mark.encode()),
        owner=owner,
        bounds=LogBounds(0, 100),
    )


def continued(topics: TopicIds, mark: CommitMark | None, owner: OwnerRecord | None) -> TopicIds:
    return found_input(mark, owner, topics).topics


def facts(mark: CommitMark | None, owner: OwnerRecord | None, *, epoch: int, topics: TopicIds) -> Any:
    position = Position(source_offset=42, changelog_offset=9, wall_time_ms=0, epoch=epoch, changelog_id=LOG)
    settings: Any = SimpleNamespace(group="app-actors")
    store: Any = None
    return found_input(mark, owner, topics).facts(spec("one"), settings, [Restored(store, position, is_empty=False)])


def test_the_last_commits_id_is_the_marks_or_else_the_registrys() -> None:
    now = TopicIds(NEW)
    assert facts(CommitMark(3, 1, "n", topics=TopicIds(OLD)), None, epoch=3, topics=now).is_recreated
    assert not facts(CommitMark(3, 1, "n", topics=TopicIds(NEW)), None, epoch=3, topics=now).is_recreated
    assert not facts(CommitMark(3, 1, "n"), None, epoch=3, topics=now).is_recreated
    own = OwnerInput("input", OLD, 5, since=2)
    owner = OwnerRecord("a", 1, 3, "w", "", 0, (own,))
    of_owner = facts(None, owner, epoch=3, topics=now)
    assert of_owner.is_recreated
    assert of_owner.is_moved
    assert "--group app-actors --topic input:1 --reset-offsets --execute --to-offset" in of_owner.tool
    assert continued(now, None, owner) == TopicIds(NEW, 2)
    assert continued(now, None, replace(owner, inputs=(replace(own, is_recreated=True),))).is_recreated
    last = CommitMark(3, 1, "n", topics=TopicIds(OLD, 7, is_recreated=True))
    assert continued(now, last, owner) == TopicIds(NEW, 7, is_recreated=True)
    assert continued(now, CommitMark(3, 1, "n"), owner) == continued(now, None, None) == now
    moved = OwnerRecord("a", 1, 3, "w", "", 0, (OwnerInput("another", OLD, 5),))
    assert not facts(None, moved, epoch=3, topics=now).is_recreated


def test_state_of_a_former_input_says_nothing_of_offsets() -> None:
    mark = CommitMark(7, 1, "n", topics=TopicIds(NEW, 7))
    assert facts(mark, None, epoch=6, topics=TopicIds(NEW, 7)).state_source_offset is None
    assert facts(mark, None, epoch=7, topics=TopicIds(NEW, 7)).state_source_offset == 42


# --- fetches ----------------------------------------------------------------------------------------------------------


class Broker(AIOKafkaClient):
    """Answers a fetch of any version; `ids` are the topics that it has, `code` what it says of the others."""

    def __init__(self, version: int = 13, code: int = 100) -> None:
        self.ids = {uuid.UUID(OLD): b"old"}
        self.asked: list[Any] = []
        self._versions = {1: (4, version)}
        self._code = code

    async def send(self, node: int, request: Any, **_: Any) -> Any:
        if not isinstance(request, FetchRequest) and not hasattr(request, "names"):
            return request
        struct = request.prepare(self._versions)
        self.asked.append(type(struct).decode(io.BytesIO(struct.encode())))
        if struct.API_VERSION < 13:
            topics = [(name, [(part[0], 0, 9, 9, 0, [], -1, b"x") for part in parts]) for name, parts in struct.topics]
            return FetchResponse_v11.decode(io.BytesIO(FetchResponse_v11(0, 0, 0, topics).encode()))
        topics = []
        for topic_id, parts, _ in struct.topics:
            records, code = (self.ids[topic_id], 0) if topic_id in self.ids else (None, self._code)
            answers = [(part[0], code, 9, 8, 0, [(5, 6, {})], -1, records, {}) for part in parts]
            topics.append((topic_id, answers, {}))
        return FetchResponse_v13.decode(io.BytesIO(FetchResponse_v13(0, 0, 0, topics, {}).encode()))


class OwnedBroker(Client, Broker):
    """The client of a consumer."""


def fetch(broker: OwnedBroker, ids: Mapping[int, str], after: Mapping[int, str] | None = None) -> tuple[Any, list[Any]]:
    """Fetch partitions 0 and 1 with these ids, which are others when the response comes; and what was lost."""
    lost: list[Any] = []
    fetches = FetchesById(lambda partition, topic_id: lost.append((partition.partition, str(topic_id))))

    class Late(Hook):
        def after(self, node: Any, request: Any, response: Any) -> Any:
            for number, topic_id in (after or {}).items():
                fetches.set_id(KafkaPartition("in", number), topic_id)
            return response

    own(broker, Outages()).hooks = (fetches, Late())
    for number, topic_id in ids.items():
        fetches.set_id(KafkaPartition("in", number), topic_id)
    request = FetchRequest(500, 1, 1_000, 1, [("in", [(0, 70, 10), (1, 71, 10)])])
    return asyncio.run(broker.send(0, request)), lost


def test_a_fetch_names_ids_and_its_response_reads_as_one_by_name() -> None:
    broker = OwnedBroker()
    response, lost = fetch(broker, {0: OLD, 1: OLD})
    [asked] = broker.asked
    assert type(asked) is FetchRequest_v13
    [(topic_id, partitions, _)] = asked.topics
    assert str(topic_id) == OLD
    assert [(part[0], part[2], part[5]) for part in partitions] == [(0, 70, 10), (1, 71, 10)]
    assert response.API_VERSION >= 11
    assert response.topics == [("in", [(number, 0, 9, 8, 0, [(5, 6)], -1, b"old") for number in (0, 1)])]
    assert lost == []


@pytest.mark.parametrize("code", [100, 103])
def test_a_partition_of_another_topic_is_lost_and_the_others_are_given(code: int) -> None:
    response, lost = fetch(OwnedBroker(code=code), {0: NEW, 1: OLD})
    assert [(name, [part[0] for part in parts]) for name, parts in response.topics if parts] == [("in", [1])]
    assert lost == [(0, NEW)]


def test_a_response_for_an_id_that_was_given_up_meanwhile_is_dropped() -> None:
    response, lost = fetch(OwnedBroker(), {0: OLD, 1: NEW}, after={0: NEW, 1: OLD})
    assert all(not parts for _, parts in response.topics)
    assert lost == []


@pytest.mark.parametrize(
    ("version", "ids"), [(12, {0: OLD, 1: OLD}), (13, {0: OLD, 1: ""}), (13, {0: NO_ID, 1: NO_ID})]
)
def test_names_are_fetched_where_the_broker_or_an_id_is_too_old(version: int, ids: Mapping[int, str]) -> None:
    broker = OwnedBroker(version)
    response, _ = fetch(broker, ids)
    assert broker.asked[0].API_VERSION == 11
    assert [part[0] for part in response.topics[0][1]] == [0, 1]


def test_stores_are_only_written_back_where_the_input_kept_its_partitions() -> None:
    with pytest.raises(ConfigurationError, match=r"Only if the input has always had as many .*LOST_CHANGELOG=restore"):
        _check_partitions(TopicInfo("log", uuid.UUID(LOG), 2), 3)
