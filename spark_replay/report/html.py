"""A validation's report as one HTML page that needs nothing else: no network, no script.

Keys and values are whatever users wrote. Jinja2 escapes them all; the page's own policy also forbids scripts and every
request.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from spark_replay.comparison.causes import CAUSES, DIFFERENCES
from spark_replay.errors import ReplayError, TargetError
from spark_replay.sources.folders import Folder
from spark_replay.sources.staging import local_folder
from stores._core.printable import counted, moment
from stores._core.printable import printable as escaped
from stores._files import open_private

if TYPE_CHECKING:
    from spark_replay.comparison.report import Report

GENERATOR = "faust-actors spark_replay"
_DISTRIBUTION = "faust-actors"
_HEAD_BYTES = 2_000
_REMEDIES = CAUSES | DIFFERENCES


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The origin of a page.

    Attributes:
        command: The command, without secrets.
        source: Where the log was read.
        at_ms: When the run began, Unix milliseconds.
        version: The release that made it.
    """

    command: str
    source: str
    at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    version: str = field(default_factory=lambda: _version())


def require_page(where: str | Path) -> None:
    """Check that a page can be written to a path or URI: the file is missing, or is an earlier page.

    Raises:
        TargetError: The file is something else, or its folder is missing.
    """
    file = local_folder(where)
    if file is None:
        _stored(where)
        return
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
    except FileNotFoundError:
        if not file.absolute().parent.is_dir():
            raise TargetError(f"{file} can't be written: there is no folder {file.absolute().parent}") from None
        return
    except OSError as error:
        raise TargetError(f"{file} can't be written: {error.strerror}") from error
    _require_generated(head.decode(errors="replace"), file)


def write_page(where: str | Path, page: str) -> None:
    """Write a page to a path or URI; an earlier page is replaced.

    Raises:
        ReplayError: The file can't be written, or another run was faster.
    """
    file = local_folder(where)
    if file is None:
        folder, name, version = _stored(where)
        if not folder.create(name, page, over=version):
            raise TargetError(f"another run wrote to {where} first: the page isn't written")
        return
    try:
        with open_private(file, "w") as opened:
            opened.write(page)
    except OSError as error:
        raise ReplayError(f"the page can't be written to {file}: {error}") from error


def _stored(where: str | Path) -> tuple[Folder, str, str | None]:
    """Return folder, name and version of an earlier page in object storage, with the active session."""
    from pyspark.sql import SparkSession

    parent, _, name = str(where).rpartition("/")
    folder = Folder(SparkSession.active(), parent, TargetError)
    version = folder.version(name)
    _require_generated("" if version is None else folder.text(name)[:_HEAD_BYTES], where)
    return folder, name, version


def _require_generated(head: str, where: object) -> None:
    if head and f'content="{GENERATOR}"' not in head:
        raise TargetError(f"{where} exists and is no report: not overwritten, choose another file")


def render_report(report: Report, *, made: Made) -> str:
    """Return the page of a validation."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spark_replay", "templates"),
        autoescape=True,
        # Control characters and direction marks are shown wherever the template shows a text.
        finalize=lambda value: escaped(value, keep="\n\t") if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = _cell
    environment.globals["plural"] = counted
    tone, verdict = _verdict(report)
    return environment.get_template("report.html.j2").render(
        report=report,
        generator=GENERATOR,
        tone=tone,
        verdict=verdict,
        advice=_advice(report),
        facts=_facts(report, made),
        causes=[(cause, count, *_REMEDIES[cause]) for cause, count in report.causes.items()],
        checks=[(each.check, each.count, each.means, "broken" if each.count else "holds") for each in report.findings],
        partitions=_partitions(report),
        by_cause=[
            (number, *(counts.get(cause, 0) for cause in report.causes))
            for number, counts in report.causes_by_partition.items()
        ],
    )


def without_password(text: str) -> str:
    """Return a text without the user names and passwords of its URIs."""
    return re.sub(r"(?<=://)[^/\s]+@", "…@", text)


def _verdict(report: Report) -> tuple[str, str]:
    unanswered, ends = len(report.unanswered), len(report.ends)
    left_out = [f"{unanswered} of {counted(ends, 'partition')} couldn't be compared"] if unanswered else []
    if report.is_clean:
        if not report.against:
            return "good", "No record breaks a rule of the log"
        if left_out:
            return "plain", f"{left_out[0]}; {counted(report.compared, 'key')} of the others equal"
        if not report.compared:
            return "plain", "There are no keys on either side"
        verdict = f"All {report.compared:,} keys that could be compared are equal"
        return "good", "The one key is equal" if report.compared == 1 else verdict
    parts = left_out
    if report.mismatches:
        noun = "mismatch" if report.mismatches == 1 else "mismatches"
        equal = report.counts.get("equal", 0)
        parts.append(f"{report.mismatches:,} {noun}, {counted(equal, 'key')} {'is' if equal == 1 else 'are'} equal")
    if report.violations:
        parts.append(f"a rule of the log is broken by {counted(report.violations, 'record')}")
    return "bad", "; ".join(parts)


def _advice(report: Report) -> list[str]:
    lines = []
    if report.causes:
        largest = max(report.causes, key=lambda cause: report.causes[cause])
        named = ", ".join(f"{cause} {count:,}" for cause, count in report.causes.items())
        lines = [f"By cause: {named}.", f"Begin with {largest}. {_REMEDIES[largest].advice}"]
    elif report.mismatches:
        lines.append("No cause was looked for; the examples below show what differs.")
    if report.partitions_without_export:
        count = counted(len(report.partitions_without_export), "partition")
        lines.append(f"{count} with keys that the compared state lacks: were the exports of all workers collected?")
    if report.unanswered:
        lines.append("The notes say why partitions couldn't be compared. Correct that, and validate again.")
    if not lines and report.is_clean and report.counts.get("superseded"):
        lines.append(
            f"Not judged: {counted(report.counts['superseded'], 'key')}, since compaction removed what was written. "
            "Export shortly before validating."
        )
    return lines or ["Nothing to do."]


def _facts(report: Report, made: Made) -> dict[str, str]:
    store = {"store": f"{report.store} of app {report.app}"} if report.app or report.store else {}
    at = f"compared at {_range(list(report.positions.values()))}; " if report.positions else ""
    log = f"the log of {counted(len(report.ends), 'partition')} ends at {_range(report.ends)}"
    return {
        **store,
        **({"compared with": without_password(report.against)} if report.against else {}),
        **({"offsets": at + log} if report.ends else {}),
        "when": moment(made.at_ms),
        "log": without_password(made.source),
        "command": without_password(made.command),
        "version": f"{_DISTRIBUTION} {made.version}",
    }


def _partitions(report: Report) -> list[tuple[int | None, ...]]:
    ends = dict(enumerate(report.ends))
    return [
        (
            number,
            report.positions.get(number),
            ends.get(number),
            *(report.by_partition.get(number, {}).get(kind, 0) for kind in report.counts),
        )
        for number in sorted({*report.by_partition, *report.positions, *ends})
    ]


def _range(values: Sequence[int]) -> str:
    if not values:
        return "none"
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _version() -> str:
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        # handed to Spark as files, not installed
        return "of unknown version"
