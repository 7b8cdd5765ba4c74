"""A report or a profile as one HTML page that needs nothing else: no network, no script.

Keys and values are whatever users wrote. Jinja2 escapes them all; the page's own policy also forbids scripts and every
request.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_replay.errors import ReplayError, TargetError, ToolMissingError
from spark_replay.report.advice import advice_for, meaning_of
from spark_replay.report.figures import Figure, Table, draw_counts, draw_log, moment
from stores._core.printable import printable as escaped
from stores._files import open_private

if TYPE_CHECKING:
    from spark_replay.comparison.invariants import Finding
    from spark_replay.comparison.report import Example, Report
    from spark_replay.report.profile import Profile

GENERATOR = "faust-actors spark_replay"
_DISTRIBUTION = "faust-actors"
_HEAD_BYTES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How a page came about.

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

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What the page says of it."""
        return [
            ("when", moment(self.at_ms)),
            ("log", without_password(self.source)),
            ("command", without_password(self.command)),
            ("version", f"{_DISTRIBUTION} {self.version}"),
        ]


@dataclass(frozen=True, slots=True)
class _Group:
    title: str
    examples: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    title: str
    text: str = ""
    notes: Sequence[str] = ()
    table: Table | None = None
    figures: Sequence[Figure] = ()
    groups: Sequence[_Group] = ()
    folded: Sequence[tuple[str, Table]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    title: str
    tone: str
    verdict: str
    advice: Sequence[str]
    tiles: Sequence[tuple[str, Any]]
    facts: Sequence[tuple[str, str]]
    sections: Sequence[_Section]


def require_html() -> None:
    """Check that what makes a page can be imported; `ToolMissingError` if it can't."""
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise ToolMissingError("Jinja2 isn't installed: pip install 'faust-actors[spark]'") from error


def require_page(file: Path) -> None:
    """Check that a page can be written to a file: it isn't there, or is a page of ours.

    Raises:
        TargetError: It is something else, or its folder isn't there.
    """
    try:
        with file.open("rb") as there:
            head = there.read(_HEAD_BYTES)
    except FileNotFoundError:
        if not file.absolute().parent.is_dir():
            raise TargetError(f"{file} can't be written: there is no folder {file.absolute().parent}") from None
        return
    except OSError as error:
        raise TargetError(f"{file} can't be written: {error.strerror}") from error
    if head and f'content="{GENERATOR}"'.encode() not in head:
        raise TargetError(f"{file} exists and is no report: not overwritten, choose another file")


def write_page(file: Path, page: str) -> None:
    """Write a page; one that is there is replaced.

    Raises:
        ReplayError: It can't be written.
    """
    try:
        with open_private(file, "w") as there:
            there.write(page)
    except OSError as error:
        raise ReplayError(f"the page can't be written to {file}: {error}") from error


def render_report(found: Report, *, made: Made, profile: Profile | None = None) -> str:
    """Return the page of a validation, with figures of its log if it was profiled.

    Raises:
        ToolMissingError: Jinja2 isn't installed.
    """
    require_html()
    tone, verdict = _verdict(found)
    facts = [("compared with", without_password(found.against)), *_offsets(found), *made.facts]
    if found.app or found.store:
        facts.insert(0, ("store", f"{found.store} of app {found.app}"))
    sections = [*_causes(found), *_checks(found.findings), *_examples(found), *_notes(found), *_counts(found)]
    if profile is not None:
        sections += _log_sections(profile)
    page = _Page(
        title=f"{found.changelog}: validation",
        tone=tone,
        verdict=verdict,
        advice=_advice(found),
        tiles=[
            ("keys in the log", found.keys),
            ("equal", found.counts.get("equal", 0)),
            ("mismatches", found.mismatches),
            *([("against a rule of the log", found.violations)] if found.findings else []),
            ("not judged", found.counts.get("superseded", 0)),
            ("records read", found.records),
            ("seconds", found.seconds),
        ],
        facts=facts,
        sections=sections,
    )
    return _render(page)


def render_profile(found: Profile, *, made: Made) -> str:
    """Return the page of a profile; `ToolMissingError` if Jinja2 isn't installed."""
    require_html()
    totals, parts = found.totals, found.partitions
    tone, verdict = "plain", f"{totals['keys']:,} keys in {_plural(totals['partitions'], 'partition')}"
    advice = []
    if not totals["records"]:
        verdict = "The log is empty"
    if totals["damaged"]:
        tone, verdict = "bad", f"{_plural(totals['damaged'], 'record')} of the log without a key or write metadata"
        advice.append(f"{meaning_of('record_without_metadata')}. {advice_for('record_without_metadata')}")
    if totals["overlaps"]:
        tone = "bad"
        advice.append(f"{_plural(totals['overlaps'], 'owner')} began while an earlier one still wrote: run `check`.")
    page = _Page(
        title=f"{found.changelog}: profile",
        tone=tone,
        verdict=verdict,
        advice=advice,
        tiles=_log_tiles(found),
        facts=[
            ("offsets", f"from {_range([part.start for part in parts])}, to {_range([part.end for part in parts])}"),
            *made.facts,
        ],
        sections=_log_sections(found),
    )
    return _render(page)


def without_password(text: str) -> str:
    """Return a text without the user names and passwords of its URIs."""
    return re.sub(r"(?<=://)[^/\s]+@", "…@", text)


def _verdict(found: Report) -> tuple[str, str]:
    judged = sum(count for kind, count in found.counts.items() if kind not in ("superseded", "behind_position"))
    if found.is_clean:
        if not judged:
            return "plain", "There are no keys on either side"
        verdict = "The one key is equal" if judged == 1 else f"All {judged:,} keys that could be compared are equal"
        return "good", verdict
    parts = []
    if found.mismatches:
        noun = "mismatch" if found.mismatches == 1 else "mismatches"
        equal = found.counts.get("equal", 0)
        parts.append(f"{found.mismatches:,} {noun}, {_plural(equal, 'key')} {'is' if equal == 1 else 'are'} equal")
    if found.violations:
        parts.append(f"{_plural(found.violations, 'record')} against a rule of the log")
    return "bad", "; ".join(parts)


def _offsets(found: Report) -> list[tuple[str, str]]:
    if not found.ends:
        return []
    at = f"compared at {_range(list(found.positions.values()))}; " if found.positions else ""
    return [("offsets", f"{at}the log of {_plural(len(found.ends), 'partition')} ends at {_range(found.ends)}")]


def _range(values: Sequence[int]) -> str:
    if not values:
        return "none"
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _advice(found: Report) -> list[str]:
    lines = []
    if found.causes:
        largest = max(found.causes, key=lambda cause: found.causes[cause])
        named = ", ".join(f"{cause} {count:,}" for cause, count in found.causes.items())
        lines = [f"By cause: {named}.", f"Begin with {largest}. {advice_for(largest)}"]
    elif found.mismatches:
        lines.append("No cause was looked for; the examples below say what was seen.")
    if found.partitions_without_export:
        count = _plural(len(found.partitions_without_export), "partition")
        lines.append(f"{count} with keys, and nobody holds them: were the exports of all workers collected?")
    if not lines and found.is_clean and found.counts.get("superseded"):
        lines.append(
            f"{found.counts['superseded']:,} keys couldn't be judged: compaction took the writes that they show. "
            "Export shortly before validating."
        )
    return lines or ["Nothing to do."]


def _causes(found: Report) -> list[_Section]:
    if not found.causes:
        return []
    rows = [(cause, count, meaning_of(cause), advice_for(cause)) for cause, count in found.causes.items()]
    return [_Section(title="Causes", table=Table(("cause", "keys", "what it means", "what to do"), rows))]


def _checks(findings: Sequence[Finding]) -> list[_Section]:
    if not findings:
        return []
    rows = [(each.check, each.count, each.means, "holds" if not each.count else "broken") for each in findings]
    notes = [f"{each.check}: {text}" for each in findings for text in (*each.examples, *each.notes)]
    head = ("check", "records against it", "what has to hold", "verdict")
    return [_Section(title="Rules of the log", table=Table(head, rows), notes=notes)]


def _examples(found: Report) -> list[_Section]:
    groups = [
        _Group(f"{kind.replace('_', ' ')}: {_plural(len(examples), 'example')}", [_example(each) for each in examples])
        for kind, examples in found.examples.items()
        if examples
    ]
    if not groups:
        return []
    text = "Up to ten of each cause. Bytes that aren't text are given as base64, and long values are cut."
    return [_Section(title="Examples", text=text, groups=groups)]


def _example(example: Example) -> dict[str, Any]:
    sides = [("log", example.log), ("held", example.export)]
    return {
        "partition": example.partition,
        "key": example.key,
        "cause": example.cause,
        "seen": example.seen,
        "sides": [(name, list(held.items()) if held else []) for name, held in sides],
    }


def _notes(found: Report) -> list[_Section]:
    notes = [*found.notes]
    if found.over:
        notes.append(f"{found.over:,} keys are held that expired and aren't removed yet; no mismatch")
    notes += [f"nobody holds partition {number}, which has keys" for number in found.partitions_without_export]
    notes += [f"stale copy, not compared: {copy}" for copy in found.stale_copies]
    return [_Section(title="Notes", notes=notes)] if notes else []


def _counts(found: Report) -> list[_Section]:
    names = tuple(found.counts)
    numbers = sorted({*found.by_partition, *found.positions, *range(len(found.ends))})
    rows = [
        (
            number,
            found.positions.get(number),
            found.ends[number] if number < len(found.ends) else None,
            *(found.by_partition.get(number, {}).get(name, 0) for name in names),
        )
        for number in numbers
    ]
    head = ("partition", "compared at", "log's end", *(name.replace("_", " ") for name in names))
    folded = [("Every partition, its position and its keys by kind", Table(head, rows))] if rows else []
    if found.causes_by_partition:
        causes = tuple(found.causes)
        by_cause = [
            (number, *(counts.get(cause, 0) for cause in causes))
            for number, counts in found.causes_by_partition.items()
        ]
        folded.append(("Partitions with mismatches, by cause", Table(("partition", *causes), by_cause)))
    figures = draw_counts(found)
    return [_Section(title="Keys by partition", figures=figures, folded=folded)] if figures or folded else []


def _log_sections(found: Profile) -> list[_Section]:
    offsets = [(part.partition, part.start, part.end, part.records) for part in found.partitions]
    folded = [("From and to which offset", Table(("partition", "from", "to before", "records"), offsets))]
    figures = draw_log(found)
    text = "What compaction took isn't in it." if figures else "It has no records."
    text = f"As of {moment(found.at_ms)}. {text}"
    return [_Section(title="The log", text=text, figures=figures, folded=folded if offsets else [])]


def _log_tiles(found: Profile) -> list[tuple[str, Any]]:
    totals = found.totals
    names = {
        "keys": "keys",
        "records": "records",
        "tombstones": "of these tombstones",
        "log_bytes": "bytes in the log",
        "expired": "expired keys",
        "deleted": "deleted keys",
        "damaged": "damaged records",
        "owners": "owners",
        "seconds": "seconds",
    }
    return [(text, totals[name]) for name, text in names.items()]


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _fit(value: Any) -> Any:
    """Escape control characters and direction marks, wherever the template shows a text."""
    return escaped(value, keep="\n\t") if type(value) is str else value


def _version() -> str:
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        # handed to Spark as files, not installed
        return "of unknown version"


def _render(page: _Page) -> str:
    import jinja2
    from markupsafe import Markup

    loader = jinja2.PackageLoader("spark_replay", "templates")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        finalize=_fit,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = _cell
    css, _, _ = loader.get_source(environment, "report.css")
    template = environment.get_template("report.html.j2")
    return template.render(page=page, css=Markup(css), generator=GENERATOR)
