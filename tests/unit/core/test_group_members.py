"""Whatever a member of the group says of itself, the others get an assignment."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from actors._core.group.members import (
    MAX_MEMBER_BYTES,
    Declared,
    Member,
    TaskId,
    decode_member_data,
    encode_member_data,
)
from actors._core.group.placement import Copies, PlacementRules, encode_copies
from actors._core.group.programs import admit
from actors._core.origins import origin_of
from actors._kafka.client import Consumer
from actors._kafka.connection import Connection
from actors._kafka.consume.assignor import ActorAssignor, readable, readable_assignment
from actors._kafka.consume.standby_owners import KafkaCopies

CLUSTER = SimpleNamespace(partitions_for_topic=lambda topic: set(range(6)) if topic == "in" else None)
DEEP = b"\x91" * 3_000 + b"\x01"


def data(**changed: Any) -> bytes:
    """What a member says of itself, with some of it changed."""
    said: dict[str, Any] = {
        "version": 1,
        "instance": "",
        "address": "http://10.0.0.9:6066",
        "generation": 1,
        "actors": [["a", [0], [0], [5], [0]]],
        "follows": True,
        "process": 0,
        "declared": [["a", "in", "murmur2", ["a-changelog"]]],
    }
    said.update(changed)
    return msgspec.msgpack.encode(list(said.values()))


STRANGE = {
    "nothing": b"",
    "deep": DEEP,
    "deep in the place of an actor": b"\x97\x01\xa0\xa0\x00" + DEEP + b"\xc2\x00",
    "cut": data()[:-3],
    "not msgpack": b"\xc1" * 50,
    "text that isn't UTF-8": data().replace(b"http", b"\xff\xfe\xff\xff"),
    "JSON": b'{"version": 1}',
    "a version that is text": data(version="1"),
    "version 0": data(version=0),
    "version -1": data(version=-1),
    "version of 64 bits": data(version=-(2**63)),
    "an address that is a number": data(address=7),
    "a generation that is NaN": data(generation=float("nan")),
    "a negative generation": data(generation=-2),
    "a generation of 64 bits": data(generation=2**64 - 1),
    "a partition that is infinite": data(actors=[["a", [float("inf")], [], []]]),
    "a negative partition": data(actors=[["a", [-1], [], []]]),
    "a negative position": data(actors=[["a", [], [0], [-(2**62)]]]),
    "a position of 64 bits": data(actors=[["a", [], [0], [2**64 - 1]]]),
    "a negative lag": data(actors=[["a", [], [0], [1], [-(2**40)]]]),
    "a map in the place of actors": data(actors={"a": 1}),
    "an actor without a name": data(actors=[[None, [], [], []]]),
    "follows is text": data(follows="yes"),
    "declared is text": data(declared="everything"),
    "a declared actor without a topic": data(declared=[["a"]]),
    "1 MB": data(actors=[["a", [0] * 1_000_000, [], []]]),
}
ODD_ADDRESSES = {
    "port 99999": "http://10.0.0.9:99999",
    "an open bracket": "http://[",
    "a path": "http://10.0.0.9:6066/any/path?x=",
    "a user": "http://me:secret@10.0.0.9:6066",
    "another scheme": "file:///etc/passwd",
    "a line end": "http://10.0.0.9:6066\r\nHost: x",
    "much": "http://" + "a" * 100_000,
}
KNOWN_BUT_ODD = {
    "a newer version": data(version=2),
    "a newer version that looks otherwise": msgspec.msgpack.encode([2, {"now": "a map"}]),
    "more than is known": msgspec.msgpack.encode([*msgspec.msgpack.decode(data()), "new", [1, 2]]),
    "more partitions than positions": data(actors=[["a", [], [0, 1, 2], [5]]]),
    "a partition twice": data(actors=[["a", [0, 0, 0], [1, 1], [5, 6], [0, 0]], ["a", [0], [], []]]),
    "partitions that aren't there": data(actors=[["a", [2**62], [2**61], [2**60]], ["other", [0], [0], [1]]]),
    "the largest numbers": data(generation=2**63 - 1, actors=[["a", [0], [0], [2**63 - 1], [2**63 - 1]]]),
    "an actor that nobody else has": data(declared=[["b", "in", "murmur2", []]]),
    "no actor at all": data(declared=[]),
    "an actor twice": data(declared=[["a", "in", "murmur2", []], ["a", "in", "murmur2", []], ["a", "in2", "", []]]),
    "many actors": data(declared=[["a", "in", "murmur2", [f"{n}"]] for n in range(30_000)]),
    **{f"an address with {what}": data(address=address) for what, address in ODD_ADDRESSES.items()},
}


def worker(name: str = "") -> ActorAssignor:
    held = {TaskId("a", number): 10**6 for number in range(6)}
    return ActorAssignor(
        instance_id=name,
        address="http://10.0.0.1:6066",
        actors={"in": "a"},
        on_disk=lambda: held,
        lags=lambda: dict.fromkeys(held, 0),
        rules=PlacementRules(standbys=1),
    )


def assigned(strange: bytes, topics: list[str] | None = None, leader: ActorAssignor | None = None) -> dict[str, int]:
    """Have two workers and a member that says `strange` assigned; give how many partitions each gets."""
    first, second = leader or worker(), worker()
    answers = first.assign(
        CLUSTER,
        {
            "m0": first.metadata(["in"]),
            "m1": second.metadata(["in"]),
            "strange": ConsumerProtocolMemberMetadata(0, ["in"] if topics is None else topics, strange),
        },
    )
    given = [pair for answer in answers.values() for pair in answer.partitions()]
    assert sorted(partition for _, partition in given) == list(range(6)), "each partition has one owner"
    for answer in answers.values():
        # What is sent can be read by the members.
        ConsumerProtocolMemberAssignment.decode(answer.encode())
        second.on_assignment(answer)
    return {member_id: len(answer.partitions()) for member_id, answer in answers.items()}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_a_member_that_cant_be_understood_gets_nothing_and_the_others_all(strange: bytes) -> None:
    assert assigned(strange) == {"m0": 3, "m1": 3, "strange": 0}


@pytest.mark.parametrize("odd", KNOWN_BUT_ODD.values(), ids=KNOWN_BUT_ODD)
def test_a_member_that_can_be_understood_in_part_doesnt_disturb_the_others(odd: bytes) -> None:
    assert min(assigned(odd)["m0"], assigned(odd)["m1"]) >= 1


@given(
    st.binary(max_size=200)
    | st.tuples(st.just(data()), st.integers(0, 40), st.binary(max_size=4)).map(
        lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] + len(parts[2]) :]
    )
)
def test_no_bytes_keep_the_group_from_an_assignment(raw: bytes) -> None:
    assigned(raw)


def test_a_member_that_names_a_topic_twice_loses_no_partition() -> None:
    assert assigned(encode_member_data(Member("strange")), ["in", "in", "in"])["strange"] <= 2


def test_a_topic_that_isnt_there_disturbs_nobody() -> None:
    assert assigned(encode_member_data(Member("strange")), ["nowhere"]) == {"m0": 3, "m1": 3, "strange": 0}
    assert assigned(encode_member_data(Member("strange")), []) == {"m0": 3, "m1": 3, "strange": 0}


def test_the_partitions_of_all_inputs_of_an_actor_go_together() -> None:
    inputs = ("orders", "payments")
    cluster = SimpleNamespace(partitions_for_topic=lambda topic: set(range(5)))
    declared = [Declared("join", "orders", "murmur2", (), ("payments",))]
    workers = [
        ActorAssignor(instance_id="", address="", actors=dict.fromkeys(inputs, "join"), on_disk=dict, declared=declared)
        for _ in range(3)
    ]
    answers = workers[0].assign(cluster, {f"m{n}": one.metadata(inputs) for n, one in enumerate(workers)})
    for one, answer in zip(workers, answers.values(), strict=True):
        given = answer.partitions()
        assert {part for topic, part in given if topic == "orders"} == {
            part for topic, part in given if topic == "payments"
        }
        one.on_assignment(answer)
        assert {task.actor for task in one._owned} == {"join"}
    assert sum(len(answer.partitions()) for answer in answers.values()) == 10


def test_a_program_with_another_input_is_another_program() -> None:
    one = Declared("join", "orders", "murmur2", (), ("payments",))
    other = Declared("join", "orders", "murmur2", ())
    members = [Member("a", declared=(one,)), Member("b", declared=(one,)), Member("c", declared=(other,))]
    admission = admit(members)
    assert admission.refused == {
        "c": {
            "orders": "the input of actor join is topic orders in the program that is refused, and topic orders, "
            "payments in the one that runs"
        }
    }
    assert admission.topics_of(members[0], ("orders", "payments")) == ["orders", "payments"]
    assert admission.actors == {"orders": "join", "payments": "join"}


def test_two_members_may_claim_one_instance_id() -> None:
    first = worker("w1")
    said = encode_member_data(Member("x", instance_id="w1", generation=9, owned=frozenset({TaskId("a", 0)})))
    assert sum(assigned(said, leader=first).values()) == 6


def test_it_is_named_once_as_long_as_it_is_there(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    leader = worker()
    for _ in range(3):
        assigned(DEEP, leader=leader)
    (record,) = caplog.records
    assert "member 'strange' of the group" in record.getMessage()
    assert "gets no partitions" in record.getMessage()
    caplog.clear()
    assigned(data(), leader=leader)
    assigned(data(address="http://[\n"), leader=leader)
    (record,) = caplog.records
    assert "address" in record.getMessage()
    assert "other workers don't ask it" in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize("address", ODD_ADDRESSES.values(), ids=ODD_ADDRESSES)
def test_an_address_that_isnt_an_origin_is_dropped(address: str) -> None:
    found = decode_member_data("m", data(address=address))
    assert found.address == ""
    assert found.is_known
    assert "address" in found.trouble
    assert address not in found.trouble


def test_what_honest_workers_say_fits() -> None:
    tasks = {TaskId(f"actor-{number % 50}", number): 10**9 for number in range(15_000)}
    member = Member("m", "w", "http://a:1", 5, frozenset(tasks), tasks, dict.fromkeys(tasks, 10**6), follows=True)
    sent = encode_member_data(member)
    assert len(sent) < MAX_MEMBER_BYTES
    assert decode_member_data("m", sent) == member


# --- what is around it -----------------------------------------------------------------------------------------------


def metadata(*topics: Any, user_data: bytes = b"") -> bytes:
    return bytes(ConsumerProtocolMemberMetadata(0, list(topics), user_data).encode())


HOSTILE = {
    "nothing": b"",
    "a byte": b"\x00",
    "many topics that aren't there": b"\x00\x00\x7f\xff\xff\xff",
    "no topics": b"\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff",
    "a topic that is null": metadata("in", None),
    "a topic that isn't UTF-8": metadata("in").replace(b"in", b"\xff\xfe"),
    "a topic with a slash": metadata("in/../out"),
    "a topic without a name": metadata(""),
    "a long topic": metadata("a" * 300),
    "too many topics": metadata(*(f"t{number}" for number in range(10_001))),
    "data that ends early": metadata("in", user_data=b"x" * 10)[:-3],
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_metadata_that_the_client_couldnt_decode_is_replaced(raw: bytes) -> None:
    found = ConsumerProtocolMemberMetadata.decode(readable(raw))
    assert list(found.subscription) == []
    assert not decode_member_data("m", found.user_data).is_known


@given(st.binary(max_size=60))
def test_the_client_decodes_what_is_left(raw: bytes) -> None:
    ConsumerProtocolMemberMetadata.decode(readable(raw))


def test_metadata_of_workers_is_left_as_it_is() -> None:
    raw = worker().metadata(["in", "other.topic_1-x"]).encode()
    assert readable(raw) == raw


# --- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("http://10.0.0.1:6066", "http://10.0.0.1:6066"),
        ("https://Worker-1.bank.internal:8443/", "https://worker-1.bank.internal:8443"),
        ("http://worker_1", "http://worker_1:80"),
        ("https://w.", "https://w.:443"),
        ("http://[0::1]:6066", "http://[::1]:6066"),
        ("http://a:06066", "http://a:6066"),
    ],
)
def test_an_origin_is_one_text(address: str, origin: str) -> None:
    assert origin_of(address) == origin
    assert origin_of(origin) == origin


@pytest.mark.parametrize(
    "address",
    [
        *ODD_ADDRESSES.values(),
        "",
        "http://",
        "http://:80",
        "http://a:",
        "http://a:0",
        "http://a:65536",
        "http://a:٣",
        "http://a:-1",
        "http://a#b",
        "http://a?b",
        "http://a/b",
        "http://a//",
        "http://a b",
        "http://a@b",
        "http://a\\b",
        "http://a..b",
        "http://.a",
        "http://ä",
        "http://" + "a." * 150,
        "http://" + "a" * 64,
        "http://[::1",
        "http://[:::]",
        "http://[::1%eth0]",
        "HTTP://a",
        "ftp://a",
        "//a",
        "a:80",
        " http://a",
        "http://a\n",
        "http://a\x00",
        "http://a\u2028",
    ],
)
def test_anything_else_is_no_origin(address: str) -> None:
    with pytest.raises(ValueError, match="its address"):
        origin_of(address)


# --- what the coordinator tells of the group -------------------------------------------------------------------------


def described(*members: tuple[str, bytes, bytes]) -> Any:
    """Stand in for a connection whose coordinator tells of these members: id, metadata, assignment."""

    async def ask_coordinator(_: object) -> Any:
        group = (
            0,
            "g",
            "Stable",
            "consumer",
            "faust-actors",
            [(name, "c", "/10.0.0.7", *rest) for name, *rest in members],
        )
        return SimpleNamespace(groups=[group])

    return SimpleNamespace(ask_coordinator=ask_coordinator, check=lambda code: None, connection=None)


async def test_members_that_cant_be_understood_are_told_of_and_the_others_found() -> None:
    copies = encode_copies(Copies(frozenset({TaskId("a", 1)})))
    kept = ConsumerProtocolMemberAssignment(0, [], copies).encode()
    control = described(
        ("good", worker().metadata(["in"]).encode(), kept),
        *((f"hostile {number}", raw, b"\x00\x00\x7f\xff") for number, raw in enumerate(HOSTILE.values())),
        *((f"strange {number}", metadata("in", user_data=raw), kept) for number, raw in enumerate(STRANGE.values())),
        ("silent", b"", b""),
    )
    found = KafkaCopies(control, "g")
    assert await found.addresses() == {TaskId("a", 1): ["http://10.0.0.1:6066"]}
    members = await found.members()
    assert members.addresses == ["http://10.0.0.1:6066"]
    # A group's coordinator knows no metadata of a member that is about to join.
    assert len(members.troubles) == len(HOSTILE) - 1 + len(STRANGE)
    assert all("on host '/10.0.0.7'" in text and text.isprintable() for text in members.troubles)


async def test_the_leader_looks_at_what_members_sent_before_it_is_decoded() -> None:
    sent = [("a", metadata("in")), ("b", None, b"\x00\x00\x7f\xff\xff\xff"), ("c", b"")]
    seen: list[Any] = []

    async def perform(response: Any) -> str:
        seen.extend(response.members)
        return "assignment"

    taken: list[bytes] = []

    async def complete(generation: int, member_id: str, protocol: str, assignment: bytes) -> None:
        taken.append(assignment)

    coordinator = SimpleNamespace(_perform_assignment=perform, _on_join_complete=complete)
    consumer = Consumer(Connection(()), "test")
    consumer.subscribe(["in"])
    consumer._closed, consumer._coordinator = True, coordinator
    consumer.check_joins(readable, readable_assignment)
    assert await coordinator._perform_assignment(SimpleNamespace(members=sent)) == "assignment"
    assert seen == [("a", metadata("in")), ("b", None, metadata()), ("c", metadata())]
    for raw in (given_by_leader(("in", [0])), b""):
        await coordinator._on_join_complete(1, "m", "faust-actors", raw)
    assert taken == [given_by_leader(("in", [0])), given_by_leader()]


def given_by_leader(*parts: tuple[Any, list[int]], user_data: bytes = b"") -> bytes:
    return bytes(ConsumerProtocolMemberAssignment(0, list(parts), user_data).encode())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\x00\x7f\xff\xff\xff",
        b"\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00",
        given_by_leader(("other", [0])),
        given_by_leader((None, [0])),
        given_by_leader(("in", [0]), ("in", [0])),
        given_by_leader(("in", [-1])),
        given_by_leader(("in", [0])).replace(b"in", b"\xff\xfe"),
    ],
)
def test_a_leader_that_is_another_program_ends_nobody(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert readable_assignment(raw, {"in"}) == given_by_leader()
    assert "the leader of the group is another program" in caplog.text


def test_what_our_leader_assigns_is_taken_as_it_is() -> None:
    first = worker()
    answers = first.assign(CLUSTER, {"m0": first.metadata(["in"]), "m1": worker().metadata(["in"])})
    for answer in answers.values():
        assert readable_assignment(answer.encode(), {"in"}) == answer.encode()
    strange = given_by_leader(("in", [1, 0]), user_data=DEEP)
    assert readable_assignment(strange, {"in", "b"}) == strange
    first.on_assignment(ConsumerProtocolMemberAssignment.decode(strange))
    assert first.copies == Copies()
