"""The alert rules, run by Prometheus's own tool: when each fires, when it doesn't, and for which app.

Beside the app `shop`, of which each case tells, the app `bank` is always there and well: it must never be named.
Times are minutes; a series is scraped once a minute.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from actors._core.task.lifecycle import State
from tests.documents import block

ROOT = Path(__file__).parents[4]
RULES = ROOT / "docs" / "ops" / "alerts.yaml"
FETCHED = ROOT / ".local" / "promtool" / "usr" / "bin" / "promtool"
LAST = 240
DIES = "stale"

Series = dict[str, str]


def named(name: str, **labels: str | int) -> str:
    """Give a series of ours as Prometheus writes it."""
    pairs = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
    return f"faust_actors_{name}{{{pairs}}}"


@dataclass
class World:
    """What is scraped: of each series its values, one a minute."""

    series: Series = field(default_factory=dict)

    def worker(self, app: str, number: int = 1, *, partitions: tuple[int, ...] = (0, 1), of: int = 2) -> World:
        """Add a worker that is well, and owns these partitions of its actor."""
        here: dict[str, str | int] = {"app": app, "instance": f"{app}-{number}", "job": "workers"}
        actor = {**here, "actor": "count"}
        self.series |= {
            f'up{{instance="{app}-{number}",job="workers"}}': f"1x{LAST}",
            named("worker_info", **here): f"1x{LAST}",
            named("partitions", **actor): f"{of}x{LAST}",
            named("assigned_partitions", **actor): f"{len(partitions)}x{LAST}",
            named("rebalances_total", **here): f"1x{LAST}",
            named("clock_off_seconds", **here): f"0x{LAST}",
            named("unreachable_brokers", **here): f"0x{LAST}",
            named("group_silence_seconds", **here): f"0x{LAST}",
            named("throttled_seconds_total", **here): f"0x{LAST}",
            named("commit_interval_seconds", **here): f"0.1x{LAST}",
            named("assigned_copies", **actor, role="standby"): f"1x{LAST}",
            named("copies", **actor, role="standby"): f"1x{LAST}",
            named("copy_lag_records", **actor, store="s", partition=9, role="standby"): f"3x{LAST}",
            named("copy_current_timestamp_seconds", **actor, store="s", partition=9, role="standby"): f"0+60x{LAST}",
        }
        for partition in partitions:
            self._partition({**actor, "partition": partition})
        return self

    def _partition(self, task: dict[str, str | int]) -> None:
        for topic in ("orders", "payments"):
            self.series |= {
                named("committed_offset", **task, topic=topic): f"0+100x{LAST}",
                named("consumer_lag_records", **task, topic=topic): f"0x{LAST}",
            }
        self.series |= {
            named("task_state", **task, state=state.value): f"{int(state is State.RUNNING)}x{LAST}" for state in State
        }
        self.series |= {
            named("parked_messages", **task): f"0x{LAST}",
            named("parked_effects", **task): f"0x{LAST}",
            named("task_paused", **task): f"0x{LAST}",
            named("time_ahead_seconds", **task): f"0x{LAST}",
            named("fences_total", **task, reason="fenced"): f"0x{LAST}",
            named("records_total", **task): f"0+6000x{LAST}",
            named("late_records_total", **task, store="s"): f"0+3x{LAST}",
            named("stream_time_held_seconds", **task): f"0x{LAST}",
            named("changelog_retention_seconds", **task): f"7200x{LAST}",
            named("feed_time_seconds", **task, feed="orders[0]", place="ahead"): f"0+60x{LAST}",
            named("commit_duration_seconds_sum", **task): f"0+0.5x{LAST}",
            named("commit_duration_seconds_count", **task): f"0+100x{LAST}",
            named("commit_duration_seconds_bucket", **task, le="0.1"): f"0+100x{LAST}",
            named("commit_duration_seconds_bucket", **task, le="5.0"): f"0+100x{LAST}",
            named("commit_duration_seconds_bucket", **task, le="+Inf"): f"0+100x{LAST}",
        }

    def put(self, name: str, values: str, **labels: str | int) -> World:
        """Set those of shop's series of this name that have these labels; the first worker's unless it is said."""
        labels = {"app": "shop", "instance": "shop-1", **labels}
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = [key for key in self.series if key.startswith(f"faust_actors_{name}{{")]
        found = [key for key in found if all(label in key for label in wanted)]
        if not found:
            self.series[named(name, **{"job": "workers", **labels})] = values
        self.series |= dict.fromkeys(found, values)
        return self

    def dies(self, at: int, worker: str = "shop-1", *, is_gone: bool = False) -> World:
        """Let a worker end: Prometheus can't scrape it, or with `is_gone` doesn't know it any more."""
        for key, values in self.series.items():
            if f'instance="{worker}"' in key and not key.startswith("up{"):
                self.series[key] = until(at, values)
        up = f'up{{instance="{worker}",job="workers"}}'
        self.series[up] = f"1x{at} {DIES}" if is_gone else f"1x{at} 0x{LAST}"
        return self

    def state(self, partition: int, state: State, at: int = 0) -> World:
        """Put a partition into a state at a time."""
        self.put("task_state", f"1x{at} 0x{LAST}", partition=partition, state=State.RUNNING.value)
        self.put("task_state", f"0x{at} 1x{LAST}", partition=partition, state=state.value)
        return self


def until(at: int, values: str) -> str:
    """Give the first values of a series up to a time, with the mark that it ended."""
    kept, left = [], at + 1
    for part in values.split():
        start, _, times = part.partition("x")
        count = int(times or 0) + 1
        kept.append(f"{start}x{min(count, left) - 1}")
        left -= count
        if left <= 0:
            break
    return " ".join([*kept, DIES])


def well() -> World:
    """Both apps are well."""
    return World().worker("shop").worker("bank")


def two() -> World:
    """Shop has a worker for each of its partitions."""
    return World().worker("shop", 1, partitions=(0,)).worker("shop", 2, partitions=(1,)).worker("bank")


def stuck(minutes: int, since: int = 10) -> World:
    """A record of a partition waits since a time, and nothing is handled for so long."""
    world = well().put("consumer_lag_records", f"0x{since - 1} 5x{LAST}", partition=0)
    return world.put("committed_offset", f"0+10x{since} {since * 10}x{minutes} 1000+10x{LAST}", partition=0)


def held(since: int) -> World:
    """A feed has a time, and holds event time back from a minute on."""
    world = well().put("stream_time_held_seconds", f"0x{since} 0+60x{LAST}", partition=0)
    feed = {"actor": "count", "partition": 0, "feed": "raw[3]", "place": "behind"}
    return world.put("feed_time_seconds", f"_x{since} 1700049600x{LAST}", **feed)


def crashing() -> World:
    """Each worker that takes the partition over dies of its first record after a minute, and another one comes."""
    world = World().worker("bank")
    for number in range(1, 9):
        world.worker("shop", number)
        for key, values in list(world.series.items()):
            if f'instance="shop-{number}"' in key:
                value = values.split("x")[0].split("+")[0]
                value = "5" if "consumer_lag" in key else "77" if "committed_offset" in key else value
                gap = f"_x{(number - 1) * 2} " if number > 1 else ""
                world.series[key] = f"{gap}{value}x1 {DIES}"
    return world


def restoring(values: str, at: int = 0) -> World:
    """A restore of which this is left, minute by minute."""
    return (
        well()
        .state(0, State.RESTORING, at)
        .put("restore_remaining_records", values, actor="count", store="s", partition=0)
    )


@dataclass
class Case:
    """`fires` are the alerts of shop at minute `at`."""

    world: Callable[[], World]
    at: int
    fires: tuple[str, ...] = ()


def compared(since: int) -> str:
    """The time of the last comparison, which there is each minute up to a time."""
    return f"0+60x{since} {since * 60}x{LAST}"


CASES: dict[str, Case] = {
    "all is well": Case(well, 120),
    "a key differs": Case(lambda: well().put("watch_mismatches", f"0x10 1x{LAST}", store="s"), 11, ("StateDiffers",)),
    "a key differed": Case(lambda: well().put("watch_mismatches", f"0x10 1x2 0x{LAST}", store="s"), 14),
    "no answer of a partition": Case(
        lambda: well().put("watch_unanswered_partitions", f"0x10 1x{LAST}", store="s"), 27, ("WatchSilent",)
    ),
    "a partition that moves": Case(
        lambda: well().put("watch_unanswered_partitions", f"0x10 1x3 0x{LAST}", store="s"), 27
    ),
    "watch ends": Case(
        lambda: well().put("watch_compared_timestamp_seconds", compared(10), store="s"), 42, ("WatchSilent",)
    ),
    "watch restarts": Case(lambda: well().put("watch_compared_timestamp_seconds", compared(10), store="s"), 20),
    "an app dies beside another": Case(lambda: well().dies(10, is_gone=True), 17, ("NoWorker",)),
    "it is dead for hours": Case(lambda: well().dies(10, is_gone=True), 230, ("NoWorker",)),
    "it restarts": Case(lambda: well().dies(10, is_gone=True), 14),
    "one of two workers goes": Case(lambda: two().dies(10, is_gone=True), 12, ()),
    "its partitions stay nobody's": Case(lambda: two().dies(10, is_gone=True), 14, ("PartitionWithoutOwner",)),
    "a worker doesn't answer": Case(
        lambda: two().dies(10).put("assigned_partitions", f"1x10 2x{LAST}", instance="shop-2"), 15, ("WorkerSilent",)
    ),
    "a worker doesn't answer for a moment": Case(
        lambda: two().dies(10).put("assigned_partitions", f"1x10 2x{LAST}", instance="shop-2"), 12
    ),
    "rebalances": Case(lambda: well().put("rebalances_total", f"0+1x{LAST}"), 40, ("RebalancesOften",)),
    "few rebalances": Case(lambda: well().put("rebalances_total", f"0x20 1+1x5 6x{LAST}"), 40),
    "a clock": Case(lambda: well().put("clock_off_seconds", f"40x{LAST}"), 6, ("ClockWrong",)),
    "a partition's time": Case(
        lambda: well().put("time_ahead_seconds", f"400x{LAST}", partition=1), 6, ("ClockWrong",)
    ),
    "a clock for a moment": Case(lambda: well().put("clock_off_seconds", f"40x3 0x{LAST}"), 6),
    "a broker": Case(lambda: well().put("unreachable_brokers", f"0x10 1x{LAST}"), 14, ("BrokerUnreachable",)),
    "a broker for a moment": Case(lambda: well().put("unreachable_brokers", f"0x10 1 0x{LAST}"), 20),
    "the coordinator": Case(lambda: well().put("group_silence_seconds", f"0x10 0+60x{LAST}"), 14, ("GroupSilent",)),
    "the coordinator for a moment": Case(lambda: well().put("group_silence_seconds", f"0x10 20 0x{LAST}"), 14),
    "quotas": Case(lambda: well().put("throttled_seconds_total", f"0+6x{LAST}"), 12, ("Throttled",)),
    "a throttled request": Case(lambda: well().put("throttled_seconds_total", f"0x5 2x{LAST}"), 12),
    "a halt": Case(lambda: well().state(0, State.HALTED, 10), 13, ("PartitionStandsStill",)),
    "a refusal": Case(lambda: well().state(1, State.REFUSED, 10), 13, ("PartitionStandsStill",)),
    "a halt whose worker dies": Case(
        lambda: well().state(0, State.HALTED, 10).dies(14, is_gone=True), 18, ("PartitionStandsStill",)
    ),
    "a halt that was repaired by another worker": Case(
        lambda: well().state(0, State.HALTED, 10).dies(14, is_gone=True).worker("shop", 2), 18
    ),
    "a halt that was repaired": Case(
        lambda: (
            well()
            .put("task_state", f"0x9 1x5 0x{LAST}", partition=0, state="halted")
            .put("task_state", f"1x9 0x5 1x{LAST}", partition=0, state="running")
        ),
        18,
    ),
    "a takeover": Case(lambda: well().state(0, State.CONFIRMING, 10), 22, ("PartitionNotRunning",)),
    "a takeover of some minutes": Case(lambda: well().state(0, State.CONFIRMING, 10), 19),
    "a restore": Case(lambda: restoring(f"_x10 1000000-1000x{LAST}", 10), 22, ("PartitionNotRunning",)),
    "a restore of some minutes": Case(lambda: restoring(f"_x10 1000000-1000x{LAST}", 10), 19),
    "a restore without progress": Case(lambda: restoring(f"_x10 5000x{LAST}", 10), 16, ("RestoreStuck",)),
    "a restore that stopped for a moment": Case(lambda: restoring("_x10 5000x2 4000-100x40", 10), 16),
    "lag": Case(lambda: well().put("consumer_lag_records", f"0+100x{LAST}", partition=0), 45, ("LagGrows",)),
    "lag whose worker is replaced": Case(
        lambda: (
            well()
            .put("consumer_lag_records", f"0+100x{LAST}", partition=0)
            .dies(30, is_gone=True)
            .worker("shop", 2)
            .put("consumer_lag_records", f"_x33 3500+100x{LAST}", instance="shop-2", partition=0)
        ),
        45,
        ("LagGrows",),
    ),
    "lag that falls": Case(lambda: well().put("consumer_lag_records", f"60000-100x{LAST}", partition=0), 45),
    "a handler hangs": Case(lambda: stuck(LAST), 15, ("NothingHandled",)),
    "a handler hangs, and nothing waits in its other input": Case(
        lambda: stuck(LAST).put("consumer_lag_records", f"0x{LAST}", partition=0, topic="payments"),
        15,
        ("NothingHandled",),
    ),
    "records of an input wait for earlier ones of the other": Case(
        lambda: stuck(LAST).put("committed_offset", f"0+10x{LAST}", partition=0, topic="orders"), 15
    ),
    "the lag of one input grows": Case(
        lambda: well().put("consumer_lag_records", f"0+100x{LAST}", partition=0, topic="payments"), 45, ("LagGrows",)
    ),
    "a handler is slow": Case(lambda: stuck(3), 15),
    "a record that just came": Case(
        lambda: (
            well()
            .put("committed_offset", f"77x{LAST}", partition=0)
            .put("consumer_lag_records", f"0x13 1x{LAST}", partition=0)
        ),
        15,
    ),
    "a partition without records": Case(lambda: well().put("committed_offset", f"77x{LAST}"), 60),
    "a record that ends each worker": Case(crashing, 12, ("NothingHandled",)),
    "commits": Case(lambda: well().put("commit_duration_seconds_bucket", f"0x{LAST}", le="0.1"), 20, ("CommitsSlow",)),
    "commits take longer than their interval": Case(
        lambda: well().put("commit_duration_seconds_sum", f"0+15x{LAST}"), 20, ("CommitsSlowerThanInterval",)
    ),
    "commits take nearly their interval": Case(lambda: well().put("commit_duration_seconds_sum", f"0+9x{LAST}"), 20),
    "no commits": Case(
        lambda: (
            well().put("commit_duration_seconds_count", f"9x{LAST}").put("commit_duration_seconds_sum", f"9x{LAST}")
        ),
        20,
    ),
    "dropped work": Case(lambda: well().put("fences_total", f"0+1x{LAST}", partition=0), 20, ("WorkDropped",)),
    "work dropped twice": Case(lambda: well().put("fences_total", f"0x10 2x{LAST}", partition=0), 20),
    "parked messages": Case(lambda: well().put("parked_messages", f"3x{LAST}", partition=0), 8, ("MessagesParked",)),
    "parked messages whose worker is replaced": Case(
        lambda: (
            well()
            .put("parked_messages", f"3x{LAST}", partition=0)
            .dies(6, is_gone=True)
            .worker("shop", 2)
            .put("parked_messages", f"_x9 3x{LAST}", instance="shop-2", partition=0)
        ),
        9,
        ("MessagesParked",),
    ),
    "a parked message for a moment": Case(lambda: well().put("parked_messages", f"3x3 0x{LAST}", partition=0), 8),
    "parked effects": Case(lambda: well().put("parked_effects", f"3x{LAST}", partition=0), 8, ("EffectsParked",)),
    "a parked effect for a moment": Case(lambda: well().put("parked_effects", f"3x3 0x{LAST}", partition=0), 8),
    "a pause": Case(lambda: well().put("task_paused", f"0x10 1x{LAST}", partition=0), 72, ("PausedLong",)),
    "a pause whose worker is replaced": Case(
        lambda: (
            well()
            .put("task_paused", f"1x{LAST}", partition=0)
            .dies(30, is_gone=True)
            .worker("shop", 2)
            .put("task_paused", f"_x35 1x{LAST}", instance="shop-2", partition=0)
        ),
        62,
        ("PausedLong",),
    ),
    "a short pause": Case(lambda: well().put("task_paused", f"0x10 1x50 0x{LAST}", partition=0), 72),
    "records that wait for a paused partition": Case(
        lambda: (
            stuck(LAST)
            .put("consumer_lag_records", f"0x10 5+200x{LAST}", partition=0)
            .put("task_paused", f"0x10 1x{LAST}", partition=0)
        ),
        65,
    ),
    "a handler hangs after a pause": Case(
        lambda: stuck(LAST).put("task_paused", f"0x10 1x10 0x{LAST}", partition=0), 40, ("NothingHandled",)
    ),
    "records come late": Case(
        lambda: well().put("late_records_total", f"0+90x{LAST}", partition=0), 20, ("RecordsLate",)
    ),
    "a feed holds event time": Case(lambda: held(10), 18, ("StreamTimeHeld",)),
    "a feed holds event time for a moment": Case(lambda: held(10), 14),
    "a feed holds event time for half of what its changelog keeps": Case(
        lambda: held(10), 75, ("StreamTimeHeld", "WindowsAtRisk")
    ),
    "a copy that isn't followed": Case(lambda: well().put("copies", f"0x{LAST}"), 8, ("CopyStandsStill",)),
    "a copy that begins": Case(lambda: well().put("copies", f"0x3 1x{LAST}"), 8),
    "a copy that falls behind": Case(
        lambda: well().put("copy_current_timestamp_seconds", f"60x{LAST}"), 20, ("CopyFallsBehind",)
    ),
    "a copy that is a little behind": Case(lambda: well().put("copy_current_timestamp_seconds", f"0+59x{LAST}"), 20),
}


@pytest.fixture(scope="session")
def promtool() -> str:
    """The tool, which `.ci/run` fetches."""
    found = shutil.which("promtool") or (str(FETCHED) if FETCHED.exists() else None)
    if found is None:
        pytest.skip("promtool isn't there: `make promtool`, or apt-get install prometheus")
    return found


def run(promtool: str, folder: Path, tests: list[dict[str, object]], rules: Path = RULES) -> str:
    """Run unit tests; give what failed, nothing if none did."""
    file = folder / "tests.yaml"
    # JSON is YAML, and soon written.
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def unit(case: Case) -> dict[str, object]:
    """Give a case as promtool has it: all alerts that fire then, and of which app."""
    firing = [{"labels": f'{{alertname="FaustActors{name}",app="shop"}}', "value": 1} for name in sorted(case.fires)]
    query = 'max by (alertname, app) (ALERTS{alertstate="firing"})'
    # What comes later is no matter, and takes the tool as long.
    series = [
        {"series": name, "values": values if DIES in values else until(case.at, values).removesuffix(f" {DIES}")}
        for name, values in case.world().series.items()
    ]
    test = {"expr": query, "eval_time": f"{case.at}m", "exp_samples": firing}
    return {"interval": "1m", "input_series": series, "promql_expr_test": [test]}


@pytest.fixture(scope="module")
def failures(promtool: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What failed when all cases ran at once: to start the tool for each takes longer than the cases."""
    return run(promtool, tmp_path_factory.mktemp("alerts"), [unit(case) for case in CASES.values()])


