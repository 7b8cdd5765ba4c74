"""A changelog behind TLS and a password, read with a properties file as Kafka's own tools take it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dev.kafka import Cluster, Secure
from spark_replay import ReplayError, kafka
from spark_replay.sources.changelog import read_rows
from spark_replay.sources.kafka import read_properties
from tests.certificates import Authority
from tests.spark.helpers import Log, random_transactions, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster with TLS and SASL, and what its certificates are signed by."""

    cluster: Cluster
    authority: Authority
    log: Log


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    secure = Secure(str(authority.keystore("broker")), {"alice": "alice-secret"})
    with Cluster.up(tmp_path_factory.mktemp("secure-kafka"), secure=secure) as cluster:
        yield Site(cluster, authority, write_log(cluster.bootstrap, random_transactions(6, count=20, keys=30)))


def properties(file: Path, ca: Path, password: str) -> Path:
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{password}";'
    lines = ["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", f"sasl.jaas.config={login}"]
    file.write_text("\n".join([*lines, "ssl.truststore.type=PEM", f"ssl.truststore.location={ca}", ""]))
    return file


@pytest.mark.nightly
def test_a_changelog_behind_tls_and_a_password(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    options = read_properties(spark, properties(tmp_path / "client.properties", site.authority.file, "alice-secret"))
    source = kafka(spark, site.cluster.secure_bootstrap, site.log.topic, options)
    assert read_rows(source, source.describe()).count() == len(site.log.records)


@pytest.mark.nightly
@pytest.mark.parametrize("wrong", ["password", "certificate"])
def test_what_is_wrong_is_said(spark: SparkSession, site: Site, tmp_path: Path, wrong: str) -> None:
    ca = site.authority.file if wrong == "password" else Authority(tmp_path / "stranger").file
    password = "not-it" if wrong == "password" else "alice-secret"
    options = read_properties(spark, properties(tmp_path / "client.properties", ca, password))
    with pytest.raises(ReplayError) as refused:
        kafka(spark, site.cluster.secure_bootstrap, site.log.topic, options).describe()
    said = "Authentication failed" if wrong == "password" else "unable to find valid certification path"
    assert said in str(refused.value)
    assert password not in str(refused.value)
