"""The actor model in the simulation: which parts of it a run has, and what they change in the app."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from actors._core.task.policy import OnError
from actors.runtime.message.context import Context
from tests.sim import app
from tests.sim.asks import AsksPart
from tests.sim.dedupe import DedupePart
from tests.sim.effects import EffectsPart
from tests.sim.expiry import ExpiryPart
from tests.sim.fakes.loop import Process
from tests.sim.foreign import ForeignPart
from tests.sim.joins import JoinsPart
from tests.sim.park import ParkPart
from tests.sim.part import Host, Part, Stores
from tests.sim.queries import QueriesPart
from tests.sim.rows import RowsPart
from tests.sim.sessions import SessionsPart
from tests.sim.timers import TimersPart
from tests.sim.versions import VersionsPart
from tests.sim.views import ViewsPart
from tests.sim.windows import WindowsPart

if TYPE_CHECKING:
    from tests.sim.node import Node, World

P = TypeVar("P", bound=Part)

PARTS = (
    TimersPart,
    EffectsPart,
    ExpiryPart,
    ParkPart,
    SessionsPart,
    DedupePart,
    RowsPart,
    WindowsPart,
    JoinsPart,
    ForeignPart,
    ViewsPart,
    QueriesPart,
    VersionsPart,
    AsksPart,
)
NOT_WITH_PARK = frozenset(("poison", "refused"))
"""What stops a partition, where parking goes on."""
ODDS = {
    "parallel": 0.4,
    "timers": 0.25,
    "effects": 0.25,
    "expiry": 0.2,
    "park": 0.2,
    "asks": 0.2,
    "sessions": 0.15,
    "dedupe": 0.15,
    "rows": 0.1,
    "windows": 0.2,
    "joins": 0.2,
    "views": 0.1,
    "queries": 0.1,
    "versions": 0.1,
}
FLAKY = frozenset(("timers", "effects", "asks", "sessions", "dedupe", "rows", "windows", "joins", "foreign"))
NEEDED = {"asks": ("parallel",)}
"""What a part can't be without."""
NOT_WITH = {"joins": "parallel", "foreign": "parallel"}
"""What a part can't be with: a join handles one message after the other."""


def drawn(seed: int, others: Collection[str]) -> list[str]:
    """Give what a seed has of the model, each drawn apart from all else."""
    found = [name for name, odds in ODDS.items() if Random(f"{seed} {name}").random() < odds]
    return [name for name in completed(found) if name != "park" or NOT_WITH_PARK.isdisjoint(others)]


def completed(features: Collection[str]) -> list[str]:
    """Give the features with those that they need, and without those that can't be."""
    found = dict.fromkeys([*features, *(need for name in features for need in NEEDED.get(name, ()))])
    return [name for name in found if NOT_WITH.get(name) not in found]


class Model:
    """The parts of one run.

    Attributes:
        stores, topics, compacted: what the parts need, by name.
    """

    def __init__(self, seed: int, features: Collection[str]) -> None:
        self._seed = seed
        self.parts: list[Part] = [part(seed) for part in PARTS if part.name in features]
        self.stores = tuple(store for part in self.parts for store in part.stores)
        self.topics = tuple(topic for part in self.parts for topic in part.topics)
        self.compacted = tuple(topic for part in self.parts for topic in part.compacted)
        self.made_at_start = frozenset(topic for part in self.parts for topic in part.made_at_start)

    def join(self, world: World) -> None:
        """Know the world; called once, when there is one."""
        for part in self.parts:
            part.world = world

    def extended(self, host: Host, stores: Stores, handler: Any) -> tuple[Stores, Any, dict[str, Any]]:
        """Give the stores, the handler and what else `ActorSpec` needs, with all parts in a process."""
        operations, messages, declared = {}, {}, dict[str, Any]()
        made: list[tuple[Part, Stores]] = []
        for part in self.parts:
            if part.name in FLAKY:
                # What fails the first time is tried again, except where it is parked.
                declared.setdefault("on_error", OnError(retries=5, first_wait=timedelta(seconds=0.1)))
            own = part.make_stores(host)
            made.append((part, own))
            stores += own
            operations.update(part.operations(host, own))
            messages.update(part.messages(host))
            more = part.declared(host, own)
            timed = (*declared.get("windows", ()), *more.get("windows", ()))
            declared.update(more, windows=timed)

        async def handle(ctx: Context, value: str) -> Any:
            operation, _, argument = value.partition(":")
            if operation in messages:
                return await messages[operation](ctx, argument)
            if operation not in operations:
                return await handler(ctx, value)
            result = await operations[operation](ctx, argument)
            if operation not in app.SILENT:
                ctx.send(app.ECHO, key=ctx.key, value=f"{app.place(ctx)} {value} {operation}")
            return result

        whole = handle if self.parts else handler
        for part, own in made:
            whole = part.around(whole, own)
        return stores, whole, declared

    async def open(self, node: Node, process: Process) -> None:
        """Start what the parts have in a process beside its worker."""
        for part in self.parts:
            await part.open(node, process)

    def may_lack(self, store: str, rows: Mapping[bytes, bytes]) -> Iterator[bytes]:
        """Give the committed rows of a store that a disk needn't have any more."""
        for part in self.parts:
            yield from part.may_lack(store, rows)

    def faults(self, nodes: Sequence[Node]) -> Iterator[Callable[[], float | None]]:
        for part in self.parts:
            yield from part.faults(nodes)

    def part(self, kind: type[P]) -> P | None:
        """Give the part of that kind, if the run has it."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    @contextlib.contextmanager
    def small_limits(self) -> Iterator[None]:
        """Have a few records do what the product does from thousands on."""
        before = [
            (module, name, getattr(module, name), choices)
            for part in self.parts
            for module, name, choices in part.limits
        ]
        for module, name, _, choices in before:
            setattr(module, name, Random(f"{self._seed} {name}").choice(choices))
        try:
            yield
        finally:
            for module, name, value, _ in before:
                setattr(module, name, value)

    def unsettled(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.unsettled()

    def operate(self) -> bool:
        acted = [part.operate() for part in self.parts]
        return any(acted)

    def check(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.check()
