"""The template of a job queue with a worker of its own: the commands of its page, and a kill while a job runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.cli.init.scaffold import make_project
from dev.kafka import free_port
from tests import documents
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send

WRITE, READ = "writer-0123456789-abcd", "reader-0123456789-abcd"
SLOW = """    if source == "slow":
        with open(os.environ["BEGUN"], "a") as begun:
            begun.write("x")
        await asyncio.sleep(2)
"""


@pytest.mark.parametrize(
    ("name", "is_killed"), [("my-jobs", False), pytest.param("jobs-that-stay", True, marks=pytest.mark.nightly)]
)
async def test_the_commands_of_the_page_and_a_job_that_outlives_its_worker(
    brokers: str, tmp_path: Path, name: str, is_killed: bool
) -> None:
    project, module = make_project(tmp_path, name, "jobs"), name.replace("-", "_")
    await make_topics(brokers, f"{name}-jobs", f"{name}-ended", partitions=1)
    port, tokens = free_port(), {"WRITE_TOKENS": WRITE, "QUERY_TOKENS": READ}
    begun, program = tmp_path / "begun", project / f"{module}.py"
    begun.touch()
    text = program.read_text().replace('    return f"{source} of', SLOW + '    return f"{source} of')
    program.write_text(text.replace("import os\n", "import asyncio\nimport os\n", 1))
    worker = WorkerProcess(
        module,
        brokers,
        tmp_path / "worker",
        tree=project,
        FAUST_ACTORS_WEB_PORT=str(port),
        BEGUN=str(begun),
        **tokens,
    ).start(web=True)
    await eventually(lambda: worker.log().count(" owns ") >= 2, what=worker.log)
    for command in documents.commands_of("docs/how-to/job-queue.md"):

        async def is_shown(command: documents.Command = command) -> bool:
            answer = await documents.run(command, port, environment={"WRITE_TOKEN": WRITE, "QUERY_TOKEN": READ})
            is_early = "_ask" in command.text and answer["value"][0]["status"] == "pending"
            assert is_early or documents.shows(answer, command.answer), (command, answer)
            return not is_early

        await eventually(is_shown, what=worker.log)

    submit = b'{"type": "submit", "tenant": "acme", "source": "slow"}'
    await send(brokers, f"{name}-jobs", [(b"job-2", submit)], partitions=1)
    await eventually(begun.read_text, what=worker.log)
    if is_killed:
        worker.kill()
        worker.start(web=True)

    async def has_ended() -> bool:
        return b"job-2" in [record.key for record in await read_all(brokers, f"{name}-ended")]

    await eventually(has_ended, deadline_s=150, what=worker.log)
    assert [record.key for record in await read_all(brokers, f"{name}-ended")] == [b"job-1", b"job-2"]
    assert begun.read_text() == "x" * (1 + is_killed)
    assert worker.terminate() == 0
