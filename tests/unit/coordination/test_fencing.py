"""Guarded resources without a broker: the rule, a log that is judged, and SQLite."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors._core.partitioner import partition_for
from actors.coordination import (
    CoordinationError,
    Fence,
    FencedReader,
    FencedResource,
    FencedSqlite,
    FenceLostError,
    FenceState,
    StaleTokenError,
)
from actors.coordination.fences.fencing import MAX_TOKEN
from actors.coordination.fences.log import ID, RESOURCE, TOKEN, FenceLog, headers_of
from examples import fenced_ledger

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("a", "b", "ü")
WRITES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 6)), max_size=40)


@dataclass
class Record:
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    timestamp: int = 0


def counting(writes: list[tuple[str, int]]) -> list[int]:
    """Which of the writes count, found from all that came before each of them."""
    return [
        number
        for number, (name, token) in enumerate(writes)
        if all(token >= other for before, other in writes[:number] if before == name)
    ]


# --- the rule --------------------------------------------------------------------------------------------------------


@given(WRITES)
def test_a_fence_lets_through_what_no_greater_token_came_before(writes):
    fence, passed, refused = Fence(), [], {}
    for number, (name, token) in enumerate(writes):
        before = fence.greatest_of(name)
        try:
            assert fence.admit(name, token) == (token > before)
            passed.append(number)
        except StaleTokenError as error:
            said = (error.resource, error.token, error.greatest, error.reason)
            refused[number] = said == (name, token, before, "stale-token")
    assert passed == counting(writes)
    assert all(refused.values())
    assert fence.greatest == {name: max(token for other, token in writes if other == name) for name, _ in writes}


def test_a_refusal_says_what_which_and_what_to_do():
    with pytest.raises(
        StaleTokenError, match=r"'ledger': token 3 is refused, since 7 was seen.*Acquire the lock again"
    ):
        Fence({"ledger": 7}).check("ledger", 3)


@pytest.mark.parametrize("token", [0, -1, MAX_TOKEN + 1, "7", None, 7.0])
def test_what_no_lock_gives_is_no_token(token, tmp_path):
    with pytest.raises(CoordinationError, match="no fencing token") as caught:
        Fence().admit("ledger", token)
    assert caught.value.reason == "argument"
    with FencedSqlite.open(tmp_path / "x.db", "ledger") as ledger, pytest.raises(CoordinationError, match="no fencing"):
        fenced_ledger.write(ledger, token, "x")


# --- a log that is judged --------------------------------------------------------------------------------------------


def a_log(writes: list[tuple[str, int]], partitions: int) -> dict[int, list[Record]]:
    """The writes in their partitions, with records of others between them; the value is the write's number."""
    logs: dict[int, list[Record]] = {number: [] for number in range(partitions)}
    for number, (name, token) in enumerate(writes):
        log = logs[partition_for(name.encode(), partitions)]
        log.append(Record(len(log) * 3, name.encode(), b"%d" % number, headers_of(name, token, b"%d" % number)))
        log.append(Record(len(log) * 3, name.encode(), b"another's"))
    return logs


def judged(log: FenceLog, records: dict[int, list[Record]]) -> set[int]:
    """The numbers of the writes that count; what was judged already is passed over."""
    found = set()
    for number, partition in records.items():
        for record in partition:
            if record.offset >= log.positions[number]:
                verdict = log.judge(number, record)
                if verdict is not None and verdict.refusal is None:
                    assert verdict.id == verdict.record.value
                    found.add(int(verdict.record.value))
    return found


@given(WRITES, st.integers(1, 3), st.integers(0, 80))
def test_all_readers_agree_also_those_that_go_on_from_a_state(writes, partitions, cut):
    records = a_log(writes, partitions)
    whole = FenceLog("t", partitions, dict.fromkeys(records, 0), {})
    assert judged(whole, records) == set(counting(writes))
    first = FenceLog("t", partitions, dict.fromkeys(records, 0), {})
    before = judged(first, {number: partition[:cut] for number, partition in records.items()})
    raw = FenceState("t", "id", partitions, first.positions, first.fence.greatest).encode()
    state = FenceState.decode(raw)
    second = FenceLog("t", partitions, state.positions, state.greatest)
    assert before | judged(second, records) == set(counting(writes))
    assert (second.positions, second.fence.greatest) == (whole.positions, whole.fence.greatest)


def test_who_starts_in_the_middle_without_a_state_would_take_what_others_refused():
    """Why a reader without a state begins at the start of the log."""
    records = a_log([("a", 7), ("a", 3)], 1)
    blind = FenceLog("t", 1, {0: records[0][1].offset}, {})
    assert judged(blind, records) == {1}
    assert counting([("a", 7), ("a", 3)]) == [0]


def test_compaction_would_let_a_stale_record_erase_the_one_that_counts():
    """Why a compacted topic is refused."""
    records = a_log([("a", 7), ("a", 3)], 1)[0]
    last = {record.key: record for record in records if record.headers}
    assert judged(FenceLog("t", 1, {0: 0}, {}), {0: list(last.values())}) == {1}


