"""Sends records at a rate and measures when a read-committed consumer has what came of each.

    python -m benchmarks.peers.latency_client '{"brokers": …}'

A process of its own over librdkafka, whose threads do the network's work: a client in Python, with producer and
consumer in one event loop, had a tail of its own. A record's value is when it was given to the producer. The last line
is JSON: when each record was sent and came, in nanoseconds of the machine's monotonic clock.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.peers.latency import BEGUN, Traffic, value_of

_TICK_S = 0.001
_DRAIN_S = 20.0
_POLL_S = 0.1
_SWITCH_S = 0.0002
"""How long one of the two threads may keep the other from running."""
_METADATA_S = 30.0


def main() -> None:
    """Send and measure as the first argument says."""
    traffic = Traffic(**json.loads(sys.argv[1]))
    sys.setswitchinterval(_SWITCH_S)
    consumer = _reading(traffic)
    count: list[int] = []
    sender = threading.Thread(target=lambda: count.append(_send(traffic)), daemon=True)
    sender.start()
    times_ns: list[tuple[int, int]] = []
    deadline_s = time.monotonic() + traffic.seconds + _DRAIN_S
    while time.monotonic() < deadline_s and not (count and len(times_ns) >= count[0]):
        message = consumer.poll(_POLL_S)
        if message is not None:
            if (error := message.error()) is not None:
                raise RuntimeError(f"{traffic.target}: {error}")
            times_ns.append((int(message.value() or 0), time.perf_counter_ns()))
    if not count:
        raise RuntimeError(f"{traffic.source}: not all records could be sent")
    consumer.close()
    print(json.dumps({"sent": count[0], "times_ns": times_ns}))


def _reading(traffic: Traffic) -> Consumer:
    """Return a consumer at the end of the output."""
    consumer = Consumer(
        {
            "bootstrap.servers": traffic.brokers,
            "group.id": "latency",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    partitions = consumer.list_topics(traffic.target, _METADATA_S).topics[traffic.target].partitions
    parts = [TopicPartition(traffic.target, number) for number in partitions]
    for part in parts:
        _, part.offset = consumer.get_watermark_offsets(part, _METADATA_S)
    consumer.assign(parts)
    return consumer


def _send(traffic: Traffic) -> int:
    """Send distinct keys; return how many."""
    producer = Producer(
        {"bootstrap.servers": traffic.brokers, "partitioner": "murmur2_random", "linger.ms": 0, "acks": 1}
    )
    producer.list_topics(traffic.source, _METADATA_S)
    print(BEGUN, flush=True)
    sent, began_s = 0, time.monotonic()
    while (elapsed_s := time.monotonic() - began_s) < traffic.seconds:
        while sent < elapsed_s * traffic.rate:
            key = b"at-%05d-%08d" % (traffic.rate, sent)
            producer.produce(traffic.source, value_of(time.perf_counter_ns()), key)
            sent += 1
        producer.poll(0)
        time.sleep(max(_TICK_S, began_s + sent / traffic.rate - time.monotonic()))
    if left := producer.flush(_DRAIN_S):
        raise RuntimeError(f"{left} records weren't sent")
    return sent


if __name__ == "__main__":
    main()
