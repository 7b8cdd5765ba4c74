"""The runtime under faults, in virtual time.

`SEED=n` replays one seed with its trace (`FAULTS=crash,pause` restricts it, `FEATURES=poison,static` or `none` replaces
what the seed has), `SIM_SEEDS=n` runs n of them (20 by default, 5000 in `make nightly`), and a
fiftieth of that, at least 7, of each further kind.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.fakes.loop import Process, VirtualLoop
from tests.sim.nemesis import STEPS
from tests.sim.simulation import FEATURES, MODEL, check, features_of, simulate

SEEDS = int(os.environ.get("SIM_SEEDS", "20"))
OTHERS = max(SEEDS // 50, 7)
"""Seeds of each kind of runs after the first, which has all features: at least one for each of its variants."""
REPLAYED = os.environ.get("SEED")
FAULTS = tuple(filter(None, os.environ.get("FAULTS", "").split(",")))
NAMED = os.environ.get("FEATURES")
EVERY = (
    *FEATURES,
    *MODEL,
    "foreign",
    "pauses",
    "standbys",
    "steps",
    "expired",
    "unparking",
    "recreate",
    "replaced",
    "swapped",
    "grow",
    "earlier",
    "inputs",
)
PLAIN: tuple[str, ...] = ()
NOT_WITH_INPUTS = frozenset(("grow", "unparking", "recreate"))
"""Features whose oracles know of one input only."""

REPLACED = ("replace_changelog", "rebalance", "bounce", "slow_disk", "compact", "bad_network", "pause", "crash")
FOUND = (
    # A store was opened while its task was cancelled: it stayed open, and nobody could open it again.
    (97, (), PLAIN),
    (107, (), PLAIN),
    (273, (), PLAIN),
    (35, ("slow_disk", "rebalance"), PLAIN),
    (50, ("slow_disk", "rebalance"), PLAIN),
    # A call in a thread failed after its caller was cancelled: nobody read the error.
    (6, ("slow_disk", "rebalance"), PLAIN),
    (825, (), PLAIN),
    # A restore died between its last load and the wipe: its checkpoint was at the log's end, so old as it was.
    (344, (), PLAIN),
    (350, (), PLAIN),
    (170, ("long_absence",), PLAIN),
    (173, ("long_absence",), PLAIN),
    # A commit in front of a message that was to be tried again wrote stream time as if that had been handled.
    (3, ("rebalance",), ("poison", "timers")),
    (7, ("crash",), ("effects", "timers")),
    # What a hook that raised had written counted as held for ever: nothing more was removed.
    (11, (), ("expiry",)),
    # Records came during a commit in lanes: nobody looked at them any more.
    (22, (), ("parallel", "refused")),
    # Two messages that the broker refuses were found in turn, and each find forgot the other.
    (30, (), ("parallel", "refused")),
    # The ids of questions went by the order of calls, which is another one when the message is handled again.
    (3, (), ("asks", "parallel")),
    (4, ("crash",), ("asks", "parallel")),
    (9, (), ("asks", "parallel", "timers")),
    # Two firings of a timer that was set again for the same moment had one id.
    (0, (), ("timers",)),
    (2, (), ("effects", "timers")),
    # A hook that raised ahead of a message stopped the partition in front of that; then the message couldn't ask.
    (3, (), ("sessions",)),
    (5, (), ("asks", "parallel", "sessions")),
    # A damaged view stayed damaged, and made an actor delete its own stores.
    (0, (), ("views",)),
    (1, (), ("views",)),
    # A store that lacked several commits was written to a new topic where the last of them had landed.
    (57, REPLACED, ("inputs", "replaced")),
    # A commit that landed on a new topic, of an input that had been overtaken, was overwritten by older state.
    (24, (), ("inputs", "replaced", "parallel")),
    (45, REPLACED, ("inputs", "replaced", "parallel")),
    # The first commit of a partition came when its input was re-created already: the oracle knew of none before.
    (217, (), ("inputs", "recreate")),
    # Windows closed in front of a message that had moved stream time and waited to be tried again.
    (1950, (), ("dedupe", "expiry", "static", "timers", "windows")),
    # The oracle kept records of a join for a millisecond longer than they can be matched.
    (2966, (), ("effects", "joins")),
    # The clock was set while a view was read for the first time: the worker ended as if that had taken as long.
    (728, (), ("asks", "expiry", "parallel", "steps", "timers", "views")),
    # The oracle took stream time for that of the inputs before an offset which had been forgotten and set again.
    (1071, (), ("asks", "expired", "expiry", "parallel", "poison", "queries", "retention", "timers")),
    # The same, where records behind the offset that was set anew had been finished in lanes before.
    (2, (), ("asks", "parallel", "poison", "retention", "timers")),
    # The oracle took ids for new ones where such records were handled again: in runs without an operator.
    (95, (), ("asks", "parallel", "poison", "retention", "timers")),
    # Intervals became longer and shorter again: a session that another one had taken the place of was emitted.
    (5054, (), ("windows",)),
    # The oracle took the ids of timers for new ones where an operator had inputs handled again.
    (830, (), ("effects", "operator", "parallel", "sessions", "timers")),
    # Stream time wasn't written before a timer went by it: a parked message set one that the next owner never fired.
    (6313, (), ("park", "timers")),
    (7239, (), ("asks", "effects", "parallel", "park", "timers")),
    # A task that was cancelled twice didn't wait for the thread that opened a store.
    (31095, (), ("dedupe", "parallel", "sessions")),
    # A timer that a refused record made due committed the record, and nobody was blamed for it.
    (6831, (), ("effects", "refused", "timers")),
    # The oracle expected echoes of inputs that an operator had handled again, behind a message that was parked by then.
    (62039, (), ("operator", "park", "timers")),
    # The oracle took a timer that fired for an earlier one which the same input had set.
    (62058, (), ("operator", "park", "timers")),
    # An operator's offset was where the partition was already, until a command came: nobody accepted it.
    (82416, (), ("operator", "park", "queries", "sessions", "static")),
)
"""Runs that found a defect once (seed, faults, features), and what it was."""


def mixed(seed: int, *more: str) -> tuple[str, ...]:
    """The features of a seed and more; an input grows in runs with little else."""
    return *(feature for feature in features_of(seed) if feature != "grow"), *more


def runs() -> list[object]:
    if REPLAYED is not None:
        seed = int(REPLAYED)
        named = features_of(seed) if NAMED is None else tuple(name for name in NAMED.split(",") if name in EVERY)
        return [pytest.param(seed, FAULTS, named)]
    wanted = dict.fromkeys([*((seed, (), features_of(seed)) for seed in range(SEEDS)), *FOUND])
    return [pytest.param(*run, id="-".join(map(str, (run[0], *run[1], *run[2])))) for run in wanted]


@pytest.mark.parametrize(("seed", "faults", "features"), runs())
def test_every_invariant_holds_under_faults(seed: int, faults: tuple[str, ...], features: tuple[str, ...]) -> None:
    check(seed, faults=faults, features=features, print_trace=REPLAYED is not None)


@pytest.mark.parametrize("seed", range(OTHERS))
def test_every_invariant_holds_with_standbys(seed: int) -> None:
    check(seed, features=mixed(seed, "standbys"))


@pytest.mark.parametrize("seed", range(OTHERS))
def test_every_window_closes_once_under_faults(seed: int) -> None:
    more = (("standbys",), ("inputs",), ("effects", "park", "timers"), ("static",))[seed % 4]
    check(seed, features=("windows", *more))


@pytest.mark.parametrize("seed", range(OTHERS))
def test_no_call_that_has_succeeded_is_repeated_where_workers_leave_in_order(seed: int) -> None:
    more = ((), ("timers",), ("parallel",), ("windows",), ("joins",), ("park",))[seed % 6]
    report = check(seed, faults=("bounce", "rebalance", "retry_some"), features=("effects", *more))
    assert report.counted["effect succeeded again"] == 0


@pytest.mark.parametrize("seed", range(OTHERS))
def test_every_pair_and_every_lone_record_is_called_once_under_faults(seed: int) -> None:
    more = (("standbys",), ("inputs",), ("effects", "park", "timers"), ("windows",))[seed % 4]
    check(seed, features=("joins", *more))


@pytest.mark.parametrize("seed", range(OTHERS))
def test_results_of_a_foreign_key_follow_both_tables_under_faults(seed: int) -> None:
    more = (("standbys",), ("inputs",), ("effects", "static", "timers"), ("joins", "windows"))
    check(seed, features=("foreign", *more[seed % len(more)]))


@pytest.mark.parametrize("seed", range(OTHERS))
def test_every_invariant_holds_beside_workers_of_an_earlier_release(seed: int) -> None:
    check(seed, features=mixed(seed, "earlier"))


def test_tasks_are_kept_and_held_back() -> None:
    left = {"kept", "StaleGenerationError", "handed over"}
    for seed in (77, *range(50)):
        left -= simulate(seed, faults=("rebalance", "quick_restart", "crash")).counted.keys()
        if not left:
            return
    pytest.fail(f"nobody came to {left}")


@pytest.mark.parametrize("seed", range(OTHERS))
def test_nothing_is_handled_while_it_is_paused_and_nothing_lost_after(seed: int) -> None:
    more = ((), ("standbys",), ("parallel",), ("static",), ("timers",), ("inputs",))[seed % 6]
    check(seed, features=("pauses", *more))


@pytest.mark.parametrize("seed", range(2 * OTHERS))
def test_every_invariant_holds_with_two_inputs(seed: int) -> None:
    more = ("inputs", ("standbys", "recreate", "retention", "parallel")[seed % 4])
    features = [feature for feature in features_of(seed) if feature not in NOT_WITH_INPUTS]
    check(seed, features=more if more[1] == "recreate" else (*features, *more))


@pytest.mark.parametrize(
    "features",
    [
        ("replaced",),
        ("replaced", "standbys"),
        ("replaced", "parallel"),
        ("inputs", "replaced"),
        ("inputs", "replaced", "parallel"),
    ],
)
@pytest.mark.parametrize("seed", range(OTHERS // 2))
def test_nothing_is_lost_or_doubled_when_changelogs_are_replaced(seed: int, features: tuple[str, ...]) -> None:
    """Unless its partition stands still, because no store has all that was committed."""
    check(seed, faults=REPLACED, features=features)


def test_most_replaced_changelogs_are_written_back() -> None:
    reports = [simulate(seed, faults=REPLACED, features=("replaced",)) for seed in range(30)]
    replaced = [report for report in reports if report.counted["replaced"]]
    assert len(replaced) >= 10
    assert sum(not report.counted["given up"] for report in replaced) > len(replaced) / 2


@pytest.mark.parametrize("seed", range(OTHERS))
def test_every_invariant_holds_while_clocks_are_set(seed: int) -> None:
    more = ("expiry", "steps", "timers", "standbys")
    check(seed, features=mixed(seed, *more[: 4 if seed % 2 else 3]))


SWAPPED = ("swap_folders", "crash", "rebalance")


@pytest.mark.parametrize("seed", range(OTHERS // 3))
def test_every_invariant_holds_with_swapped_folders(seed: int) -> None:
    check(seed, faults=SWAPPED, features=("standbys",) if seed % 2 else ())


def test_swapped_folders_stop_partitions() -> None:
    assert any("TakeoverRefusedError" in simulate(seed, faults=SWAPPED).counted for seed in range(20))


def test_inputs_that_grow_stop_partitions_at_a_takeover_or_in_front_of_a_record() -> None:
    left = {"InputGrownError", "MisplacedRecordError"}
    for seed in (22, 27, *range(50)):
        left -= simulate(seed, features=("grow",)).counted.keys()
        if not left:
            return
    pytest.fail(f"nobody came to {left}")


def test_a_seed_is_one_run() -> None:
    for features in (
        PLAIN,
        ("standbys",),
        ("operator", "poison", "refused", "retention", "static"),
        MODEL,
    ):
        first, again = simulate(3, features=features), simulate(3, features=features)
        assert first.trace == again.trace
        assert (first.virtual_s, first.takeovers) == (again.virtual_s, again.takeovers)


def test_every_feature_comes() -> None:
    """An invariant of what never happens would be none."""
    left = {
        "operator",
        "operator refused",
        "TakeoverRefusedError",
        "reprocessed",
        "skipped",
        "HandlerFailedError",
        "UndecodableRecordError",
        "RefusedRecordError",
        "CommitRefusedError",
        "returned",
        "lost membership",
        "mended",
    }
    for seed in (0, 19, 23, 57, 62, *range(200)):
        left -= simulate(seed, features=("operator", "retention", "poison", "refused", "static")).counted.keys()
        if not left:
            return
    pytest.fail(f"nobody came to {left}")


def test_every_part_of_the_model_comes() -> None:
    left = {
        "finished ahead",
        "timer scheduled",
        "timer fired",
        "timer cancelled",
        "timer late",
        "timers retried",
        "effect asked",
        "effect done",
        "effect failed",
        "effect cancelled",
        "effect succeeded again",
        "effect given up",
        "effect told",
        "effects retried",
        "expiring value replaced",
        "expiry retried",
        "value expired",
        "value saw",
        "value deleted",
        "couldn't be handled",
        "handled when cured",
        "retried in vain",
        "parked",
        "asks retried",
        "booked",
        "ask answered",
        "ask rejected",
        "ask unknown",
        "dedupe retried",
        "id handled",
        "id skipped",
        "rows retried",
        *(f"rows {what}" for what in ("say", "cut", "put", "drop", "tag", "untag", "wipe", "see")),
        "sessions retried",
        "session visited",
        "session left",
        "session expired",
        "looked",
        "query answered",
        "query refused",
        "program 1",
        "program 2",
        "value of version 1",
        "value of version 2",
        "view damaged",
        "store damaged",
    }
    for seed in (5, 10, 15, *range(50)):
        left -= simulate(seed, features=MODEL).counted.keys()
        if not left:
            return
    pytest.fail(f"nobody came to {left}")


def test_windows_take_events_and_close() -> None:
    """They don't close where keys are handled side by side, as with all of the model."""
    what = "event", "closed", "emitted", "late", "dropped", "merged", "unclear"
    left = {"windows retried", *(f"window {one}" for one in what)}
    for seed in (4, 7, *range(50)):
        left -= simulate(seed, features=("windows",)).counted.keys()
        if not left:
            return
    pytest.fail(f"nobody came to {left}")