@pytest.mark.parametrize(
    "damage",
    [
        {TOKEN: b"-3"},
        {TOKEN: b" 3"},
        {TOKEN: b"3_0"},
        {TOKEN: b""},
        {TOKEN: b"0"},
        {TOKEN: b"9" * 19},
        {TOKEN: b"9" * 5000},
        {TOKEN: "٣".encode()},
        {RESOURCE: b"b"},
        {RESOURCE: b"\xff"},
    ],
)
def test_a_record_that_isnt_ours_never_counts_and_raises_no_fence(damage):
    log = FenceLog("t", 1, {0: 0}, {"a": 2})
    headers = dict(headers_of("a", 3, b"id")) | damage
    key = headers[RESOURCE] if damage == {RESOURCE: b"\xff"} else b"a"
    assert log.judge(0, Record(5, key, b"x", list(headers.items()))) is None
    assert (log.fence.greatest, log.positions) == ({"a": 2}, {0: 6})
    assert log.judge(0, Record(6, None, b"x", headers_of("a", 3, b"id"))) is None


def test_a_record_in_the_wrong_partition_ends_the_reading():
    wrong = 1 - partition_for(b"a", 2)
    log = FenceLog("t", 2, {0: 0, 1: 0}, {})
    with pytest.raises(FenceLostError, match=rf"t\[{wrong}\] offset 4 key 'a': .*got partitions"):
        log.judge(wrong, Record(4, b"a", b"x", headers_of("a", 3, b"id")))
    assert log.positions[wrong] == 0


def test_a_claim_raises_the_fence_and_is_no_write():
    log = FenceLog("t", 1, {0: 0}, {})
    assert log.judge(0, Record(0, b"a", None, headers_of("a", 7, b"id"))).is_claim
    refused = log.judge(0, Record(1, b"a", b"x", headers_of("a", 6, b"id")))
    assert (refused.refusal.token, refused.refusal.greatest) == (6, 7)


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"topic":"t","topic_id":"","partitions":1,"positions":{"x":1}}'])
def test_a_state_that_cant_be_read_is_an_error(raw):
    with pytest.raises(FenceLostError, match="begin without one"):
        FenceState.decode(raw)


def test_a_state_of_another_topic_is_refused():
    with pytest.raises(FenceLostError, match="the state is of other with 8 partitions"):
        FencedReader("127.0.0.1:1", "t", state=FenceState("other", "id", 8, {}, {}))


# --- SQLite ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@contextmanager
def opened(path: Path, kind: type[FencedSqlite] = FencedSqlite) -> Iterator[FencedSqlite]:
    with kind.open(path, fenced_ledger.RESOURCE) as ledger:
        yield ledger


class Unfenced(FencedSqlite):
    """The damage: it knows no token."""

    def greatest_token(self, access: sqlite3.Connection) -> int:
        super().greatest_token(access)
        return 0


def write_one_late(path: Path, kind: type[FencedSqlite]) -> list[tuple[int, str]]:
    """Two write, then one comes late."""
    with opened(path, kind) as one, opened(path, kind) as two:
        fenced_ledger.write(one, 3, "one")
        fenced_ledger.write(two, 7, "two")
        try:
            fenced_ledger.write(one, 3, "late")
        finally:
            found = fenced_ledger.lines(two)
    return found


def test_a_stale_token_writes_nothing(path):
    with pytest.raises(StaleTokenError) as caught:
        write_one_late(path, FencedSqlite)
    assert (caught.value.token, caught.value.greatest) == (3, 7)
    with opened(path) as ledger:
        assert fenced_ledger.lines(ledger) == [(3, "one"), (7, "two")]
        assert not ledger.connection.in_transaction
        # An equal one is the holder's next write.
        fenced_ledger.write(ledger, 7, "two again")


def test_without_the_fence_the_stale_write_gets_in(path):
    assert write_one_late(path, Unfenced) == [(3, "one"), (7, "two"), (3, "late")]


def test_a_block_that_raises_leaves_nothing_not_even_its_token(path):
    with opened(path) as ledger:
        fenced_ledger.write(ledger, 3, "one")
        with pytest.raises(sqlite3.OperationalError, match="nowhere"), ledger.writing(9) as connection:
            connection.execute("INSERT INTO lines VALUES (9, 'nine')").execute("INSERT INTO nowhere VALUES (9)")
        fenced_ledger.write(ledger, 4, "four")
        assert fenced_ledger.lines(ledger) == [(3, "one"), (4, "four")]


