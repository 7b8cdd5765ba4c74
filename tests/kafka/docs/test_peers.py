"""The peers of `benchmarks.peers`: how each is started and counted, and what the last line says of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.peers import systems
from benchmarks.peers.__main__ import LATENCY_RATES, Plan, main
from benchmarks.peers.scenarios import SCENARIOS
from benchmarks.peers.summary import NAMES, ratios, tables
from benchmarks.peers.systems import (
    EXACTLY_ONCE,
    FAUST,
    FLINK,
    JAVA_SYSTEMS,
    KAFKA_STREAMS_DIRECT,
    OURS,
    QUIX,
    SPARK,
    SYSTEMS,
    Job,
)
from benchmarks.peers.worker import Worker
from tests.kafka.helpers import ROOT

_BUSY = "import time\nbegan = time.process_time()\nwhile time.process_time() < began + 0.3: pass\n"
_CONNECT = "import os, socket\nserver = socket.create_connection(('127.0.0.1', int(os.environ['PEER_BROKERS'])))\n"
_CHILD = f"{_CONNECT}{_BUSY}print(1, flush=True)\ntime.sleep(60)\n"
_FAMILY = f"""
import os, pathlib, subprocess, sys
{_BUSY}
child = subprocess.Popen([sys.executable, "-c", {_CHILD!r}], process_group=0, stdout=subprocess.PIPE)
child.stdout.read(1)
pathlib.Path("pids.new").write_text(f"{{os.getpid()}} {{child.pid}}")
pathlib.Path("pids.new").rename("pids")
time.sleep(60)
"""


def job(system: str) -> Job:
    return Job(system, "dedupe", EXACTLY_ONCE, "127.0.0.1:9", "app", "in", "out")


def test_every_system_has_a_name_and_is_measured_by_default() -> None:
    assert set(NAMES) == set(SYSTEMS)
    (raw,) = (scenario for scenario in SCENARIOS if scenario.name == "exactly_once_raw")
    assert set(raw.systems) == set(SYSTEMS)
    assert set(LATENCY_RATES) <= set(SYSTEMS)


def test_stores_of_kafka_streams_are_transactional_where_not_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(systems, "java_command", lambda *options: list(options))
    for system in JAVA_SYSTEMS:
        command = job(system).command(tmp_path)
        value = command[command.index("--transactional-stores") + 1]
        assert value == ("off" if system == KAFKA_STREAMS_DIRECT else "on")


@pytest.mark.parametrize("system", [SPARK, FLINK])
def test_spark_and_flink_run_in_their_own_environments(
    system: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(systems, "_own_python", lambda system: Path(f"/own/{system}/python"))
    monkeypatch.setattr(systems, "_connector_jars", lambda system: ["a.jar", "b.jar"])
    python, app, *options = job(system).command(tmp_path)
    assert (python, options) == (f"/own/{system}/python", ["1g", "a.jar", "b.jar"])
    assert (Path(app).is_file(), job(system).has_group, job(OURS).has_group) == (True, False, True)
    assert Path(job(system).environment(tmp_path)["JAVA_HOME"], "bin", "java").is_file()


@pytest.mark.parametrize(
    ("system", "names"),
    [
        (SPARK, ["commons-pool2-2.jar", "kafka-clients-3.jar", "spark-sql-kafka-0-10_2.13-4.jar"]),
        (FLINK, ["flink-sql-connector-kafka-5.jar"]),
    ],
)
def test_a_connector_brings_only_what_its_system_lacks(
    system: str, names: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (*names, "scala-library-2.jar", "kafka-clients-3.jar"):
        (tmp_path / name).touch()
    monkeypatch.setattr(systems, "jars_of", lambda coordinates, name: tmp_path)
    assert [Path(jar).name for jar in systems._connector_jars(system)] == names


@pytest.mark.parametrize(("system", "count"), [(OURS, 500), (QUIX, 100), (FAUST, 60), (SPARK, 30), (FLINK, 20)])
def test_slow_systems_get_fewer_records(system: str, count: int) -> None:
    plan = Plan(
        only=(),
        systems=(),
        repeat=1,
        records=500,
        distinct=500,
        quix_records=100,
        faust_records=60,
        spark_records=30,
        flink_records=20,
        restore_keys=(),
        latency_s=1.0,
        commit_s=0.1,
        phases=False,
    )
    assert plan.count(SCENARIOS[0], system) == count


def test_an_unknown_system_is_refused() -> None:
    result = CliRunner().invoke(main, ["--system", "ours,bytewax"])
    assert result.exit_code == 2
    assert f"bytewax is none of {', '.join(SYSTEMS)}" in result.output


def test_the_last_line_and_the_table_have_pyspark() -> None:
    figures = {"scenario": "exactly_once_raw", "round": 0, "cpu_s_per_million": 1.0, "max_rss_mb": 1.0, "records": 9}
    runs = [{**figures, "system": OURS, "records_per_s": 100.0}, {**figures, "system": SPARK, "records_per_s": 4.0}]
    assert ratios(runs) == {
        "ratio_to_kafka_streams": {},
        "ratio_to_quix": {},
        "ratio_to_faust": {},
        "ratio_to_spark": {"exactly_once_raw": 25.0},
        "ratio_to_flink": {},
        "compiled_to_kafka_streams": {},
    }
    (table,) = tables(runs)
    assert table.rows[-1][0] == "run commands, exactly once: PySpark, transformWithStateInPandas"


@dataclass(frozen=True, slots=True)
class Family(Job):
    """A process with a child in a process group of its own, as PySpark has them."""

    def command(self, folder: Path) -> list[str]:
        return [sys.executable, "-c", f"import os\nos.chdir({str(folder)!r})\n{_FAMILY}"]


def test_a_worker_is_all_of_its_processes(tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    worker = Worker(Family(OURS, "dedupe", EXACTLY_ONCE, str(port), "app", "in", "out"), tmp_path / "worker")
    worker.start()
    try:
        deadline_s = time.monotonic() + 60
        while not (pids := worker.folder / "pids").exists():
            worker.check()
            assert time.monotonic() < deadline_s
        parent, child = map(int, pids.read_text().split())
        assert parent == worker.pid
        assert worker.cpu_s >= 0.6
        status = Path(f"/proc/{parent}/status").read_text().splitlines()
        alone_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
        assert worker.max_rss_mb > alone_kib / 1024
        assert worker.connections({port}) == 1
    finally:
        worker.kill()
        server.close()
    while Path(f"/proc/{child}").exists() and _state(child) != "Z":
        assert time.monotonic() < deadline_s
    assert not worker.is_running


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("system", [SPARK, FLINK])
def test_systems_with_environments_of_their_own_are_measured(system: str) -> None:
    options = ["--quick", "--only", "exactly_once_raw", "--system", system]
    command = [sys.executable, "-m", "benchmarks.peers", *options]
    run = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=800)
    assert run.returncode == 0, run.stderr
    assert "no figure" not in run.stderr, run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["versions"].keys() == {"broker", system}
