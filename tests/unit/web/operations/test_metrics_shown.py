"""What the metrics say of copies and parked effects; documents, alerts and panels have what there is, and all of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from http import HTTPStatus
from itertools import combinations
from pathlib import Path

import yaml

from actors.runtime.meters import QueryMeters
from actors.runtime.observe.status import STILL_MS, BrokersStatus, WorkerStatus
from actors.runtime.replicas.standbys import Role
from actors.web.access.guard import REFUSED
from actors.web.metrics import PREFIX, families
from spark_replay.cli.watch import METRICS
from spark_replay.cli.watch import PREFIX as WATCH
from tests.browser.statuses import NOW_MS, copy, seen, task

DOCS = Path(__file__).parents[4] / "docs"
PANEL_WIDTH = 24
RECORDED = "faust_actors:"
"""What the names of recording rules begin with."""
LABELS = {"job", "instance"}
"""What Prometheus adds by itself."""


def status() -> WorkerStatus:
    """A worker that owns a partition, follows two copies, and lost sight of a third."""
    found = seen("till-1", [task("ship", 0, parked=2, parked_effects=3), task("ship", 1)]).report
    assert found is not None
    copies = [
        copy("ship", 2, lag=7),
        copy("ship", 2, store="ship-ids", lag=0),
        copy("ship", 3, role=Role.WARM_UP, lag=900, current_ms=None),
        copy("ship", 4, lag=None, looked_ms=NOW_MS - STILL_MS - 1),
    ]
    assigned = {"ship": {"standby": 3, "warm-up": 1}, "account": {"standby": 0, "warm-up": 0}}
    return replace(found.status, copies=copies, assigned_copies=assigned)


def samples(of: WorkerStatus) -> dict[tuple[str, tuple[str, ...]], float]:
    """Give values by name without the prefix, and the labels' values in their order, without the app's."""
    return {
        (sample.name.removeprefix(PREFIX), tuple(sample.labels.values())[1:]): sample.value
        for family in families(of)
        for sample in family.samples
    }


def names() -> set[str]:
    """Give the names of all samples that there can be."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
    of_workers = {family.name + end for family in families(status()) for end in suffixes.get(family.type, [""])}
    return of_workers | {WATCH + name for name in METRICS}


