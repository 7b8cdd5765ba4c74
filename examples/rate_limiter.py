"""A limit to how often each client may call (`faust -A examples.rate_limiter worker`).

Every client is an actor with a bucket of permits, which is refilled over time. A web server asks before it serves:
`await app.ask(Bucket, "client-7", Take())`. One owner per client decides, so two servers never use the same permit. An
idle client costs only its state on disk.
"""

import os
import time
from datetime import timedelta

import msgspec

from actors import Actor, App, receive

app = App("limits", broker=os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092"))
PERMITS = 5
REFILL_S = float(os.environ.get("REFILL_S", "1.0"))
"""How long it takes until another permit is there."""


class Take(msgspec.Struct, tag="take"):
    """The question for permits. `at_s`, Unix seconds, is the time of the call; now when left out."""

    permits: int = 1
    at_s: float | None = None


class Decision(msgspec.Struct):
    """The answer: whether the call may go on, and otherwise after how many seconds it is worth another try."""

    is_allowed: bool
    retry_after_s: float = 0.0


class Permits(msgspec.Struct):
    """The content of the bucket, as of a time in Unix seconds."""

    left: float = PERMITS
    at_s: float = 0.0


@app.actor(app.topic("limit-requests", key_type=str))
class Bucket(Actor[Permits]):
    """One client's permits."""

    state_ttl = timedelta(seconds=10 * PERMITS * REFILL_S)

    @receive
    async def take(self, message: Take) -> Decision:
        """Grant permits, all or none."""
        now_s = time.time() if message.at_s is None else message.at_s
        filled = min(PERMITS, self.state.left + max(0.0, now_s - self.state.at_s) / REFILL_S)
        is_allowed = filled >= message.permits
        self.state = Permits(filled - message.permits if is_allowed else filled, max(now_s, self.state.at_s))
        return Decision(is_allowed, 0.0 if is_allowed else (message.permits - filled) * REFILL_S)
