"""Counts messages per key and echoes each running value; another program's damage can be planted with `PLANT`.

With `SLOW_RESTORES` a takeover that has to read more than so many offsets takes as long as one of much state does.
"""

import asyncio
import os
from typing import Any

from actors import App, Context
from actors._core.group import placement
from actors.runtime.state.restore import Restorer

NAME = os.environ["APP_NAME"]
app = App(
    NAME,
    broker=os.environ["KAFKA_URL"],
    broker_session_timeout=float(os.environ.get("SESSION_S", "6")),
    broker_heartbeat_interval=float(os.environ.get("HEARTBEAT_S", "0.5")),
    table_standby_replicas=int(os.environ.get("STANDBYS", "1")),
    acceptable_recovery_lag=int(os.environ.get("ACCEPTABLE_LAG", "1000")),
    web_port=int(os.environ.get("WEB_PORT", "6066")),
    consumer_group_instance_id=os.environ.get("INSTANCE_ID", ""),
)
source = app.topic(f"{NAME}-in", key_type=str, value_type=str)
echo = app.topic(f"{NAME}-out", key_type=str, value_type=str)
counts = app.store("counts", key_type=str, value_type=int)


@app.actor(source, stores=[counts])
async def count(ctx: Context, value: str) -> None:
    """Count the key's messages."""
    number = (counts.get(ctx.key) or 0) + 1
    counts.set(ctx.key, number)
    ctx.send(echo, key=ctx.key, value=str(number))


if os.environ.get("PLANT") == "ignore warmth":
    placement._Placing._is_cold = lambda self, task, index: False  # type: ignore[method-assign]
if os.environ.get("PLANT") == "no standbys":
    placement._Placing._choose_standbys = lambda self: None  # type: ignore[method-assign]

if "SLOW_RESTORES" in os.environ:
    read = Restorer._read

    async def slowly(self: Restorer, store: Any, source: Any, plan: Any, *rest: Any) -> Any:
        """Wait first if there is much to read."""
        if plan.end - plan.start > int(os.environ["SLOW_RESTORES"]):
            await asyncio.sleep(30)
        return await read(self, store, source, plan, *rest)

    Restorer._read = slowly  # type: ignore[method-assign]
