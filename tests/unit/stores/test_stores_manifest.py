"""The manifest of an export: what is refused, and the reason given."""

import json

import pytest

from stores._core.manifest import (
    Manifest,
    ManifestPartition,
    decode_manifest,
    encode_manifest,
    partition_file,
    with_crc32,
)
from stores._core.record import Position

MANIFEST = Manifest(
    app="dispatcher",
    store="seen",
    changelog="dispatcher--seen-changelog",
    placement="task",
    worker="w-1",
    exported_at_ms=1_760_000_000_000,
    partition_count=4,
    partitions=(ManifestPartition(3, partition_file(3), 12, Position(1, 2, 3, 4, "topic-id")),),
)


def told(**changes) -> str:
    return json.dumps(with_crc32(json.loads(encode_manifest(MANIFEST)) | changes))


def told_of_partition(**changes) -> str:
    (part,) = json.loads(encode_manifest(MANIFEST))["partitions"]
    return told(partitions=[part | changes])


def test_what_was_written_is_read():
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST
    assert decode_manifest(told(partitions=[])).partitions == ()


def test_fields_of_a_later_release_are_ignored():
    assert decode_manifest(told(later=1)) == MANIFEST
    assert decode_manifest(told_of_partition(later=1)) == MANIFEST


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "truncated"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "required field `format`"),
        (told(format=2), "format 2, this release reads format 1"),
        (told(format="1"), r"Expected `int`, got `str` - at `\$.format`"),
        (told(format=True), "Expected `int`, got `bool`"),
        (told(app=None), r"Expected `str`, got `null` - at `\$.app`"),
        (told(partition_count=4.0), "Expected `int`, got `float`"),
        (told(placement="hash"), "matching regex '\\^\\(key.row.task\\)\\$' - at"),
        (told(partitions={}), "Expected `array`, got `object`"),
        (told(partitions=[7]), "Expected `object`, got `int`"),
        (told(partitions=json.loads(told())["partitions"] * 2), "partition 3 twice"),
        (told(partition_count=3), "partition 3 of 3"),
        (told_of_partition(partition=-1), "partition -1 of 4"),
        (told_of_partition(keys="12"), r"Expected `int`, got `str` - at `\$.partitions\[0\].keys`"),
        (told_of_partition(file="../x.parquet"), "files lie beside the manifest"),
        (told_of_partition(file="/etc/passwd"), "files lie beside the manifest"),
        (told_of_partition(file="a\0.parquet"), "files lie beside the manifest"),
        (told_of_partition(keys=2**63), "Expected `int` <= 9223372036854775807"),
        ("[" * 100_000, "Expected `object`"),
        (told_of_partition(position=None), "Expected `object`, got `null`"),
        (told_of_partition(position={"source_offset": 1}), "required field `changelog_offset`"),
    ],
)
def test_what_isn_t_a_manifest_is_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        decode_manifest(text)
