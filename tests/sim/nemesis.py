"""Faults, drawn from the seed. Each seed has some kinds of them, so that each kind also comes undisturbed by others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from random import Random

from tests.sim.fakes.disk import Disk
from tests.sim.fakes.loop import Process
from tests.sim.fakes.network import Conditions
from tests.sim.node import SKEW_MARGIN_MS, Node, World

REQUESTS = (
    "InitProducerId",
    "Heartbeat?",
    "OffsetFetch",
    "ListOffsets",
    "Read",
    "TxnOffsetCommit",
    "Produce",
    "EndTxn",
    "JoinGroup",
    "SyncGroup",
)
WRITES = ("apply", "load", "wipe")
STEPS = (
    *(f"{request} {when}" for request in REQUESTS for when in ("to send", "answered")),
    *(f"{kind} {when}" for kind in WRITES for when in ("to write", "written")),
    "store to open",
    "disk called",
    "assigned",
)
TAKEOVER_STEPS = ("assigned", *STEPS[: 2 * REQUESTS.index("TxnOffsetCommit")])
ENOUGH_S = 250.0
"""After so long no new fault comes: a run is short, and there are many."""
COMMIT_REQUESTS = ("TxnOffsetCommit", "Produce", "EndTxn")
FATES = ("lost", "answer lost", "late", "doubled")


class Nemesis:
    """Does harm until `heal`."""

    def __init__(
        self,
        world: World,
        nodes: list[Node],
        random: Random,
        *,
        kinds: Sequence[str] = (),
        further: Iterable[Callable[[], float | None]] = (),
    ) -> None:
        """`kinds` names all that may come; `further` are those that come with the run's features."""
        self._world = world
        self._nodes = nodes
        self._random = random
        every: list[Callable[[], float | None]] = [
            self.crash,
            self.crash_at_step,
            self.pause,
            self.pause_at_step,
            self.wake_in_takeover,
            self.rebalance,
            self.rebalance_at_step,
            self.unknown_outcome,
            self.bad_network,
            self.cut_off,
            self.move_group_coordinator,
            self.move_group_coordinator_at_step,
            self.move_transaction_coordinator,
            self.slow_disk,
            self.full_disk,
            self.damage_disk,
            self.clock_jump,
            self.compact,
            self.long_absence,
            self.long_cut_off,
            self.foreign_transaction,
            self.slow_markers,
            self.bounce,
        ]
        further = list(further)
        if "steps" in world.features:
            further += [self.clock_step]
        if "swapped" in world.features:
            further += [self.swap_folders]
        if "static" in world.features:
            further += [self.quick_restart, self.move]
        drawn = random.sample(every, random.randint(2, 9)) + 2 * further
        only_named = [self.swap_folders]
        self._kinds = [fault for fault in every + further + only_named if fault.__name__ in kinds] or drawn
        self._later: set[asyncio.TimerHandle] = set()
        self._foreign = 0
        self.done: dict[str, int] = {}

    async def run(self, faults: int, pause_s: tuple[float, float]) -> None:
        for _ in range(faults):
            if self._world.loop.time() > ENOUGH_S:
                return
            await asyncio.sleep(self._random.uniform(*pause_s))
            fault = self._random.choice(self._kinds)
            self.done[fault.__name__] = self.done.get(fault.__name__, 0) + 1
            self._world.audit.note(f"FAULT {fault.__name__}")
            await asyncio.sleep(fault() or 0.0)

    def heal(self) -> None:
        """Take everything back, and bring everything up."""
        world = self._world
        world.audit.note("HEAL")
        for timer in self._later:
            timer.cancel()
        self._later.clear()
        world.network.conditions = Conditions()
        world.network.planned.clear()
        world.network.cut_off.clear()
        world.cluster.group.is_moving = world.cluster.transactions.is_moving = False
        world.cluster.transactions.marker_s = lambda: self._random.uniform(0.0005, 0.005)
        for node in self._nodes:
            if "steps" in world.features:
                world.set_clock(node.clock, 0)
            self._heal_node(node)

    def _heal_node(self, node: Node) -> None:
        for process in node.left_behind:
            process.on_step = None
            process.resume()
        node.disk.is_full = False
        self._move_back(node)
        node.blocking_s = (0.0002, 0.003)
        if node.process is None:
            node.start()
        else:
            node.process.on_step = None
            node.process.resume()

    # --- faults ----------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """kill -9; the disk is as it is, falls back to an older checkpoint, or is lost."""
        self._kill(self._some_node())

    def crash_at_step(self) -> None:
        node = self._some_node()
        self._at_step(node, lambda: self._kill(node))

    def pause(self) -> None:
        """SIGSTOP for less or more than a session, then SIGCONT: a zombie that wakes up."""
        self._pause(self._some_node())

    def pause_at_step(self) -> None:
        node = self._some_node()
        self._at_step(node, lambda: self._pause(node))

    def wake_in_takeover(self) -> None:
        """A node stops inside a commit, and wakes while another one is at some step of taking its partitions over."""
        node = self._some_node()
        request = self._random.choice(COMMIT_REQUESTS)
        self._at_step(node, lambda: self._sleep_until_takeover(node), f"{request} to send")

    def _sleep_until_takeover(self, node: Node) -> None:
        process = node.process
        if process is None:
            return
        process.pause()
        self._after(20.0, process.resume)
        for other in self._nodes:
            if other is not node:
                self._at_step(other, process.resume, self._random.choice(TAKEOVER_STEPS))

    def rebalance(self) -> None:
        self._world.cluster.group.rebalance()

    def rebalance_at_step(self) -> None:
        self._at_step(self._some_node(), self._world.cluster.group.rebalance)

    def unknown_outcome(self) -> None:
        """A request of the next commit has no answer: it took place, or didn't, or will, or twice."""
        process = self._some_node().process
        if process is not None:
            request = self._random.choice((*COMMIT_REQUESTS, *(3 * COMMIT_REQUESTS[-1:])))
            fate = self._random.choice(FATES)
            self._world.network.planned[process.name, request] = fate

    def bad_network(self) -> None:
        odds = {fate: self._random.choice((0.0, 0.01, 0.05)) for fate in FATES}
        slow_s = self._random.choice((0.005, 0.05, 0.5))
        self._world.network.conditions = Conditions(latency_s=(0.0005, slow_s), odds=odds)
        self._after(self._random.uniform(1.0, 10.0), self._mend_network)

    def _mend_network(self) -> None:
        self._world.network.conditions = Conditions()

    def cut_off(self) -> None:
        """A node's requests are lost, its answers too; it runs on."""
        process = self._some_node().process
        if process is not None:
            self._cut_off(process.name, self._random.choice((1.0, 5.0, 15.0)))

    def _cut_off(self, process: str, seconds: float) -> None:
        cut_off = self._world.network.cut_off
        cut_off.add(process)
        self._after(seconds, lambda: cut_off.discard(process))

    def move_group_coordinator(self) -> None:
        group = self._world.cluster.group
        group.is_moving = True
        self._after(self._random.choice((0.2, 2.0, 12.0)), lambda: setattr(group, "is_moving", False))

    def move_group_coordinator_at_step(self) -> None:
        """The coordinator moves just when a task asks for the committed offset, or is in a commit."""
        step = self._random.choice(("OffsetFetch to send", "Heartbeat? answered", "TxnOffsetCommit to send"))
        self._at_step(self._some_node(), self.move_group_coordinator, step)

    def move_transaction_coordinator(self) -> None:
        transactions = self._world.cluster.transactions
        transactions.is_moving = True
        self._after(self._random.choice((0.2, 2.0, 7.0)), lambda: setattr(transactions, "is_moving", False))

    def slow_disk(self) -> None:
        node = self._some_node()
        node.blocking_s = self._random.choice(((0.1, 1.0), (0.01, 8.0), (2.0, 8.0)))
        self._after(self._random.uniform(2.0, 15.0), lambda: setattr(node, "blocking_s", (0.0002, 0.003)))

    def full_disk(self) -> None:
        self._fill(self._some_node().disk)

    def _fill(self, disk: Disk) -> None:
        disk.is_full = True
        self._after(self._random.uniform(0.5, 8.0), lambda: setattr(disk, "is_full", False))

    def damage_disk(self) -> None:
        """A process dies, and what it finds when it is back can't be read."""
        node = self._some_node()
        for files in node.disk.files():
            # What an earlier fault damaged may be on its way to being deleted, and stays damaged.
            files.is_damaged = self._random.random() < 0.5 or files.is_damaged
        self._kill(node)

    def swap_folders(self) -> None:
        """Two partitions' folders are swapped while a node is down, and moved back a while later."""
        node, random = self._some_node(), self._random
        stores: dict[str, list[int]] = {}
        for store, partition in node.disk.places():
            stores.setdefault(store, []).append(partition)
        swappable = [store for store, partitions in stores.items() if len(partitions) > 1]
        if node.process is None or not swappable:
            return
        self._kill(node, keeps_disk=True)
        store = random.choice(swappable)
        node.disk.swap(store, *random.sample(stores[store], 2))
        self._after(random.uniform(4.0, 25.0), lambda: self._move_back(node))

    def _move_back(self, node: Node) -> None:
        if node.disk.is_swapped:
            self._kill(node, keeps_disk=True)
            node.disk.move_back()

    def clock_jump(self) -> None:
        """Clocks differ by the allowed margin at most, in either direction."""
        half_ms = SKEW_MARGIN_MS // 2
        self._world.set_clock(self._some_node().clock, self._random.randint(-half_ms, half_ms))

    def clock_step(self) -> None:
        """A machine's clock is set far off, for a moment or until all is well; a process may start meanwhile."""
        world, random, node = self._world, self._random, self._some_node()
        far = (3_600_000, 600_000, 2 * SKEW_MARGIN_MS, -3_600_000, -600_000, -2 * SKEW_MARGIN_MS)
        world.set_clock(node.clock, random.choice(far))
        self._after(random.choice((0.5, 10.0, 1000.0)), lambda: world.set_clock(node.clock, 0))
        if random.random() < 0.4:
            self._kill(node)

    def compact(self) -> None:
        cluster = self._world.cluster
        for log in cluster.logs():
            if log.is_compacted and self._random.random() < 0.8:
                dirty = self._random.choice((0, 0, self._random.randint(0, max(0, log.end - log.start))))
                log.compact(cluster.wall_ms(), log.end - dirty)

    def long_absence(self) -> float:
        """A node is away or asleep for about as long as tombstones are kept."""
        node, random = self._some_node(), self._random
        process = node.process
        away_s = random.choice((45.0, 58.0, 65.0, 75.0, 130.0))
        if process is None or random.random() < 0.7:
            self._kill(node, back_s=away_s, keeps_disk=True)
        else:
            process.pause()
            self._after(away_s, process.resume)
        return self._pass_time(node, away_s)

    def long_cut_off(self) -> float:
        """A node runs on for as long as tombstones are kept, and reaches nobody."""
        node = self._some_node()
        away_s = self._random.choice((65.0, 75.0, 130.0))
        if node.process is not None:
            self._cut_off(node.process.name, away_s)
        return self._pass_time(node, away_s)

    def _pass_time(self, node: Node, away_s: float) -> float:
        """Delete keys and compact while a node is away; give the seconds until it is back and has settled."""
        random = self._random
        self._after(random.choice((0.0, 12.0)), self._world.delete_keys)
        for after_s in (14.0, away_s / 2, away_s - 0.5):
            self._after(after_s, self.compact)
        for other in self._nodes:
            # Somebody has to be away for the partitions to come back.
            if other is not node and random.random() < 0.7:
                self._after(away_s - 0.1, lambda other=other: self._kill(other, back_s=20.0))
        if random.random() < 0.4:
            self._after(away_s + 0.01, lambda: self._disturb_restore(node))
        return away_s + 25.0 if random.random() < 0.8 else 0.0

    def _disturb_restore(self, node: Node) -> None:
        """What came back dies, or can't write, when it notices how long it was away."""
        step = self._random.choice(("wipe to write", "wipe written", "load to write", "load written"))
        harm = self._random.choice((lambda: self._kill(node, keeps_disk=True), lambda: self._fill(node.disk)))
        self._at_step(node, harm, step)

    def foreign_transaction(self) -> None:
        """Another program's transaction holds back the last stable offset of our topics, then aborts."""
        cluster, random = self._world.cluster, self._random
        self._foreign += 1
        name = f"foreign-{self._foreign}"
        try:
            epoch = cluster.transactions.init_producer_id(name, random.choice((4.0, 20.0)))
            logs = [random.choice(cluster.logs()) for _ in range(2)]
            for log in logs:
                cluster.produce_in_transaction(name, epoch, log.name, [(b"foreign", b"never to be seen", ())])
        except Exception as error:
            self._world.audit.note(f"no foreign transaction: {error!r}")

    def slow_markers(self) -> None:
        """The markers of decided transactions take long, and come in any order."""
        slow_s = self._random.choice((0.1, 1.0, 4.0))
        transactions = self._world.cluster.transactions
        transactions.marker_s = lambda: self._random.uniform(0.0005, slow_s)
        self._after(
            self._random.uniform(1.0, 10.0),
            lambda: setattr(transactions, "marker_s", lambda: self._random.uniform(0.0005, 0.005)),
        )

    def bounce(self) -> None:
        """A clean stop, and a start some time later."""
        node = self._some_node()
        self._world.loop.create_task(self._bounce(node))

    async def _bounce(self, node: Node, back_s: float | None = None) -> None:
        await node.stop()
        await asyncio.sleep(self._random.uniform(0.1, 8.0) if back_s is None else back_s)
        if not node.is_up:
            node.start()

    def quick_restart(self) -> None:
        """A process dies or stops, and its next life is there long before its session is over."""
        node = self._some_node()
        back_s = self._random.choice((0.01, 0.3, 1.0))
        if self._random.random() < 0.5:
            self._kill(node, back_s=back_s)
        else:
            self._world.loop.create_task(self._bounce(node, back_s))

    def move(self) -> None:
        """A worker is taken for dead and started elsewhere, with the same identity and in the same generation."""
        node, random = self._some_node(), self._random
        process = node.process
        if process is None:
            return
        if random.random() < 0.5:
            self._at_step(node, process.pause, f"{random.choice(COMMIT_REQUESTS)} to send")
            self._after(random.choice((0.1, 1.0)), lambda: self._move(node, process))
        else:
            process.pause()
            self._move(node, process)

    def _move(self, node: Node, process: Process) -> None:
        if node.process is process:
            node.move()
            self._after(self._random.choice((0.01, 0.3, 4.0, 20.0)), process.resume)

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _some_node(self) -> Node:
        up = [node for node in self._nodes if node.is_up]
        return self._random.choice(up or self._nodes)

    def _kill(self, node: Node, *, back_s: float | None = None, keeps_disk: bool = False) -> None:
        random = self._random
        if node.process is None:
            return
        node.kill(finishes=random.random() < 0.5, loses_loads=random.randrange)
        fate = random.random()
        if keeps_disk or fate < 0.6:
            pass
        elif fate < 0.85:
            node.disk.fall_back(random.randrange)
        else:
            node.disk.erase()
        back_s = random.choice((0.05, 2.0, 10.0)) if back_s is None else back_s
        self._after(back_s, lambda: None if node.is_up else node.start())

    def _pause(self, node: Node) -> None:
        process = node.process
        if process is not None:
            process.pause()
            self._after(self._random.choice((0.3, 4.0, 9.0, 20.0)), process.resume)

    def _at_step(self, node: Node, harm: Callable[[], None], step: str | None = None) -> None:
        """Do harm at the n-th coming of a step, some step if none is named."""
        process = node.process
        if process is None:
            return
        left = 0 if step is not None else self._random.choice((0, 0, 1, 3))
        step = self._random.choice(STEPS) if step is None else step

        def reached(name: str) -> None:
            nonlocal left
            if name != step:
                return
            left -= 1
            if left < 0:
                process.on_step = None
                self._world.audit.note(f"FAULT at {step}")
                harm()

        process.on_step = reached

    def _after(self, seconds: float, function: Callable[[], object]) -> None:
        self._later.add(self._world.loop.call_later(seconds, function))
