"""The manifest of an archive: the files that count and the offsets that they cover.

`_manifest/{number}.json` has an entry for each batch. An entry is written last, when all of its files are there, and
only if no entry of its number exists: of two writers one succeeds. Files that no entry names don't count.

A reader begins at the newest entry that is `whole`: such an entry has all files and offsets, not only those of a batch.
Every 50th entry is, and the entry of a compaction. Each entry has its own CRC-32 in a second line and that of the entry
before, so that none can be lost, changed or taken from another archive.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

import msgspec

from spark_replay.errors import ArchiveError
from spark_replay.sources.archives.ledger import Ledger
from spark_replay.sources.folders import Folder
from stores._core.outside import MISSHAPEN
from stores._core.printable import counted

MANIFEST = "_manifest"
FILES = "data"
SCHEMA = (
    "topic string, partition int, offset bigint, key binary, value binary, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
"""The columns of an archive's files."""
_FORMAT = 1
WHOLE_EVERY = 50
"""Of so many entries one is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """A file of an archive, with records of one partition.

    Attributes:
        name: Its path below the archive's folder.
        topic: The topic.
        partition: The partition.
        first: The offset of its first record.
        last: The offset of its last record.
        latest_ms: The latest timestamp of its records, Unix milliseconds.
        records: How many it has.
        bytes: How long it is.
        digest: The digest of its bytes, see `spark_replay.sources.archives.verification`.
    """

    name: str
    topic: str
    partition: int
    first: int
    last: int
    latest_ms: int
    records: int
    bytes: int
    digest: str

    def __str__(self) -> str:
        """Name topic, partition and offsets too."""
        return f"{self.name} ({self.topic} partition {self.partition}, offsets {self.first} to {self.last})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of an archive, or of one entry of its manifest.

    Attributes:
        number: The number of the last entry; -1 of a new archive.
        whole: The number of the entry that a reader begins with.
        crc: The CRC-32 of the last entry's text.
        made_ms: When that was written, Unix milliseconds.
        ledgers: The offsets by topic.
        files: The files by name.
        replaced: Files that a compaction replaced, and when; readers of an older entry may still need them.
    """

    number: int = -1
    whole: int = 0
    crc: int = 0
    made_ms: int = 0
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    files: Mapping[str, ArchiveFile] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)

    def in_order(self) -> list[ArchiveFile]:
        """Return the files in the order of topics, partitions and offsets."""
        return sorted(self.files.values(), key=lambda file: (file.topic, file.partition, file.first))

    def of(self, topic: str) -> list[ArchiveFile]:
        """Return a topic's files, in order."""
        return [file for file in self.in_order() if file.topic == topic]

    def unnamed(self, names: Iterable[str]) -> set[str]:
        """Return the files among `names` that count for nobody, and that no run can name any more."""
        # a file of a later number may be of a run in progress
        late = f"{FILES}/{self.number + 1:08}-"
        return {name for name in names if name < late} - self.files.keys() - self.replaced.keys()

    def joined(self, later: Manifest) -> Manifest:
        """Return the content of this and of the entry that follows; `ValueError` if it doesn't fit."""
        ledgers = {
            name: self.ledgers[name].joined(ledger) if name in self.ledgers else ledger
            for name, ledger in later.ledgers.items()
        }
        twice = sorted(self.files.keys() & later.files.keys())
        if twice:
            raise ValueError(f"{self.files[twice[0]]} is named twice")
        return replace(later, ledgers={**self.ledgers, **ledgers}, files={**self.files, **later.files})

    def check(self, number: int) -> None:
        """Check an entry: each file lies in the archive and in the offsets of its partition, no offset is in two files.

        Raises:
            ValueError: One isn't, the text names files, partition and offset; or it isn't the entry `number`.
        """
        if self.number != number or not 0 <= self.whole <= number:
            raise ValueError(f"it is the entry {self.number}, to be read from {self.whole} on")
        for ledger in self.ledgers.values():
            ledger.check()
        before: ArchiveFile | None = None
        for file in self.in_order():
            if not file.name.startswith(f"{FILES}/") or ".." in file.name.split("/"):
                raise ValueError(f"{file.name} leads out of the archive")
            own = self.ledgers.get(file.topic)
            if (
                own is None
                or not 0 <= file.partition < len(own.starts)
                or not own.starts[file.partition] <= file.first <= file.last < own.ends[file.partition]
                or not 0 < file.records <= file.last - file.first + 1
            ):
                raise ValueError(f"{file} with {counted(file.records, 'record')} isn't in the offsets of the archive")
            is_same = before is not None and (before.topic, before.partition) == (file.topic, file.partition)
            if before is not None and is_same and file.first <= before.last:
                raise ValueError(f"{before} and {file} overlap: both have offset {file.first}")
            before = file

    def batch(self, made_ms: int, ledgers: Iterable[Ledger], files: Iterable[ArchiveFile]) -> Manifest:
        """Return the next entry, with these offsets and files more."""
        entry = Manifest(
            number=self.number + 1,
            whole=self.whole,
            made_ms=made_ms,
            ledgers={ledger.topic: ledger for ledger in ledgers},
            files={file.name: file for file in files},
            replaced=self.replaced,
        )
        if entry.number % WHOLE_EVERY == 0:
            entry = replace(self.joined(entry), whole=entry.number)
        return entry

    def compacted(self, made_ms: int, old: Iterable[ArchiveFile], new: Iterable[ArchiveFile]) -> Manifest:
        """Return the next entry, with new files in the place of old ones."""
        names = {file.name for file in old}
        files = {name: file for name, file in self.files.items() if name not in names}
        return replace(
            self,
            number=self.number + 1,
            whole=self.number + 1,
            made_ms=made_ms,
            files=files | {file.name: file for file in new},
            replaced={**self.replaced, **dict.fromkeys(names, made_ms)},
        )