def test_a_commit_that_fails_leaves_nothing(path):
    with opened(path) as ledger:
        ledger.connection.executescript(
            "PRAGMA foreign_keys = ON; CREATE TABLE books (id INTEGER PRIMARY KEY);"
            "CREATE TABLE pages (book INTEGER REFERENCES books DEFERRABLE INITIALLY DEFERRED);"
        )
        with pytest.raises(sqlite3.IntegrityError), ledger.writing(9) as connection:
            connection.execute("INSERT INTO pages VALUES (1)")
        assert not ledger.connection.in_transaction
        with ledger.writing(3):
            pass


@pytest.mark.parametrize("isolation_level", [None, "", "DEFERRED", "EXCLUSIVE"])
def test_any_connection_will_do(path, isolation_level):
    connection = sqlite3.connect(path, isolation_level=isolation_level)
    connection.row_factory = lambda cursor, row: {"row": row}
    ledger = FencedSqlite(connection, "ledger")
    fenced_ledger.write(ledger, 3, "one")
    with pytest.raises(StaleTokenError):
        fenced_ledger.write(ledger, 2, "late")
    with opened(path) as other:
        assert fenced_ledger.lines(other) == [(3, "one")]
    connection.close()


def test_an_open_transaction_is_refused(path):
    with opened(path) as ledger:
        ledger.connection.execute("BEGIN")
        with pytest.raises(CoordinationError, match="a transaction is open"):
            fenced_ledger.write(ledger, 3, "one")
        ledger.connection.execute("ROLLBACK")
        with ledger.writing(3), pytest.raises(CoordinationError, match="a transaction is open"):
            fenced_ledger.write(ledger, 3, "one")


def test_a_block_that_commits_by_itself_is_told(path):
    with opened(path) as ledger:
        with pytest.raises(CoordinationError, match="ended its transaction itself"), ledger.writing(3) as connection:
            connection.commit()
        with pytest.raises(sqlite3.OperationalError), ledger.writing(3) as connection:
            connection.execute("ROLLBACK").execute("INSERT INTO nowhere VALUES (3)")


def test_resources_of_one_database_have_fences_of_their_own(path):
    with opened(path) as ledger:
        other = FencedSqlite(ledger.connection, "other")
        fenced_ledger.write(ledger, 7, "ledger")
        fenced_ledger.write(other, 3, "other")
        assert [line for _, line in fenced_ledger.lines(ledger)] == ["ledger", "other"]


RACER = """
import sys
from actors.coordination import FencedSqlite, StaleTokenError
path, tokens = sys.argv[1], range(int(sys.argv[2]), 200, 2)
with FencedSqlite.open(path, "race") as ledger:
    for token in tokens:
        try:
            with ledger.writing(token) as connection:
                connection.execute("INSERT INTO seen VALUES (?)", (token,))
        except StaleTokenError:
            pass
"""


@pytest.mark.nightly
def test_processes_that_race_write_in_the_order_of_their_tokens(path):
    with opened(path) as ledger:
        ledger.connection.execute("CREATE TABLE seen (token INTEGER)")
        racers = [subprocess.Popen([sys.executable, "-c", RACER, str(path), str(first)], cwd=ROOT) for first in (1, 2)]
        assert [racer.wait(60) for racer in racers] == [0, 0]
        seen = [token for (token,) in ledger.connection.execute("SELECT token FROM seen ORDER BY rowid")]
        assert seen == sorted(seen)
        assert seen[-1] == 199


# --- a resource of one's own -----------------------------------------------------------------------------------------


class Shelf(FencedResource[dict[str, object]]):
    """A store with conditional writes: two may begin, and the second one fails."""

    def __init__(self) -> None:
        super().__init__("shelf")
        self.content: dict[str, object] = {"version": 0, "token": 0}

    @contextmanager
    def transaction(self) -> Iterator[dict[str, object]]:
        copy = dict(self.content)
        yield copy
        if copy["version"] != self.content["version"]:
            raise TimeoutError("somebody else was faster")
        self.content = copy | {"version": copy["version"] + 1}

    def greatest_token(self, access: dict[str, object]) -> int:
        return access["token"]

    def keep_token(self, access: dict[str, object], token: int) -> None:
        access["token"] = token


def test_a_resource_of_ones_own_with_conditional_writes():
    shelf = Shelf()
    with shelf.writing(3) as content:
        content["book"] = "one"

    def write_late() -> None:
        with shelf.writing(3) as stale:
            # The holder stands still here, and another one writes.
            with shelf.writing(7) as content:
                content["book"] = "two"
            stale["book"] = "late"

    with pytest.raises(TimeoutError):
        write_late()
    with pytest.raises(StaleTokenError), shelf.writing(3):
        raise AssertionError("the block is entered")
    assert shelf.content == {"version": 2, "token": 7, "book": "two"}


def test_the_names_of_headers_are_what_other_programs_read():
    assert headers_of("ü", 3, b"x") == [
        ("fa-fence-resource", "ü".encode()),
        ("fa-fence-token", b"3"),
        ("fa-fence-id", b"x"),
    ]
    assert (RESOURCE, TOKEN, ID) == ("fa-fence-resource", "fa-fence-token", "fa-fence-id")