def test_joins_call_pairs_and_lone_records() -> None:
    left = {
        "join taken",
        "join pair",
        "join left lone",
        "join right lone",
        "join late",
        "join diverted",
        "join matched when it was due",
        "joins retried",
    }
    for seed in (21, 23, *range(50)):
        left -= simulate(seed, features=("joins",)).counted.keys()
        if not left:
            return
    pytest.fail(f"nobody came to {left}")


def test_joins_by_a_foreign_key_have_results_of_each_kind() -> None:
    left = {f"foreign {kind}" for kind in ("deliveries", "changes", "moves", "nowhere", "ends", "retried")}
    for seed in range(50):
        left -= simulate(seed, features=("foreign",)).counted.keys()
        if not left:
            return
    pytest.fail(f"nobody came to {left}")


def test_an_older_program_meets_a_newer_value() -> None:
    for features in (("versions",), ("park", "versions")):
        if not any(simulate(seed, features=features).counted["NewerProgramError"] for seed in (25, *range(50))):
            pytest.fail(f"no program of {features} met one")


def test_offsets_expire_with_and_without_state() -> None:
    left = {"expired", "TakeoverRefusedError", "missing offset earliest", "missing offset latest"}
    for seed in range(100):
        left -= simulate(seed, features=("expired",)).counted.keys()
        if not left:
            return
    pytest.fail(f"nobody came to {left}")


def test_every_step_is_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that waits for a step that never comes would be no fault."""
    reached: set[str] = set()
    original = Process.__init__

    def watched(self: Process, loop: VirtualLoop, name: str) -> None:
        original(self, loop, name)
        self.on_step = reached.add

    monkeypatch.setattr(Process, "__init__", watched)
    for seed in range(30):
        simulate(seed)
        if reached.issuperset(STEPS):
            return
    pytest.fail(f"nobody came to {set(STEPS) - reached}")
