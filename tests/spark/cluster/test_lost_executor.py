"""Executors that are processes of their own and get kill -9 in the middle: the right result, or a clear error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spark.cluster.test_local_cluster import submit
from tests.spark.helpers import NOW_MS, fold, random_transactions, write_log

LOST = "ReadError: executors were lost with rows of the log that had been read"
pytestmark = pytest.mark.timeout(900)


@pytest.mark.nightly
def test_executors_that_are_killed(brokers: str, tmp_path: Path):
    """The loss of one changes nothing. Of both it is said, and what is kept on one executor is lost with it."""
    log = write_log(brokers, random_transactions(8, count=20, keys=60), config={"cleanup.policy": "compact"})
    job = Path(__file__).with_name("lost_job.py")
    done = submit(job, brokers, log.topic, str(tmp_path), str(NOW_MS), folder=tmp_path, java_home=None)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    result = json.loads(done.stdout.splitlines()[-1])
    state = {write.key.decode(): write.value.decode() for write in fold(log.records).values()}
    assert result["one after the read"] == state
    assert result["one in the middle"] == state
    assert result["kept once"].startswith(LOST), result
    assert result["both after the read"].startswith(LOST), result
