"""The final stores against Spark's rebuild of the changelog."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.crash.world import MODULE, NAME, WORKERS
from tests.kafka.helpers import ROOT


def validate_stores(brokers: str, folder: Path) -> int:
    """Export every worker's stores, let Spark validate them, and give the number of mismatches."""
    environment = {
        **os.environ,
        "APP_NAME": NAME,
        "KAFKA_URL": ";".join(f"kafka://{broker}" for broker in brokers.split(",")),
    }
    exports = folder / "exports"
    for number in range(WORKERS):
        data = folder / f"worker-{number}" / "data"
        options = ["-A", MODULE, "-D", str(data), "state", "export", "stats", "--to", str(exports)]
        subprocess.run(
            [sys.executable, "-m", "faust", *options], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL
        )
    options = ["--brokers", brokers, "--changelog", f"{NAME}-stats-changelog", "--against", str(exports)]
    result = subprocess.run(
        [sys.executable, "-m", "spark_replay", "validate", *options],
        cwd=ROOT,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    report = json.loads(result.stdout.strip().splitlines()[-1])
    assert report["keys"] > 0, report
    return int(report["mismatches"])
