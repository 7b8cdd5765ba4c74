"""Keys that expire: each value is read until its time, and then its hook runs once, unless another took its place.

Their store is published: readers find what its changelog has, commit by commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from actors.ports import TopicPartition
from actors.runtime.handlers import expiry
from actors.runtime.message.context import Context
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.message.publishing import Publication, PublishedStore
from tests.sim import app
from tests.sim.part import Host, Operation, Part, Stores, now_ms_of, write_ms_of

STORE = "briefs"
TOPIC = "expired"
READERS = "readers"
LIVES_S = (0.05, 0.5, 3.0, 10.0, 25.0)


class ExpiryPart(Part):
    """Inputs write values that live for some time, read them, and delete them; the hook may fail."""

    name = "expiry"
    stores = (STORE,)
    topics = (TOPIC, READERS)
    limits = ((expiry, "PASS_REST_S", (0.3, 2.0)), (expiry, "SLICE_KEYS", (1, 2, 500)))

    def make_input(self, key: str) -> str:
        random = self.random
        if random.random() < 0.6:
            return f"brief:{random.choice(LIVES_S)}"
        return f"{random.choice(('peek', 'peek', 'unbrief'))}:0"

    def make_stores(self, host: Host) -> Stores:
        def on_expire(ctx: Context, value: str) -> None:
            self._expire(ctx, value)

        briefs: PublishedStore[Any, Any] = PublishedStore(
            STORE,
            publish=READERS,
            codecs=lambda: (None, None),
            encode_key=str.encode,
            decode_key=bytes.decode,
            encode_value=str.encode,
            decode_value=bytes.decode,
            expires=True,
            on_expire=on_expire,
        )
        return (briefs,)

    def declared(self, host: Host, stores: Stores) -> dict[str, Any]:
        readers = OutputTopic(READERS, str.encode, str.encode, 1_000_000)
        return {"published": {STORE: Publication(STORE, readers, None, None)}}

    # --- the handler -----------------------------------------------------------------------------------------------

    def _expire(self, ctx: Context, value: str) -> None:
        if int(value) % 4 == 0 and self.is_first_attempt(ctx.partition, ctx.key, value):
            self.fail_with_garbage(ctx)
        ctx.send(TOPIC, key=ctx.key, value=f"expired {value} {self.latest_ms()}")

    def operations(self, host: Host, stores: Stores) -> Mapping[str, Operation]:
        (store,) = stores

        async def brief(ctx: Context, argument: str) -> None:
            life = timedelta(seconds=float(argument))
            due_ms = write_ms_of(ctx) + life // timedelta(milliseconds=1)
            store.set(ctx.key, str(ctx.offset), ttl=life)
            ctx.send(TOPIC, key=ctx.key, value=f"set {ctx.offset} {due_ms}")

        async def peek(ctx: Context, _: str) -> None:
            ctx.send(TOPIC, key=ctx.key, value=f"saw {store.get(ctx.key)} {now_ms_of(ctx)}")

        async def unbrief(ctx: Context, _: str) -> None:
            value = store.get(ctx.key)
            if store.delete(ctx.key) is not (value is not None):
                self.world.audit.violated(f"expiry: {ctx.key} had {value}, and its removal said otherwise")
            ctx.send(TOPIC, key=ctx.key, value=f"deleted {value} {now_ms_of(ctx)}")

        return {"brief": brief, "peek": peek, "unbrief": unbrief}

    # --- the oracle ------------------------------------------------------------------------------------------------

    def unsettled(self) -> Iterator[str]:
        for partition in self.partitions:
            for key, raw in self.folded(STORE, partition).items():
                yield f"expiry: {key!r} is there: {raw!r}"

    def check(self) -> Iterator[str]:
        yield from self._published()
        for partition in self.partitions:
            yield from self._replayed(partition)

    def _published(self) -> Iterator[str]:
        """Compare what readers find with the changelog, commit by commit."""
        logged, shown = self._history(app.changelog(STORE)), self._history(READERS)
        for key in sorted(logged.keys() | shown.keys()):
            in_log, for_readers = logged.get(key, []), shown.get(key, [])
            self.count("value published")
            if in_log != for_readers:
                yield f"publish: {key!r} was {in_log} in the changelog, and {for_readers} for readers"

    def _history(self, topic: str) -> dict[bytes, list[bytes | None]]:
        found: dict[bytes, list[bytes | None]] = defaultdict(list)
        for partition in self.partitions:
            for record in self.world.cluster.log(TopicPartition(topic, partition)).history:
                if record.is_committed:
                    found[record.key].append(record.value)
        return found

    def _replayed(self, partition: int) -> Iterator[str]:
        held: dict[bytes, _Value] = {}
        latest_ms = 0
        for key, (what, text, time) in self.events(TOPIC, partition):
            value, now_ms = held.get(key), int(time)
            # Handlers that run side by side end in another order than they began.
            if what in ("saw", "deleted") and "parallel" not in self.world.features:
                if now_ms < latest_ms:
                    yield f"expiry: the time of partition {partition} went back from {latest_ms} to {now_ms}"
                latest_ms = max(latest_ms, now_ms)
            if what == "set":
                if value is not None:
                    self.count("expiring value replaced")
                held[key] = _Value(text, now_ms)
                continue
            self.count(f"value {what}")
            wanted = value.read(now_ms) if value is not None else "None"
            if what == "expired":
                is_right = value is not None and value.text == text and value.due_ms <= now_ms
            else:
                is_right = text == wanted
            if not is_right:
                yield f"expiry: {key} of partition {partition}: {what} {text} at {now_ms}, and there was {value}"
            if what != "saw":
                held.pop(key, None)
        for key, value in held.items():
            yield f"expiry: {key} of partition {partition}: the hook never ran for {value}"


@dataclass(frozen=True, slots=True)
class _Value:
    text: str
    due_ms: int

    def read(self, now_ms: int) -> str:
        return self.text if now_ms < self.due_ms else "None"