@pytest.mark.parametrize("name", CASES)
def test_alerts_fire_when_they_should_and_only_then(promtool: str, tmp_path: Path, failures: str, name: str) -> None:
    # Which case failed is seen when it runs alone.
    assert failures == "" or run(promtool, tmp_path, [unit(CASES[name])]) == ""


def test_no_case_fails_beside_others_only(failures: str) -> None:
    assert failures == ""


def rules() -> list[dict[str, object]]:
    """Give the alerts."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule]


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    firing = {f"FaustActors{name}" for case in CASES.values() for name in case.fires}
    assert firing == {rule["alert"] for rule in rules()}


def test_each_alert_names_its_app() -> None:
    for rule in rules():
        assert "$labels.app" in rule["annotations"]["summary"], rule["alert"]  # type: ignore[index]


def test_the_pages_own_rule_fires(promtool: str, tmp_path: Path) -> None:
    rules = tmp_path / "page.yaml"
    rules.write_text(block("docs/reference/metrics.md", "Alerts").code)
    firing = {"labels": '{alertname="OrdersHasNoWorker"}', "value": 1}
    query = 'max by (alertname) (ALERTS{alertstate="firing"})'
    gone: dict[str, object] = {"expr": query, "eval_time": "6m", "exp_samples": [firing]}
    worker = named("worker_info", app="orders")
    tests: list[dict[str, object]] = [
        {"interval": "1m", "input_series": [], "promql_expr_test": [gone]},
        {
            "interval": "1m",
            "input_series": [{"series": worker, "values": "1x9"}],
            "promql_expr_test": [{**gone, "exp_samples": []}],
        },
    ]
    assert run(promtool, tmp_path, tests, rules) == ""


def test_the_tool_notices_an_alert_that_does_not_fire(promtool: str, tmp_path: Path) -> None:
    worse = tmp_path / "alerts.yaml"
    worse.write_text(RULES.read_text().replace("faust_actors_unreachable_brokers[5m])) > 0", "up[5m])) > 9"))
    assert "FaustActorsBrokerUnreachable" in run(promtool, tmp_path, [unit(CASES["a broker"])], worse)
