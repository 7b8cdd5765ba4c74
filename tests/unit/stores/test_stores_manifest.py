"""The manifest of an export: what is refused, and the reason given."""

import json

import pytest

from stores._core.manifest import Manifest, ManifestPartition, decode_manifest, encode_manifest, partition_file
from stores._core.record import Position

MANIFEST = Manifest(
    app="dispatcher",
    store="seen",
    changelog="dispatcher-seen-changelog",
    placement="task",
    worker="w-1",
    exported_at_ms=1_760_000_000_000,
    partition_count=4,
    partitions=(ManifestPartition(3, partition_file(3), 12, Position(1, 2, 3, 4, "topic-id")),),
)


def told(**changes) -> str:
    return json.dumps(json.loads(encode_manifest(MANIFEST)) | changes)


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
        ("", "no JSON"),
        ("[]", "list instead of an object"),
        ("{}", "manifest has no 'format'"),
        (told(format=2), "format 2, this release reads format 1"),
        (told(format="1"), "'format' of manifest is '1', expected int"),
        (told(format=True), "expected int"),
        (told(app=None), "'app' of manifest is None, expected str"),
        (told(partition_count=4.0), "expected int"),
        (told(placement="hash"), "'hash', not key or task"),
        (told(partitions={}), "expected list"),
        (told(partitions=[7]), "a partition that is int"),
        (told(partitions=json.loads(told())["partitions"] * 2), "partition 3 twice"),
        (told(partition_count=3), "partition 3 of 3"),
        (told_of_partition(partition=-1), "partition -1 of 4"),
        (told_of_partition(keys="12"), "'keys' of partition 3 is '12'"),
        (told_of_partition(file="../x.parquet"), "files lie beside the manifest"),
        (told_of_partition(file="/etc/passwd"), "files lie beside the manifest"),
        (told_of_partition(file="a\0.parquet"), "files lie beside the manifest"),
        (told_of_partition(keys=2**63), "64 bits at most"),
        ("[" * 100_000, "no JSON"),
        (told_of_partition(position=None), "'position' of partition 3 is None"),
        (told_of_partition(position={"source_offset": 1}), "the position of partition 3 has no 'changelog_offset'"),
    ],
)
def test_what_isn_t_a_manifest_is_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        decode_manifest(text)
