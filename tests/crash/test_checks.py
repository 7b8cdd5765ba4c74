"""Each check of the crash run finds the damage that it is there for."""

from __future__ import annotations

import json

from tests.crash.checks import Record, check_run

KEYS = [b"a", b"b", b"a", b"a", b"b"]
VALUES = [3, 1, 5, 2, 7]


def good_run() -> tuple[list[Record], list[Record], list[Record]]:
    stats: dict[bytes, dict[str, int]] = {}
    inputs, echoes, changelog = [], [], []
    for offset, (key, value) in enumerate(zip(KEYS, VALUES, strict=True)):
        held = stats.get(key)
        stats[key] = {
            "count": held["count"] + 1 if held else 1,
            "sum": held["sum"] + value if held else value,
            "min": min(held["min"], value) if held else value,
            "max": max(held["max"], value) if held else value,
        }
        inputs.append(Record(0, offset, key, b"%d" % value))
        said = {"offset": offset, "value": value, "stats": stats[key]}
        echoes.append(Record(0, offset * 2, key, json.dumps(said).encode()))
        changelog.append(Record(0, offset * 2, key, json.dumps(stats[key]).encode()))
    return inputs, echoes, changelog


def changed(record: Record, **changes: object) -> Record:
    said = {**json.loads(record.value or b""), **changes}
    return record._replace(value=json.dumps(said).encode())


def test_a_good_run_is_clean() -> None:
    assert check_run(*good_run()).clean


def test_a_lost_input() -> None:
    inputs, echoes, changelog = good_run()
    findings = check_run(inputs, echoes[:-1], changelog)
    assert findings.lost == 1
    assert not findings.clean


def test_a_doubled_input() -> None:
    inputs, echoes, changelog = good_run()
    findings = check_run(inputs, [*echoes, echoes[1]._replace(offset=99)], changelog)
    assert findings.doubled == 1


def test_an_input_counted_twice_in_the_state_only() -> None:
    inputs, echoes, changelog = good_run()
    stats = json.loads(echoes[3].value or b"")["stats"]
    echoes[3] = changed(echoes[3], stats={**stats, "count": stats["count"] + 1})
    findings = check_run(inputs, echoes, changelog)
    assert findings.wrong_running_values == 1


def test_an_echo_of_what_was_never_sent() -> None:
    inputs, echoes, changelog = good_run()
    echoes[2] = changed(echoes[2], value=6)
    assert check_run(inputs, echoes, changelog).wrong_running_values


def test_an_echo_out_of_order() -> None:
    inputs, echoes, changelog = good_run()
    echoes[0], echoes[1] = echoes[0]._replace(offset=2), echoes[1]._replace(offset=0)
    assert check_run(inputs, echoes, changelog).out_of_order == 1


def test_a_state_that_lacks_the_last_write() -> None:
    inputs, echoes, changelog = good_run()
    assert check_run(inputs, echoes, changelog[:-1]).wrong_state == 1


def test_a_key_in_another_partition() -> None:
    inputs, echoes, changelog = good_run()
    findings = check_run(inputs, echoes, [record._replace(partition=1) for record in changelog])
    assert findings.wrong_state == 4


def test_a_deleted_key_is_missed() -> None:
    inputs, echoes, changelog = good_run()
    findings = check_run(inputs, echoes, [*changelog, Record(0, 100, b"a", None)])
    assert findings.wrong_state == 1
