"""What a takeover decides from the facts it gathered.

The facts are read after the task's transactional id was fenced, so no commit of an earlier owner can change them
any more. Three questions are answered here, each from facts alone:

1. May the store on disk be caught up, or must it be built anew, or has the changelog lost what the store has?
   (`plan_restore`, `why_rewritten`, `missed_tombstones`)
2. From which input offset does the task go on, or does the offset contradict the state? (`decide_start`)
3. Which ownership epoch is new? (`next_epoch`)
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from stores._core.printable import moment
from stores._core.record import Position, decode_stamp


@dataclass(frozen=True, slots=True)
class LogBounds:
    """A partition's first offset, and the offset after its last record (the high watermark)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Read the changelog from `start` to `end`, into an emptied store if `wipe` says why, else on top of it.

    `lost` says why the changelog lacks records that the store has; then nothing can be read on top of it.
    """

    start: int
    end: int
    wipe: str | None
    lost: str | None = None


class LostChangelog(enum.Enum):
    """What becomes of a store that has records which its changelog lost, as in an unclean leader election.

    STOP the partition until an operator has chosen; REBUILD the store from what the changelog has; RESTORE what the
    changelog lacks from the store.
    """

    STOP = "stop"
    REBUILD = "rebuild"
    RESTORE = "restore"


def plan_restore(position: Position | None, bounds: LogBounds, changelog_id: str) -> Restore:
    """Decide how a store gets to the end of its changelog."""
    if position is None:
        return Restore(bounds.start, bounds.end, None)
    if position.changelog_id != changelog_id:
        why = "the changelog topic was made anew"
    elif position.changelog_offset < bounds.start:
        why = f"the changelog starts at {bounds.start}, after the checkpoint at {position.changelog_offset}"
    elif position.changelog_offset > bounds.end:
        lost = f"the changelog ends at {bounds.end}, before the checkpoint at {position.changelog_offset}"
        return Restore(bounds.start, bounds.end, None, lost)
    else:
        return Restore(position.changelog_offset, bounds.end, None)
    return Restore(bounds.start, bounds.end, why)


def why_rewritten(position: Position, offset: int, newest: bytes) -> str | None:
    """Tell why the record at `offset`, before the position, with stamp `newest` isn't one that the store has seen.

    Stamps grow with the log: owners' epochs, and the input offsets of one owner. So a position's epoch and input offset
    are above those of all stamps before it. None says nothing: compaction may have removed what would tell.
    """
    stamp = decode_stamp(newest)
    if (stamp.epoch, stamp.source_offset) < (position.epoch, position.source_offset) or not stamp.epoch:
        return None
    return (
        f"the changelog was rewritten before the checkpoint at {position.changelog_offset} of epoch {position.epoch}: "
        f"offset {offset} is of epoch {stamp.epoch}, input offset {stamp.source_offset}"
    )


def missed_tombstones(plan: Restore, *, since_ms: int, now_ms: int, delete_retention_ms: int, margin_ms: int) -> bool:
    """Tell, at the end of a restore, whether deletes may have escaped it.

    `since_ms` is the checkpoint's wall time, or when the restore began if there was none. Compaction removes a
    tombstone `delete.retention.ms` after it was cleaned: a reader that needs longer from there to the end of its read
    may never see the delete, and its old copy of the key would come back. One offset between checkpoint and end is
    the transaction marker of the checkpoint's own commit: no delete fits in.

    A checkpoint that is from the future by as much was written by a clock that was ahead: its age isn't known.
    """
    if plan.end - plan.start <= 1:
        return False
    return abs(now_ms - since_ms) >= delete_retention_ms - margin_ms


def why_no_seed(
    position: Position,
    bounds: LogBounds,
    changelog_id: str,
    *,
    now_ms: int,
    delete_retention_ms: int,
    margin_ms: int,
) -> str | None:
    """Tell why an empty store can't begin with a seed of this position, None if it can."""
    plan = plan_restore(position, bounds, changelog_id)
    if plan.wipe is not None or plan.lost is not None:
        return plan.wipe or plan.lost
    if missed_tombstones(
        plan,
        since_ms=position.wall_time_ms,
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        margin_ms=margin_ms,
    ):
        return "it is older than deletes are kept, some may have escaped it: make it anew"
    return None


@dataclass(frozen=True, slots=True)
class InputFacts:
    """What is known of the input partition: the committed offset (None: the group has none), its log, the state.

    `state_source_offset` is the next input offset as the state has it: one more than the highest source offset found in
    the stores' positions and in the changelog's stamps, or None when there is no state. 0 is the state of no input: one
    that was published, or written by another program. `finished` is the offset behind
    the last finished input, as the commit says; None if it says nothing of inputs behind the committed offset.
    `last_known` is the committed offset that the leader registry remembers, None if it proves no earlier commit.
    """

    committed: int | None
    bounds: LogBounds
    state_source_offset: int | None
    finished: int | None = None
    last_known: LastKnown | None = None


