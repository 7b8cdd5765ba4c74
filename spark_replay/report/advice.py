"""The remedy of a mismatch, by its cause. A cause without an entry refers to the report's examples."""

from __future__ import annotations

from spark_replay.comparison.causes import CAUSES, DIFFERENCES

_RESTORE = (
    "The log is right. Stop the worker, keep its data folder aside, start it: it restores the partition from the "
    "changelog. Find out first whether outputs were made from the wrong value."
)
_OTHER_WRITER = "Something else than the app writes to the changelog: find it, and take away its right to write."
_ADVICE = {
    "record_without_metadata": _OTHER_WRITER,
    "wrong_partition": (
        "Was the number of partitions changed, or is the store one without placement by key? Else something "
        "else than the app writes to the changelog: find it."
    ),
    "held_twice": "Export again. If it stays, the export's files were mixed up or damaged.",
    "partition_not_held": "Export on all workers, and check that each partition has an owner.",
    "overlapping_owners": (
        "An owner that had been replaced could still write. Keep the logs of both workers, see whether anything other "
        "than the app writes, and validate the outputs too."
    ),
    "aborted_write": _RESTORE,
    "ahead_of_position": "The export and its manifest don't belong together: export again.",
    "stale_owner": _RESTORE,
    "different_value": _RESTORE,
    "expired_key_held": _RESTORE,
    "deleted_key_back": _RESTORE,
    "committed_write_missing": _RESTORE,
    "never_committed": _RESTORE,
    "unknown": "Compare with an archive that was begun earlier (--archive): it has what compaction removed.",
    "only_first": "Expected if the key was deleted, or not yet mirrored, between the two.",
    "only_second": "Expected if the key was written between the two.",
    "other_value": "Expected if the key was written between the two.",
    "other_metadata": "Expected between clusters whose inputs have other offsets; leave out --metadata.",
}


def advice_for(cause: str) -> str:
    """Return the remedy of a cause."""
    return _ADVICE.get(cause, "See the examples.")


def meaning_of(cause: str) -> str:
    """Return the meaning of a cause in words."""
    return (CAUSES | DIFFERENCES).get(cause, cause.replace("_", " "))
