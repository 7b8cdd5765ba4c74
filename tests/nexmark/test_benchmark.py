"""The queries of `benchmarks.nexmark`: ours and those of Kafka Streams have the results of SQL."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.nexmark.__main__ import FLINK_PER_CORE, main
from benchmarks.nexmark.run import INPUTS, Backlog, QueryJob, count_wrong, final_rows, measure, span_s
from benchmarks.peers.systems import KAFKA_STREAMS, OURS
from tests.nexmark.oracle import SQL
from tests.nexmark.queries import QUERIES

COUNT = 20_000
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def backlogs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Backlog]:
    """By whether there are bids."""
    folder = tmp_path_factory.mktemp("events")
    return {bids: Backlog(COUNT, folder / str(bids), bids=bids) for bids in (True, False)}


def test_every_query_has_a_program_and_an_oracle() -> None:
    assert INPUTS.keys() == FLINK_PER_CORE.keys()
    assert set(INPUTS) <= QUERIES.keys() & SQL.keys()


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([(1, 2), (1, 3), (2, 4)], 0),
        ([(1, 2), (1, 3)], 1),
        ([(1, 2), (1, 3), (2, 4), (2, 4)], 1),
        ([(1, 2), (1, 3), (2, 5)], 1),
    ],
    ids=["right", "missing", "doubled", "another value"],
)
def test_wrong_rows_are_counted(rows: list[tuple[int, int]], wrong: int) -> None:
    assert count_wrong(Counter([(1, 2), (1, 3), (2, 4)]), Counter(rows)) == wrong


def test_rows_that_take_each_others_place_count_once() -> None:
    rows = [[10, 1.00004], [11, 2.0], [10, 1.5]]
    assert final_rows(QueryJob.of("q4", OURS, "", 1, 0.0), rows) == Counter([(10, 1.5), (11, 2.0)])
    assert final_rows(QueryJob.of("q20", OURS, "", 1, 0.0), rows) == Counter([(10, 1.0), (11, 2.0), (10, 1.5)])


@pytest.mark.parametrize("options", [["--queries", "q3,q99"], ["--system", "flink"]])
def test_unknown_queries_and_systems_are_refused(options: list[str]) -> None:
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2
    assert "none of" in result.output


@pytest.mark.nightly
@pytest.mark.parametrize("system", [OURS, KAFKA_STREAMS])
@pytest.mark.parametrize("query", INPUTS)
async def test_both_systems_have_the_results_of_sql(
    query: str, system: str, brokers: str, tmp_path: Path, backlogs: dict[bool, Backlog]
) -> None:
    job = QueryJob.of(query, system, brokers, next(_numbers), span_s(COUNT))
    result = await measure(job, tmp_path / "worker", backlogs["bids" in INPUTS[query]])
    assert result.results > 0
    assert result.wrong == 0
