"""The fixture `kafka`, as a user's own test suite has it: a broker for the session, and nothing afterwards."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[3]

SUITE = """
import asyncio
from pathlib import Path
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

addresses = []

async def send(kafka):
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic("greetings", 1, 1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        assert (await producer.send_and_wait("greetings", b"hello", partition=0)).offset == 0

def test_sends(kafka):
    asyncio.run(send(kafka))
    addresses.append(kafka)

def test_has_the_same_one(kafka):
    Path("address").write_text(kafka)
    assert addresses == [kafka]
"""


@pytest.mark.nightly
def test_a_session_has_a_broker_and_leaves_none(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(SUITE)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "pytest_faust_actors").assert_outcomes(passed=2)
    host, port = (pytester.path / "address").read_text().split(":")
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0
