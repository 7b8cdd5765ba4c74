"""Records that other clients write: header names that aren't UTF-8, and batches of every compression."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.producer import message_accumulator
from aiokafka.producer import producer as producers
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from spark_replay import AppError, archive, kafka, rebuild_state, write_rebuild
from spark_replay.archiving import Wanted, archive_topics
from spark_replay.fold.decoding import Codecs
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.kafka.helpers import make_topics, unique
from tests.spark.helpers import NOW_MS, Transaction, put, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def written(spark: SparkSession, brokers: str, topic: str) -> list[str]:
    """Write a record in each compression that Spark's own client knows, a key each."""
    jvm, codecs = spark._jvm, ["none", "gzip", "snappy", "lz4", "zstd"]
    clients = jvm.org.apache.kafka.clients.producer
    for codec in codecs:
        config = jvm.java.util.HashMap()
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        for name, value in {
            "bootstrap.servers": brokers,
            "compression.type": codec,
            "key.serializer": serializer,
            "value.serializer": serializer,
        }.items():
            config.put(name, value)
        producer = clients.KafkaProducer(config)
        try:
            record = clients.ProducerRecord(topic, codec.encode(), f"{codec} {'x' * 500}".encode())
            record.headers().add(METADATA_HEADER, encode_metadata(1, 5))
            producer.send(record).get()
        finally:
            producer.close()
    return codecs


async def write_bad_header(brokers: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a header whose name isn't UTF-8, as a C client can."""
    # the builder in C takes no subclass of str
    for module in (message_accumulator, producers):
        monkeypatch.setattr(module, "DefaultRecordBatchBuilder", _DefaultRecordBatchBuilderPy)

    class Raw(str):
        def encode(self, *_: object, **__: object) -> bytes:
            return b"\xff\xfe"

    producer = AIOKafkaProducer(bootstrap_servers=brokers)
    await producer.start()
    try:
        headers = [(Raw("raw"), b"1"), (METADATA_HEADER, encode_metadata(1, 6))]
        await producer.send_and_wait(topic, b"value", b"bad-header", headers=headers)
    finally:
        await producer.stop()


def keys(frame: DataFrame) -> set[str]:
    return {bytes(row["key"]).decode() for row in frame.where("source_offset is not null").collect()}


def test_every_compression_and_any_header_name_can_be_read(
    spark: SparkSession, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    topic = unique("app--store-changelog")
    asyncio.run(make_topics(brokers, topic, partitions=2))
    wanted = {*written(spark, brokers, topic), "bad-header"}
    with monkeypatch.context() as patch:
        asyncio.run(write_bad_header(brokers, topic, patch))
    assert keys(rebuild_state(kafka(spark, brokers, topic))) == wanted
    archive_topics(spark, Wanted(brokers=brokers, topics=(topic,)), to=tmp_path / "archive")
    source = archive(spark, tmp_path / "archive", topic)
    assert keys(rebuild_state(source)) == wanted
    names = {header["key"] for row in source.records(source.describe()).collect() for header in row["headers"]}
    assert names == {METADATA_HEADER, "\ufffd\ufffd"}


@pytest.mark.nightly
def test_executors_without_the_package_are_named(
    spark: SparkSession, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = write_log(brokers, [Transaction((put("a", "1"),))])
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncd /\nexec '{sys.executable}' -S -P \"$@\"\n")
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    monkeypatch.setattr(Codecs, "of", classmethod(lambda cls, app, _: cls(app, "store", os.devnull)))
    with pytest.raises(AppError, match=r"the executors' Python has no module 'spark_replay': install faust-actors"):
        write_rebuild(kafka(spark, brokers, log.topic), to=tmp_path / "to", as_of_ms=NOW_MS, app="shop")
    assert not (tmp_path / "to").exists()