def expressions() -> tuple[list[str], list[str]]:
    """Give the expressions of the alerts and of the panels."""
    rules = [
        rule
        for group in yaml.safe_load((DOCS / "ops" / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]
    panels = json.loads((DOCS / "ops" / "grafana.json").read_text())["panels"]
    return [rule["expr"] for rule in rules], [one["expr"] for panel in panels for one in panel.get("targets", [])]


def test_each_sample_has_the_apps_id() -> None:
    for family in families(status()):
        for sample in family.samples:
            assert next(iter(sample.labels.items())) == ("app", "shop"), sample


def test_brokers_are_told() -> None:
    brokers = BrokersStatus(unreachable=2, group_silent_s=7.5, throttled_s=0.25)
    found = samples(replace(status(), brokers=brokers, commit_interval_s=0.1))
    assert found["unreachable_brokers", ()] == 2
    assert found["group_silence_seconds", ()] == 7.5
    assert found["throttled_seconds_total", ()] == 0.25
    assert found["commit_interval_seconds", ()] == 0.1


def test_copies_and_parked_effects_are_told() -> None:
    found = samples(status())
    assert found["parked_effects", ("ship", "0")] == 3
    assert ("parked_effects", ("ship", "1")) not in found
    assert found["assigned_copies", ("ship", "standby")] == 3
    # The partition with two stores is one, and what isn't looked at any more isn't followed.
    assert found["copies", ("ship", "standby")] == 1
    assert found["copies", ("ship", "warm-up")] == 1
    assert found["copies", ("account", "standby")] == found["assigned_copies", ("account", "warm-up")] == 0
    assert {key: value for key, value in found.items() if key[0] == "copy_lag_records"} == {
        ("copy_lag_records", ("ship", "ship-state", "2", "standby")): 7,
        ("copy_lag_records", ("ship", "ship-ids", "2", "standby")): 0,
        ("copy_lag_records", ("ship", "ship-state", "3", "warm-up")): 900,
    }
    current = [labels[2] for name, labels in found if name == "copy_current_timestamp_seconds"]
    assert sorted(current) == ["2", "2", "4"]
    assert found["copy_current_timestamp_seconds", ("ship", "ship-state", "2", "standby")] == (NOW_MS - 400) / 1000


def test_a_partition_is_followed_when_all_of_its_stores_are() -> None:
    half = [copy("ship", 2), copy("ship", 2, store="ship-ids", looked_ms=NOW_MS - STILL_MS - 1)]
    found = samples(replace(status(), copies=half))
    assert found["copies", ("ship", "standby")] == 0


def test_the_page_has_all_metrics_and_no_others() -> None:
    rows = re.findall(r"^\| (`[a-z].*?) \|", (DOCS / "reference" / "metrics.md").read_text(), re.MULTILINE)
    told = {PREFIX + name for row in rows for name in re.findall(r"`(\w+)`", row)}
    there = {family.name + ("_total" if family.type == "counter" else "") for family in families(status())}
    assert told == there | {f"{REFUSED.describe()[0].name}_total"} | {WATCH + name for name in METRICS}


def test_labels_are_names_of_the_app_and_fixed_words() -> None:
    labels = {label for family in families(status()) for sample in family.samples for label in sample.labels}
    fixed = {"state", "reason", "role", "le", "version", "engine"}
    assert labels - fixed == {"app", "worker", "actor", "topic", "store", "partition", "code"}


def test_codes_that_another_worker_makes_up_are_one() -> None:
    meters = QueryMeters()
    for code in range(100, 1000):
        meters.answered(code, 0.1)
    assert set(meters.codes) == {0, *HTTPStatus}
    assert sum(meters.codes.values()) == 900


def test_alerts_and_panels_name_what_there_is() -> None:
    alerts, panels = expressions()
    known = names()
    labels: dict[str, set[str]] = {}
    for family in families(status()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    for expression in alerts + panels:
        used = set(re.findall(rf"{PREFIX}\w+", expression))
        assert used or RECORDED in expression, expression
        assert used <= known, expression
        for name, selected in re.findall(rf"({PREFIX}\w+)\{{(.*?)\}}", expression):
            wanted = set(re.findall(r"(\w+)\s*[=!]", selected)) - LABELS
            assert wanted <= labels.get(name, wanted), expression
    for name in ("parked_messages", "parked_effects", "copies", "assigned_copies", "copy_lag_records"):
        for where in (alerts, panels):
            assert any(re.search(rf"{PREFIX}{name}\b", expression) for expression in where), name


def test_the_page_has_all_alerts() -> None:
    page = (DOCS / "reference" / "metrics.md").read_text()
    [table] = re.findall(r"^\| alerts about .*\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    named = [f"FaustActors{name}" for name in re.findall(r"`([A-Z]\w+)`", table)]
    groups = yaml.safe_load((DOCS / "ops" / "alerts.yaml").read_text())["groups"]
    assert sorted(named) == sorted(rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule)


def test_panels_dont_lie_on_each_other() -> None:
    panels = json.loads((DOCS / "ops" / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= PANEL_WIDTH for place in places)
    for one, other in combinations(places, 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        is_below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert is_beside or is_below, (one, other)


def test_late_records_are_told_by_store_and_stream_time_by_partition() -> None:
    one = replace(status().tasks[0], late={"minutes": 3, "visits": 0}, stream_ms=1_500)
    found = samples(replace(status(), tasks=[one]))
    assert found["late_records_total", ("ship", "minutes", "0")] == 3
    assert found["late_records_total", ("ship", "visits", "0")] == 0
    assert found["stream_time_seconds", ("ship", "0")] == 1.5
