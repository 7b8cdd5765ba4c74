"""What a worker says about itself, for metrics, health and pages."""

from __future__ import annotations

from typing import Any

from actors._kafka.consume.silence import Silence
from actors._kafka.outage import Outages
from actors.runtime.observe.status import BrokersStatus, StatusInputs, WorkerStatus, worker_status


def status(app: Any) -> WorkerStatus:
    """Return the status of this process's worker, at any time of its life. Call it on its event loop.

    It waits for nothing, and takes some 40 µs a partition and as much a store. `msgspec.json.encode` takes what it
    gives.
    """
    service = app.actor_service
    setup = service.setup
    return worker_status(
        service.meters,
        service.tasks,
        StatusInputs(
            app=str(app.conf.id),
            worker="" if setup is None else setup.worker,
            address="" if setup is None else setup.address,
            now_ms=app.actor_clock.wall_ms(),
            partitions={} if service.worker is None else service.worker.partitions,
            end_offset=service.end_offset,
            position=service.position,
            copies=service.copies,
            assigned_copies=service.assigned_copies,
            clock_off_ms=app.actor_clock.off_ms,
            brokers=BrokersStatus() if setup is None else _brokers(setup.connection.outages, service.silence),
            commit_interval_s=app.conf.broker_commit_interval,
        ),
    )


def _brokers(outages: Outages, silence: Silence | None) -> BrokersStatus:
    return BrokersStatus(
        unreachable=outages.unreachable,
        group_silent_s=0.0 if silence is None else silence.group_s,
        throttled_s=outages.throttled_s,
    )
