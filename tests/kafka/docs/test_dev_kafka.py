"""The local cluster: its command line, and that it ends its own processes and no others."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, PIPE

import click
import pytest

from actors.local_kafka import jars
from actors.local_kafka.settings import Broker, Secure, State, load, save, server_properties
from dev.kafka import (
    CONSOLE_PRODUCER,
    GET_OFFSET_SHELL,
    TOPIC_COMMAND,
    Cluster,
    ClusterStateError,
    LocalKafkaError,
    alive_brokers,
    existing_brokers,
    free_port,
    run_tool,
    tool_command,
)
from dev.kafka import __main__ as command_line

ROOT = Path(__file__).resolve().parents[3]


def cli(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("KAFKA_BROKERS", "KAFKA_URL", "KAFKA_DIR")}
    command = [sys.executable, "-m", "dev.kafka", *args]
    return subprocess.run(command, cwd=ROOT, env=clean | env, text=True, capture_output=True, timeout=90)


def processes_of(folder: Path) -> list[int]:
    """Every process with the folder in its command line, found without help of the state file."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command:
            found.append(int(path.parent.name))
    return found


def offsets(bootstrap: str, topic: str) -> str:
    return run_tool(GET_OFFSET_SHELL, "--bootstrap-server", bootstrap, "--topic", topic).stdout.strip()


def plant_state(folder: Path, *, pid: int, start_ticks: int) -> None:
    folder.mkdir(parents=True)
    process = {"pid": pid, "start_ticks": start_ticks}
    broker = {"id": 1, "port": 1, "controller_port": 2, "process": process}
    (folder / "state.json").write_text(json.dumps({"cluster_id": "k", "brokers": [broker], "overrides": {}}))


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.nightly
def test_a_cluster_from_up_to_down(tmp_path):
    folder = tmp_path / "with a spáce"
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        refused = cli("up", "--port", str(port), "--dir", str(folder))
        assert (refused.returncode, f"port {port} of 127.0.0.1 is taken" in refused.stderr) == (1, True)
    started = cli("up", "--brokers", "1", "--port", str(port), "--dir", str(folder))
    assert started.returncode == 0, started.stderr
    bootstrap = started.stdout.splitlines()[-1]
    assert bootstrap == f"127.0.0.1:{port}"
    refused = cli("up", "--port", str(port + 1), "--dir", str(folder))
    assert (refused.returncode, f"holds a cluster on port {port}" in refused.stderr) == (1, True)
    with Cluster.open(folder) as cluster:
        assert cluster.bootstrap == bootstrap
        assert processes_of(folder) == [cluster.pid(1)]

        run_tool(TOPIC_COMMAND, "--bootstrap-server", bootstrap, "--create", "--topic", "t", "--partitions", "1")
        run_tool(CONSOLE_PRODUCER, "--bootstrap-server", bootstrap, "--topic", "t", stdin="a\nb\n")
        assert offsets(bootstrap, "t") == "t:0:2"
        shown = cli("status", "--dir", str(folder))
        assert (shown.returncode, "running" in shown.stdout) == (0, True)

        cluster.kill(1)
        assert processes_of(folder) == []
        shown = cli("status", "--dir", str(folder))
        assert (shown.returncode, "down" in shown.stdout) == (3, True)

        cluster.start(1)
        assert Cluster.open(folder).bootstrap == bootstrap
        assert offsets(bootstrap, "t") == "t:0:2"

        for named in ({"KAFKA_BROKERS": bootstrap}, {"KAFKA_URL": f"kafka://{bootstrap}"}):
            used = cli("up", "--dir", str(tmp_path / "unused"), **named)
            assert (used.returncode, used.stdout) == (0, f"{bootstrap}\n")
        assert cli("down", "--delete", "--dir", str(folder), KAFKA_BROKERS=bootstrap).returncode == 0
        assert alive_brokers(*_address(bootstrap))

        cluster.pause(1)
        assert cluster.status()[0].state == "paused"
        ended = cli("down", "--delete", "--dir", str(folder))
        assert ended.returncode == 0, ended.stderr
        assert processes_of(folder) == []
        assert not folder.exists()


