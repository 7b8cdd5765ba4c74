"""The benchmarks' own arithmetic: the verdict sees each kind of damage, ratios compare what belongs together."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from actors._core.partitioner import partition_for
from benchmarks.backlog.rows import BOTH, COUNT, END, JOIN, ROWS, Record, Row, last, newcomers, wrong
from benchmarks.faults.takeover import Takeover
from benchmarks.faults.verdict import fold, judge
from benchmarks.locks.plan import SCENARIOS, WARM_S, Job, Result, Took
from benchmarks.pauses import compared
from benchmarks.peers.latency import PHASES, Latency, phases, probes, shares
from benchmarks.peers.rate import Rate
from benchmarks.peers.scenarios import (
    LATENCY,
    SPARSE_ONES,
    TAKEOVER,
    all_distinct,
    all_repeats,
    bursts,
    half_repeats,
    random_keys,
)
from benchmarks.peers.scenarios import (
    SCENARIOS as RATES,
)
from benchmarks.peers.summary import ratios, tables
from benchmarks.peers.systems import KAFKA_STREAMS, OURS
from benchmarks.peers.worker import connections, cpu_s, family_cpu_s
from tests.kafka.helpers import ROOT

INPUTS = {b"a": [0, 2, 4], b"b": [1, 3]}
OUTPUTS = [(b"a", 1, 0), (b"b", 1, 1), (b"a", 2, 2), (b"a", 3, 4), (b"b", 2, 3)]
STATE = {b"a": 3, b"b": 2}


def test_a_good_run_is_exact() -> None:
    verdict = judge(INPUTS, OUTPUTS, STATE)
    assert verdict.is_exact
    assert (verdict.expected, verdict.counted, verdict.state) == (5, 5, 5)


@pytest.mark.parametrize(
    ("outputs", "state", "lost", "doubled", "wrong_counts", "wrong_keys"),
    [
        pytest.param(OUTPUTS[:-1], {**STATE, b"b": 1}, 1, 0, 0, 1, id="an increment never came out"),
        pytest.param([*OUTPUTS, OUTPUTS[1]], STATE, 0, 1, 0, 0, id="an output came twice"),
        pytest.param([*OUTPUTS, (b"b", 3, 3)], {**STATE, b"b": 3}, 0, 1, 0, 1, id="an increment was counted twice"),
        pytest.param([*OUTPUTS[:3], (b"a", 3, 2), OUTPUTS[4]], STATE, 1, 1, 0, 0, id="one lost, one doubled"),
        pytest.param([*OUTPUTS[:3], (b"a", 4, 4), OUTPUTS[4]], {**STATE, b"a": 4}, 0, 0, 1, 1, id="aborted state"),
        pytest.param([*OUTPUTS, (b"c", 1, 7)], STATE, 0, 1, 0, 0, id="a key that was never sent"),
        pytest.param(OUTPUTS, {b"a": 2, b"b": 3}, 0, 0, 0, 2, id="the right sum of wrong keys"),
        pytest.param(OUTPUTS, {**STATE, b"c": 1}, 0, 0, 0, 1, id="a key too many in the state"),
        pytest.param(OUTPUTS, None, 0, 0, 0, None, id="a state that couldn't be read proves nothing"),
    ],
)
def test_damage_is_seen(
    outputs: list[tuple[bytes, int, int]],
    state: dict[bytes, int] | None,
    lost: int,
    doubled: int,
    wrong_counts: int,
    wrong_keys: int | None,
) -> None:
    verdict = judge(INPUTS, outputs, state)
    assert (verdict.lost, verdict.doubled, verdict.wrong_counts, verdict.wrong_keys) == (
        lost,
        doubled,
        wrong_counts,
        wrong_keys,
    )
    assert not verdict.is_exact


def test_the_changelog_is_folded_to_the_last_write_of_each_key() -> None:
    assert fold([(b"a", 1), (b"b", 1), (b"a", 2), (b"b", None)]) == {b"a": 2}


def rate(system: str, round_: int, records_per_s: float) -> dict[str, object]:
    return {"scenario": "exactly_once_raw", "system": system, "round": round_, "records_per_s": records_per_s}


def test_pauses_of_partitions_that_stay_are_told_from_those_that_move() -> None:
    longest_s = {0: 0.1234, 1: 0.25, 2: 1.5}
    assert compared(longest_s, [2], calm_s=0.2) == {
        "stayed": 2,
        "stayed_s": 0.25,
        "over_calm_s": 0.05,
        "moved": 1,
        "moved_s": 1.5,
    }
    assert compared(longest_s, [], calm_s=2.0)["over_calm_s"] == 0.0
    assert compared(longest_s, [0, 1, 2], calm_s=0.2)["stayed_s"] == 0.0


def test_a_ratio_compares_runs_of_the_same_round() -> None:
    runs = [
        *(rate("ours", round_, speed) for round_, speed in enumerate([100.0, 200.0, 50.0])),
        *(rate("kafka_streams", round_, speed) for round_, speed in enumerate([50.0, 100.0, 100.0])),
    ]
    assert ratios(runs)["ratio_to_kafka_streams"] == {"exactly_once_raw": 2.0}


def test_a_peer_that_did_not_run_has_no_ratio() -> None:
    assert ratios([rate("ours", 0, 100.0)])["ratio_to_quix"] == {}


def a_run_of_everything() -> list[dict[str, object]]:
    """One round in which ours needs half of what Kafka Streams does: half the time, half the memory."""
    runs: list[dict[str, object]] = []
    for system, size in ((OURS, 1), (KAFKA_STREAMS, 2)):
        latency = asdict(
            Latency(
                rate=1_000,
                p50_ms=5.0 * size,
                p95_ms=8.0 * size,
                p99_ms=10.0 * size,
                p999_ms=15.0 * size,
                max_ms=20.0 * size,
                came=1.0,
                broker_cores=0.5 * size,
                worker_cores=0.5 * size,
                max_rss_mb=100.0 * size,
                connections=2 * size,
                started_s=1.0 * size,
            )
        )
        sparse = itertools.chain.from_iterable(SPARSE_ONES.values())
        rate_ = {"records": 9, **asdict(Rate(100.0 / size, 1.0 * size, 100.0, 1.0, 50.0 * size))}
        found = [(scenario.name, rate_) for scenario in RATES if system in scenario.systems]
        found += [(name, latency) for name in (LATENCY, *(one.name for one in sparse))]
        found += [(TAKEOVER, {"keys": 9, **asdict(Takeover(cold, 1.0, 2.0 * size, 1.0))}) for cold in (False, True)]
        runs += [{"scenario": name, "system": system, "round": 0, **figures} for name, figures in found]
    return runs


def test_the_last_line_has_the_keys_that_are_asked_for() -> None:
    found = ratios(a_run_of_everything())["ratio_to_kafka_streams"]
    windows = ("tumbling", "hopping", "session", "stream_join", "table_join")
    rates = ("exactly_once_raw", "at_least_once_raw", "partitions_64", "distinct", "repeats")
    faster = dict.fromkeys((*rates, *windows), 2.0)
    figures = ("p50", "p99", "broker_cpu", "rss", "connections", "start")
    less = [f"{name}_{figure}" for name in ("sparse_64", "sparse_256", "tasks_1000") for figure in figures]
    less += [f"{name}_{figure}" for name in windows for figure in ("cpu", "state")]
    wanted = faster | dict.fromkeys(("latency_p50", "latency_p99", "tasks_1000_takeover", *less), 0.5)
    assert {name: found.get(name) for name in wanted} == wanted


def test_every_kind_of_run_has_its_row() -> None:
    rows = {table.name: [row[0] for row in table.rows] for table in tables(a_run_of_everything())}
    assert rows["sparse"] == [
        f"{over}: {system}"
        for over in ("64 partitions, 1,000/s", "256 partitions, 200/s", "1,000 partitions, 200/s")
        for system in ("ours", "Kafka Streams")
    ]
    assert [row for row in rows["windows"] if "ours" in row] == [
        "a minute's count, exactly once: ours",
        "6 windows a record, exactly once: ours",
        "sessions of 4 records, exactly once: ours",
        "pairs of two streams, exactly once: ours",
        "a table's row for each, exactly once: ours",
    ]
    assert not set(rows["windows"]) & set(rows["rates"])
    assert "1,000 partitions with 9 keys, busy, same folder: ours" in rows["restore"]


def test_every_partition_has_one_probe() -> None:
    keys = [key for key, _ in probes(256)]
    assert sorted(partition_for(key, 256) for key in keys) == list(range(256))


def test_shares_of_latencies() -> None:
    values = [float(number) for number in range(1_000, 0, -1)]
    assert shares(values) == {"p50_ms": 501.0, "p95_ms": 951.0, "p99_ms": 991.0, "p999_ms": 1_000.0, "max_ms": 1_000.0}


def test_phases_are_the_times_from_step_to_step_of_the_records_that_count(tmp_path: Path) -> None:
    """A record is sent at 1 ms, fetched 1 ms later, in the inbox 2 ms after that, and so on."""
    at_ns = [int(sum(range(1, step + 2)) * 1e6) for step in range(len(PHASES) + 1)]
    sent_ns, *steps, came_ns = at_ns
    noted = [steps[3:], [[sent_ns, *steps[:3]], [5, *steps[:3]]]]
    (path := tmp_path / "phases").write_text(json.dumps(noted) + "\n")
    found = phases(path, {sent_ns: came_ns})
    assert found == {name: [float(step)] * 5 for step, name in enumerate(PHASES, 2)}


def test_connections_to_a_port_are_counted() -> None:
    with contextlib.ExitStack() as stack:
        server, other = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        ports = {server.getsockname()[1]}
        assert connections(os.getpid(), ports) == 0
        for listener in (server, server, other):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        assert connections(os.getpid(), ports) == 2


@pytest.mark.parametrize("records", [half_repeats, all_repeats, all_distinct, random_keys, bursts])
def test_commands_have_116_bytes(records: Callable[[int], Iterator[tuple[bytes, bytes]]]) -> None:
    assert {len(key) + len(value) for key, value in records(10)} == {116}


def test_half_of_the_commands_are_repeats() -> None:
    keys = [key for key, _ in half_repeats(10)]
    assert keys[:5] == keys[5:]
    assert len(set(keys)) == 5


def test_events_come_in_bursts_that_are_sessions_and_of_one_key_on_average_twice() -> None:
    (session,) = (scenario for scenario in RATES if scenario.name == "session")
    times: dict[bytes, list[int]] = {}
    for number, (key, _) in enumerate(bursts(8_000)):
        times.setdefault(key, []).append(session.at_ms(0, 8_000, number))
    gaps = [later - earlier for at_ms in times.values() for earlier, later in itertools.pairwise(at_ms)]
    assert (len(times), Counter(gaps)) == (1_000, {6_000: 6_000, 273_000: 520, 291_000: 480})
    assert len({key for key, _ in random_keys(8_000)}) == pytest.approx(4_000 * (1 - math.exp(-2)), rel=0.02)


def test_clients_have_locks_of_their_own() -> None:
    for plan in SCENARIOS:
        names = [plan.names(client) for client in range(plan.clients)]
        if plan.locks == 1:
            assert {name for taken in names for name in taken} == {plan.name}
        else:
            assert len({name for taken in names for name in taken}) == sum(map(len, names)) == plan.locks


def test_only_what_ends_in_the_time_that_is_measured_counts() -> None:
    job, took = Job(scenario="alone", clients=[0], begin_s=100.0, seconds=2.0), Took([], [])
    begun_s = 100.0 + WARM_S
    for released_s in (begun_s - 0.1, begun_s + 0.1, begun_s + 1.9, begun_s + 2.1):
        took.note(job, released_s - 0.2, released_s - 0.1, released_s)
    assert [len(one) for one in took] == [2, 2]


def test_quantiles_of_locks() -> None:
    result = Result.of([number / 1000 for number in range(100, 0, -1)], 2.0, 1.0)
    assert (result.pairs_per_s, result.p50_ms, result.p99_ms) == (50.0, 50.0, 99.0)
    with pytest.raises(RuntimeError):
        Result.of([], 2.0, 1.0)


@pytest.mark.nightly
def test_locks_of_ours_are_measured(brokers: str, tmp_path: Path) -> None:
    options = ["--systems", "ours", "--scenarios", "alone,contended", "--seconds", "3", "--repeat", "1"]
    command = [sys.executable, "-m", "benchmarks.locks", *options, "--brokers", brokers]
    run = subprocess.Popen(
        [*command, "--profile", str(tmp_path / "kept")],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, errors = run.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        # Its worker and its clients too.
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        raise
    assert run.returncode == 0, errors
    figures = json.loads(out.splitlines()[-1])["figures"]
    assert {name: list(systems) for name, systems in figures.items()} == {"alone": ["ours"], "contended": ["ours"]}
    assert all(systems["ours"]["pairs_per_s"] > 0 for systems in figures.values())


def row(result: str, *, by: int | None = None) -> Row:
    return Row("a row", result, size_ms=10, grace_ms=0, records=newcomers, by=by)


@pytest.mark.parametrize(
    ("result", "by", "expected"),
    [
        pytest.param(COUNT, None, {"a@0": ["2"], "a@10": ["1"], "b@20": ["1"]}, id="counts by key and window"),
        pytest.param(COUNT, 1, {"a@0": ["1"], "x@0": ["1"], "x@10": ["1"], "b@20": ["1"]}, id="counts by value"),
        pytest.param(BOTH, None, {"a@0": ["both"]}, id="in both inputs in a window"),
        pytest.param(JOIN, None, {"a": ["paid", "paid"], "b": ["unpaid"]}, id="pairs, both bounds included"),
    ],
)
def test_the_oracle_of_a_backlog(result: str, by: int | None, expected: dict[str, list[str]]) -> None:
    records = [Record(5, 0, "a", ""), Record(0, 1, "a", "x"), Record(15, 1, "a", "x"), Record(21, 0, "b", "")]
    assert row(result, by=by).expected(records) == expected


@pytest.mark.parametrize(
    ("results", "count"),
    [
        pytest.param([("a", "paid"), ("a", "paid"), ("b", "unpaid")], 0, id="right"),
        pytest.param([("a", "paid"), ("b", "unpaid")], 1, id="a pair is missing"),
        pytest.param([("a", "paid"), ("a", "paid"), ("b", "unpaid"), ("b", "unpaid")], 1, id="one came twice"),
        pytest.param([("a", "paid"), ("a", "unpaid"), ("b", "paid"), ("c", "paid")], 3, id="others, and one too many"),
        pytest.param([(f"{END}a", "paid")], 2, id="only of the last records"),
    ],
)
def test_wrong_results_of_a_backlog_are_counted(results: list[tuple[str, str]], count: int) -> None:
    assert wrong({"a": ["paid", "paid"], "b": ["unpaid"]}, results) == count


@pytest.mark.parametrize("name", ROWS)
def test_the_rows_of_a_backlog_are_in_the_order_of_time(name: str) -> None:
    records = list(ROWS[name].records(2_000, 0))
    assert {record.input for record in records} == set(range(ROWS[name].inputs))
    for place in range(ROWS[name].inputs):
        times_ms = [record.at_ms for record in records if record.input == place]
        disorder_ms = max(before - after for before, after in itertools.pairwise(times_ms))
        assert disorder_ms < (2_000 if ROWS[name].records is newcomers else 1)
    results = ROWS[name].expected(records)
    assert len(results) > 20
    if ROWS[name].result == JOIN:
        assert set(itertools.chain.from_iterable(results.values())) == {"paid"}


def test_the_last_records_go_from_each_partition_to_each() -> None:
    keys = ["0", "1", "2"]
    pairs = [(record.key, record.value) for record in last(row(JOIN, by=1), 9, keys) if record.input == 1]
    assert pairs == [(END + key, END + value) for key in keys for value in keys]


@pytest.mark.nightly
def test_processes_are_measured() -> None:
    options = ["--records", "2000", "--partitions", "2", "--repeat", "1"]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.processes", *options], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert (found["records"], found["partitions"], found["repeat"]) == (2000, 2, 1)
    for kind in ("one_worker", "processes_1", "processes_2"):
        assert found[kind].keys() == {"records_per_s", "workers_cpu_s_per_million", "broker_cpu_s_per_million"}
        assert found[kind]["records_per_s"] > 0 < found[kind]["broker_cpu_s_per_million"]
    assert found["two_processes_to_one_worker"] > 0


def test_cpu_time_of_a_supervisor_is_that_of_its_processes_too() -> None:
    busy = "import sys\nwhile True: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    with subprocess.Popen([sys.executable, "-c", child], start_new_session=True) as supervisor:
        try:
            deadline_s = time.monotonic() + 60
            while family_cpu_s(supervisor.pid) < cpu_s(supervisor.pid) + 0.1:
                assert time.monotonic() < deadline_s
        finally:
            os.killpg(supervisor.pid, signal.SIGKILL)
