"""The final stores against Spark's rebuild of their changelogs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.crash.world import MODULE, NAME, STORES, WORKERS
from tests.kafka import forked

SPARK = {
    "spark.sql.shuffle.partitions": "2",
    # Short jobs: the JVM's quick compiler alone halves them.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
PATIENT = {"default.api.timeout.ms": "60000", "request.timeout.ms": "30000"}
"""The brokers have just come back, on a machine that may have much else to do."""
FULL_AT_THE_END = (
    *("stats", "kept", "Chores-timers", "spans", "sittings"),
    *("parcels", "depots", "deliver-taken", "deliver-results", "deliver-subscribers"),
)
"""The stores in which a run leaves keys; of the others there are tombstones."""


def validate_stores(brokers: str, folder: Path) -> int:
    """Export every worker's stores, let Spark validate them, and give the number of mismatches and violations."""
    environment = {"APP_NAME": NAME, "KAFKA_URL": ";".join(f"kafka://{broker}" for broker in brokers.split(","))}

    def export(worker: int) -> None:
        app = ["-A", MODULE, "-D", str(folder / f"worker-{worker}" / "data"), "state", "export"]
        for store in STORES:
            forked.faust(
                *app, store, "--to", str(folder / "exports" / store), environment=environment
            ).check_returncode()

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(export, range(WORKERS)))
    call = [sys.executable, "-m", "tests.crash.validate", brokers, str(folder / "exports")]
    done = subprocess.run(call, cwd=forked.ROOT, check=True, stdout=subprocess.PIPE, text=True)
    reports = json.loads(done.stdout.splitlines()[-1])
    for store in STORES:
        assert reports[store]["records"] > 0, reports
        assert reports[store]["keys"] > 0 or store not in FULL_AT_THE_END, reports
    return sum(report["mismatches"] + report["violations"] for report in reports.values())


def main(arguments: Sequence[str]) -> None:
    """Validate the exports of all stores in one session, in a process of its own; the last line is JSON."""
    from spark_replay import Asked, kafka, spark_session, validate_exports

    brokers, exports = arguments
    with spark_session(settings=SPARK, log=Path(exports) / "spark.log") as spark:
        reports = {
            store: validate_exports(
                kafka(spark, brokers, f"{NAME}--{store}-changelog", options=PATIENT),
                against=Path(exports) / store,
                invariants=Asked(),
            )
            for store in STORES
        }
    for report in reports.values():
        for kind, examples in report.examples.items():
            print(kind, *examples, sep="\n  ", file=sys.stderr)
        for finding in report.findings:
            if finding.count:
                print(finding, file=sys.stderr)
    print(json.dumps({store: report.totals for store, report in reports.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