def entry_name(number: int) -> str:
    """Return the name of an entry's file, below the archive's folder."""
    return f"{MANIFEST}/{number:012}.json"


def encode_entry(entry: Manifest, previous: Manifest) -> str:
    """Return an entry as text, for behind the entry `previous`."""
    content = asdict(entry)
    del content["crc"]
    head = {"format": _FORMAT, "previous": f"{previous.crc:08x}", "schema": SCHEMA}
    line = json.dumps(head | {"entry": content})
    return f"{line}\n{zlib.crc32(line.encode()):08x}\n"


def decode_entry(text: str) -> tuple[Manifest, int]:
    """Read what `encode_entry` wrote; also return the CRC-32 of the entry before.

    Raises:
        ValueError: It was changed or cut, or is of a format that this release doesn't know.
    """
    line, _, rest = text.partition("\n")
    crc = zlib.crc32(line.encode())
    if rest != f"{crc:08x}\n":
        raise ValueError(f"its CRC-32 is {crc:08x} and was {rest.strip()[:8]}")
    try:
        raw = json.loads(line)
        if raw["format"] != _FORMAT or raw["schema"] != SCHEMA:
            raise ValueError(f"of format {raw['format']}, this release reads format {_FORMAT}")
        return replace(msgspec.convert(raw["entry"], Manifest), crc=crc), int(raw["previous"], 16)
    except (*MISSHAPEN, msgspec.MsgspecError) as error:
        raise ValueError(f"not an entry of a manifest: {error!r}") from error


def read_manifest(folder: Folder) -> Manifest:
    """Return the content of an archive; that of a new one if there is none.

    Raises:
        ArchiveError: An entry is missing or damaged, or its files and offsets don't fit.
    """
    names = folder.names(MANIFEST)
    numbers = [int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit()]
    if not numbers:
        if any(not name.startswith(f"{0:08}-") for name in folder.names(FILES)):
            raise ArchiveError(f"the archive {folder} has lost its {MANIFEST}: restore it from a backup")
        return Manifest()
    last, _ = _read(folder, max(numbers))
    manifest = last if last.whole == last.number else _read(folder, last.whole)[0]
    for number in range(last.whole + 1, last.number + 1):
        entry, previous = _read(folder, number)
        if previous != manifest.crc:
            raise ArchiveError(
                f"{folder}/{entry_name(number)} doesn't follow the entry before, which was replaced: restore all of "
                "the archive from one backup"
            )
        try:
            manifest = manifest.joined(entry)
        except ValueError as error:
            raise ArchiveError(f"{folder}/{entry_name(number)}: {error}") from error
    return manifest


def _read(folder: Folder, number: int) -> tuple[Manifest, int]:
    name = entry_name(number)
    try:
        entry, previous = decode_entry(folder.text(name))
        entry.check(number)
    except ValueError as error:
        raise ArchiveError(f"{folder}/{name}: {error}; restore it from a backup") from error
    return entry, previous