@dataclass(frozen=True, slots=True)
class LastKnown:
    """What the leader registry says of a task that has committed before.

    `offset` is None where an older release wrote the record. `at_ms` is the time of the takeover, Unix milliseconds.
    """

    offset: int | None
    worker: str
    epoch: int
    at_ms: int

    def __str__(self) -> str:
        where = "" if self.offset is None else f", last at offset {self.offset}"
        return f"worker {self.worker} took it over in epoch {self.epoch} at {moment(self.at_ms)}{where}"


class ResetPolicy(enum.Enum):
    """Where a task begins when the group never committed an offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class StartRules:
    """The settings that bear on where a task begins.

    `exactly_once` says whether offset and state were committed together, so that they can contradict each other.
    `missing_offset` is where to begin when the committed offset is gone.
    """

    reset: ResetPolicy
    exactly_once: bool
    allow_reprocessing: bool
    allow_lost_input: bool
    missing_offset: ResetPolicy | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Go on at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Don't go on: `reason` says which facts disagree, `remedy` what an operator can do."""

    reason: str
    remedy: str


_REPROCESS = (
    "If the input is to be processed again on top of the state, set allow_reprocessing=True; "
    "if the state is to be given up too, delete the changelog topic while no worker runs; "
    "otherwise set the group's offset to where it was: {offset}, or higher if you know that later inputs were "
    "processed without leaving a trace in the state"
)


_MISSING = (
    "Choose where to begin: set the group's offset (kafka-consumer-groups.sh --reset-offsets --to-offset {last} is "
    "the last known position; later inputs may have been processed); or start the workers once with "
    'missing_offset="earliest", which handles everything from offset {start} on again, or missing_offset="latest", '
    "which skips everything before offset {end}"
)


def decide_start(facts: InputFacts, rules: StartRules) -> Start | Contradiction:
    """Decide from which input offset the task goes on."""
    contradiction = _reset_by_operator(facts, rules)
    if contradiction is not None:
        return contradiction
    if facts.committed is None:
        return _uncommitted_start(facts, rules)
    return _committed_start(facts.committed, facts.bounds, rules)


def _reset_by_operator(facts: InputFacts, rules: StartRules) -> Contradiction | None:
    state = facts.state_source_offset
    if not state or rules.allow_reprocessing or not rules.exactly_once:
        return None
    remedy = _REPROCESS.format(offset=state)
    if facts.committed is None:
        return Contradiction(f"there is state up to input offset {state}, and no committed offset", remedy)
    if max(facts.committed, facts.finished or 0) < state:
        return Contradiction(
            f"the committed offset {facts.committed} is below the state's input offset {state}", remedy
        )
    return None


def _uncommitted_start(facts: InputFacts, rules: StartRules) -> Start | Contradiction:
    """Begin as the settings say, unless the group had an offset once: then only the operator can know where."""
    state, known = facts.state_source_offset, facts.last_known
    if known is None and not state:
        # It never had one: the operator's choice is for those that had.
        return _start_at(rules.reset, facts.bounds)
    if rules.missing_offset is not None:
        return _start_at(rules.missing_offset, facts.bounds)
    if rules.allow_reprocessing and rules.reset is ResetPolicy.EARLIEST:
        return _start_at(rules.reset, facts.bounds)
    evidence = f"there is state up to input offset {state}" if known is None else str(known)
    last = max(state or 0, (known.offset or 0) if known is not None else 0)
    return Contradiction(
        f"the group has no committed offset any more, and it had one: {evidence}. Committed offsets are deleted "
        "when the group had no members for the brokers' offsets.retention.minutes, or by an operator",
        _MISSING.format(last=last, start=facts.bounds.start, end=facts.bounds.end),
    )


def _start_at(policy: ResetPolicy, bounds: LogBounds) -> Start:
    return Start(bounds.start if policy is ResetPolicy.EARLIEST else bounds.end)


def _committed_start(committed: int, bounds: LogBounds, rules: StartRules) -> Start | Contradiction:
    if committed > bounds.end:
        return Contradiction(
            f"the committed offset {committed} is beyond the input's end {bounds.end}: "
            "the topic was made anew or lost records",
            "Reset the group's offset (and the state with it, if it belongs to the old topic)",
        )
    if committed >= bounds.start:
        return Start(committed)
    if rules.allow_lost_input:
        return Start(bounds.start)
    return Contradiction(
        f"the input's records {committed} to {bounds.start - 1} were deleted before they were processed, as far as the "
        "committed offset says",
        "Set allow_lost_input=True to go on at the first record that is left. If the former owner was killed when it "
        "had handled all of its input, these offsets may hold nothing but transaction markers: only a worker that "
        "stops cleanly, or is idle for checkpoint_refresh, commits past them, so this can't be proven",
    )


def next_epoch(known: Iterable[int]) -> int:
    """Give an ownership epoch above every one that is known of."""
    return 1 + max(known, default=0)
