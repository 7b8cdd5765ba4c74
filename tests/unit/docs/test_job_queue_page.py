"""The page of the job queue shows what the template does."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from actors.cli.init.scaffold import make_project
from actors.testing import ActorTestDriver
from tests.documents import ROOT, block


def test_the_page_and_the_template_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(make_project(tmp_path, "my-jobs", "jobs"))
    program = importlib.import_module("my_jobs")
    page, text = (ROOT / "docs/how-to/job-queue.md").read_text(), Path(program.__file__ or "").read_text()
    for option in (
        "attempts=5",
        "first_wait=timedelta(seconds=1)",
        "limit=10",
        'rate="100/m"',
        "state_ttl",
        "my-jobs-jobs",
        "my-jobs-ended",
    ):
        assert option in page
        assert option in text
    with ActorTestDriver(program.app, effects={program.run: program.run}) as driver:
        submit = block("docs/how-to/job-queue.md", "From Python").run_async(vars(program))
        assert driver.run(submit)["status"] == "pending"
        assert driver.query(program.Jobs.at("job-1").status) == (program.Job("done", "a.txt of acme"), [])
