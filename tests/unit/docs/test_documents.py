"""Each `curl` command of a document is run by a test."""

from __future__ import annotations

import re
from pathlib import Path

from tests.documents import ADDRESS, ROOT, commands_in

RUN_BY = {
    "README.md": "tests/kafka/docs/test_readme.py",
    "docs/reference/queries.md": "tests/kafka/web/test_queries.py",
    "docs/how-to/rows.md": "tests/unit/docs/test_rows_page.py",
    "docs/how-to/http-commands.md": "tests/kafka/web/test_http.py",
    "docs/how-to/job-queue.md": "tests/kafka/docs/test_job_queue.py",
    "docs/how-to/security.md": "tests/kafka/access/test_broker_access.py",
    "docs/how-to/standbys.md": "tests/kafka/takeover/test_standby.py",
    "docs/tutorial/shop.md": "tests/kafka/docs/test_tutorial.py",
    "examples/bank_accounts.py": "tests/kafka/web/test_queries.py",
}
"""A test runs all that `commands_of` gives of its document."""


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py")])


def what_no_test_runs(name: str, text: str) -> list[str]:
    """Give the lines with a command that no test would find, or would find and not run."""
    mentions = len(re.findall(r"\bcurl\b", text))
    if not mentions:
        return []
    commands = commands_in(text)
    broken = [command.text for command in commands if command.text.endswith("\\") or ADDRESS not in command.text]
    if broken or mentions != len(commands) or name not in RUN_BY:
        return broken or [line for line in text.splitlines() if "curl" in line]
    test = (ROOT / RUN_BY[name]).read_text()
    return [] if f'commands_of("{name}")' in test else [f"{RUN_BY[name]} doesn't look at {name}"]


def test_each_command_of_a_document_is_run_by_a_test() -> None:
    found = {path: path.read_text() for path in documents()}
    assert {str(path.relative_to(ROOT)) for path, text in found.items() if "curl" in text} == RUN_BY.keys()
    for path, text in found.items():
        name = str(path.relative_to(ROOT))
        assert what_no_test_runs(name, text) == [], f"{name}: write it as `$ curl …`, and name its test in RUN_BY"


def test_one_in_another_place_is_noticed() -> None:
    shown = f"$ curl {ADDRESS}/actors\n"
    assert what_no_test_runs("docs/reference/queries.md", shown) == []
    for name, text in [
        ("docs/reference/actors.md", shown),
        ("docs/reference/queries.md", f"    curl {ADDRESS}/actors\n"),
        ("docs/reference/queries.md", shown + f"curl -s {ADDRESS}/actors | jq .\n"),
        ("docs/reference/queries.md", f"$ curl -s \\\n    {ADDRESS}/actors\n"),
        ("docs/reference/queries.md", "$ curl other:6066/actors\n"),
    ]:
        assert what_no_test_runs(name, text), text