def _address(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


def test_a_pid_that_is_another_processs_now_is_never_signalled(tmp_path, sleeper):
    folder = tmp_path / "stale"
    plant_state(folder, pid=sleeper.pid, start_ticks=start_ticks(sleeper.pid) - 1)
    cluster = Cluster.open(folder)
    assert cluster.status()[0].state == "down"
    cluster.kill(1)
    cluster.stop(1)
    with pytest.raises(ClusterStateError):
        cluster.pause(1)
    assert cli("down", "--delete", "--dir", str(folder)).returncode == 0
    assert sleeper.poll() is None
    assert not folder.exists()


@pytest.mark.nightly
def test_the_same_plant_with_the_right_start_time_is_signalled(tmp_path, sleeper):
    # shows that the test above could fail
    plant_state(tmp_path / "own", pid=sleeper.pid, start_ticks=start_ticks(sleeper.pid))
    assert cli("down", "--dir", str(tmp_path / "own")).returncode == 0
    assert sleeper.wait(timeout=10) == -15


def test_a_listener_with_tls_and_users_beside_the_plain_one(tmp_path):
    secure = Secure("/keys/broker.pem", {"alice": "a-secret", "bob": "b-secret"})
    state = State("cluster", (Broker(1, 1001, 1002, 1003),), {}, secure)
    save(tmp_path, state)
    assert load(tmp_path) == state
    assert state.secure_bootstrap == "127.0.0.1:1003"
    text = server_properties(state, state.brokers[0], log_dir=tmp_path)
    assert "listeners=PLAINTEXT://127.0.0.1:1001,SASL_SSL://127.0.0.1:1003,CONTROLLER://127.0.0.1:1002\n" in text
    assert 'user_alice=\\"a-secret\\" user_bob=\\"b-secret\\"' in text
    assert secure.format_arguments()[::2] == ["--add-scram", "--add-scram"]
    assert secure.format_arguments()[1] == 'SCRAM-SHA-512=[name="alice",password="a-secret"]'
    plain = State("cluster", (Broker(1, 1001, 1002),), {})
    assert plain.secure_bootstrap == ""
    assert "SASL_SSL://" not in server_properties(plain, plain.brokers[0], log_dir=tmp_path)


@pytest.mark.nightly
def test_a_keystore_without_users_is_refused(tmp_path):
    keystore = tmp_path / "broker.pem"
    keystore.write_text("")
    refused = cli("up", "--keystore", str(keystore), "--dir", str(tmp_path / "cluster"))
    assert (refused.returncode, "--user" in refused.stderr) == (2, True)


def test_down_deletes_nothing_that_is_not_the_clusters(tmp_path):
    folder = tmp_path / "mine"
    plant_state(folder, pid=2**22 + 1, start_ticks=1)  # beyond the kernel's largest pid
    (folder / "letter.txt").write_text("keep")
    Cluster.open(folder).down(delete=True)
    assert [path.name for path in folder.iterdir()] == ["letter.txt"]


@pytest.mark.nightly
def test_a_cluster_that_does_not_answer_is_one_line(tmp_path):
    result = cli("up", KAFKA_BROKERS="127.0.0.1:1")
    assert (result.returncode, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert "127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, None),
        ({"KAFKA_URL": ""}, None),
        ({"KAFKA_URL": "kafka://a:1;kafka://b:2"}, "a:1,b:2"),
        ({"KAFKA_BROKERS": "a:1, b:2"}, "a:1,b:2"),
        ({"KAFKA_BROKERS": "kafka://a:1", "KAFKA_URL": "a:1"}, "a:1"),
    ],
)
def test_two_names_of_the_environment_name_one_cluster(given, found):
    assert existing_brokers(given) == found


def test_two_names_of_the_environment_that_differ_are_refused():
    with pytest.raises(LocalKafkaError, match="KAFKA_URL=a:1 and KAFKA_BROKERS=b:1 name different clusters"):
        existing_brokers({"KAFKA_URL": "a:1", "KAFKA_BROKERS": "b:1"})


def test_a_new_cluster_of_the_command_line_prefers_the_usual_port(monkeypatch, tmp_path):
    asked = []

    def up(folder, **options):
        asked.append(options["port"])
        raise LocalKafkaError("not in this test")

    monkeypatch.setattr(command_line.Cluster, "up", up)
    monkeypatch.setattr(command_line, "ensure_jars", lambda: None)
    monkeypatch.setattr(command_line, "existing_brokers", lambda: None)
    for is_free in (True, False):
        monkeypatch.setattr(command_line, "is_free", lambda port, free=is_free: free)
        with pytest.raises(click.ClickException, match="not in this test"):
            command_line.main(["up", "--dir", str(tmp_path / "x")], standalone_mode=False)
    assert asked == [9092, None]


def test_the_environment_chooses_the_version(monkeypatch):
    monkeypatch.setattr(jars, "jars_of", lambda coordinates, name, *, without: name)
    monkeypatch.setenv("KAFKA_VERSION", "9.8.7")
    assert "kafka-9.8.7/*" in tool_command(TOPIC_COMMAND)
    monkeypatch.delenv("KAFKA_VERSION")
    assert "kafka-4.4.0/*" in tool_command(TOPIC_COMMAND)


def test_no_two_processes_are_given_the_same_port():
    pick = "from dev.kafka import free_ports; print(*free_ports(3000), flush=True); input()"
    with ExitStack() as both:
        pickers = [
            both.enter_context(
                subprocess.Popen([sys.executable, "-c", pick], stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd=ROOT)
            )
            for _ in range(2)
        ]
        first, second = (set(picker.stdout.readline().split()) for picker in pickers)
        for picker in pickers:
            picker.stdin.close()
    assert (len(first), len(second), first & second) == (3000, 3000, set())
