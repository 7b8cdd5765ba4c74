"""The port that several workers share: whose requests come there, and the metrics of all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aiohttp import ClientConnectionError
from prometheus_client import generate_latest

from actors.errors import NotReadyError
from actors.web.front import Front, Gathered, gather

OWN = b'# HELP a_total Things.\n# TYPE a_total counter\na_total{app="x"} 1.0\n# TYPE b gauge\nb 2.0\n'
OTHER = b'# HELP a_total Things.\n# TYPE a_total counter\na_total{app="x"} 5.0\n'
FRONT = Front(index=1, count=4, port=6066)


class Workers:
    """Other workers by address: what they answer, or raise."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    async def fetch(self, method: str, address: str, path: str) -> bytes:
        assert (method, path) == ("GET", "/metrics")
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return answer


def asked_at(port: int) -> Any:
    return SimpleNamespace(transport=SimpleNamespace(get_extra_info=lambda _: ("127.0.0.1", port)))


def test_only_the_shared_port_is_the_front():
    assert FRONT.is_asked(asked_at(6066))
    assert not FRONT.is_asked(asked_at(6068))
    assert not FRONT.is_asked(SimpleNamespace(transport=None))


async def test_the_metrics_of_all_have_their_process_and_those_without_an_answer_are_down():
    workers = Workers(
        {
            "http://w:6067": OTHER,
            "http://w:6069": NotReadyError("it refuses"),
            "http://w:6070": ClientConnectionError(),
        }
    )
    text = generate_latest(await gather(FRONT, workers, "http://w:6068", OWN, "/metrics")).decode()
    assert text.count("# TYPE a_total counter") == 1
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert samples == [
        'faust_actors_process_up{process="0"} 1.0',
        'faust_actors_process_up{process="1"} 1.0',
        'faust_actors_process_up{process="2"} 0.0',
        'faust_actors_process_up{process="3"} 0.0',
        'a_total{app="x",process="0"} 5.0',
        'a_total{app="x",process="1"} 1.0',
        'b{process="1"} 2.0',
    ]


def test_what_is_not_metrics_is_a_process_that_is_down():
    text = generate_latest(Gathered({"0": b"a{ 1 2 3", "1": b"\xff\xfe"})).decode()
    assert text.count("} 0.0") == 2
