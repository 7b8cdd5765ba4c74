"""The decisions of a takeover from the facts it gathered.

The facts are read when no open transaction of an earlier owner can change the committed offsets, and the group refuses
its later ones. Three questions are answered here, from facts alone:

1. Can the store on disk catch up, must it be rebuilt, or has the changelog lost records that the store has? The topic
   id in the last commit identifies the changelog: a topic that was deleted and created again keeps only its name.
   (`decide_restore`, `why_rewritten`, `missed_tombstones`)
2. At which input offset does the task continue, or does the offset contradict the state? (`decide_start`)
3. What is the new ownership epoch? (`next_epoch`)
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from actors._core.task.completed import SPAN
from actors._core.task.topic_ids import show_id
from stores._core.printable import moment
from stores._core.record import Position, WriteMetadata, decode_metadata


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
    """The policy for a store with records that its changelog lost.

    STOP the partition until an operator has chosen; REBUILD the store from what the changelog has; RESTORE what the
    changelog lacks from the store, unless that lacks inputs that are committed; RESTORE_OLDER: then too.
    """

    STOP = "stop"
    REBUILD = "rebuild"
    RESTORE = "restore"
    RESTORE_OLDER = "restore_older"

    @property
    def restores(self) -> bool:
        """Return whether stores are written back to their changelogs."""
        return self in (LostChangelog.RESTORE, LostChangelog.RESTORE_OLDER)


_MARKER = 1
"""A checkpoint is in front of the transaction marker of its own commit, which takes one offset."""


def plan_restore(position: Position | None, bounds: LogBounds, changelog_id: str, *, claimed_id: str = "") -> Restore:
    """Decide how a store reaches the end of its changelog.

    `claimed_id` is the changelog's id at the partition's last commit; "" if that is unknown: then the store's counts.

    A changelog of windows may have lost all its records to the broker's retention. A store that has seen the last one
    has what they said.
    """
    known_id = claimed_id or ("" if position is None else position.changelog_id)
    if known_id not in ("", changelog_id):
        return Restore(bounds.start, bounds.end, None, why_replaced(known_id, changelog_id))
    if position is None:
        return Restore(bounds.start, bounds.end, None)
    if position.changelog_id != changelog_id:
        why = (
            f"it is of the changelog topic with the id {position.changelog_id}, and the partition's owner has gone on "
            f"with the topic with the id {changelog_id}"
        )
    elif position.changelog_offset < bounds.start and bounds.end - position.changelog_offset > _MARKER:
        why = f"the changelog starts at {bounds.start}, after the checkpoint at {position.changelog_offset}"
    elif position.changelog_offset > bounds.end:
        lost = f"the changelog ends at {bounds.end}, before the checkpoint at {position.changelog_offset}"
        return Restore(bounds.start, bounds.end, None, lost)
    else:
        return Restore(max(position.changelog_offset, bounds.start), bounds.end, None)
    return Restore(bounds.start, bounds.end, why)


def why_replaced(former_id: str, changelog_id: str) -> str:
    """Say that a store's changelog is another topic than before."""
    return (
        f"the changelog was the topic with the id {former_id}, and is the topic with the id {changelog_id} now: it was "
        "deleted and created again, or the store was given another changelog"
    )


class RestoreStep(enum.Enum):
    """The next step of a restore."""

    READ = "read what is behind the store's position"
    REBUILD = "empty the store, and begin again"
    WRITE_BACK = "the store has what the log lost: leave it as it is, to be written back"
    ASK_OPERATOR = "refuse: the log lost what the store has"
    ASK_FOR_COPY = "refuse: the log was replaced, and the store hasn't what it had"


@dataclass(frozen=True, slots=True)
class RestoreFacts:
    """The facts about a store and its log.

    `claimed_id` as in `plan_restore`. `doubt` is what a commit found that shows that the log lost records, `rewritten`
    what the read found before the position, `missed` why deletes may have escaped the read, once it is over.
    """

    position: Position | None
    bounds: LogBounds
    topic_id: str
    claimed_id: str = ""
    doubt: str | None = None
    rewritten: str | None = None
    missed: str | None = None


def decide_restore(facts: RestoreFacts, policy: LostChangelog) -> tuple[RestoreStep, Restore]:
    """Decide the next step of a restore, and what to read; `wipe` or `lost` says why it isn't to read."""
    position = facts.position
    plan = plan_restore(position, facts.bounds, facts.topic_id, claimed_id=facts.claimed_id)
    lost = plan.lost or (None if position is None else facts.doubt or facts.rewritten)
    if why := plan.wipe or facts.missed:
        return RestoreStep.REBUILD, replace(plan, wipe=why)
    if lost is None:
        return RestoreStep.READ, plan
    if policy is LostChangelog.REBUILD:
        return RestoreStep.REBUILD, replace(plan, wipe=lost)
    if plan.lost is not None and (position is None or facts.claimed_id not in ("", position.changelog_id)):
        return RestoreStep.ASK_FOR_COPY, plan
    return (RestoreStep.WRITE_BACK if policy.restores else RestoreStep.ASK_OPERATOR), replace(plan, lost=lost)


def why_rewritten(position: Position, offset: int, newest: bytes) -> str | None:
    """Return why the record at `offset`, before the position, with write metadata `newest` is new to the store.

    Write metadata grows with the log: owners' epochs, and the input offsets of one owner. So a position's epoch and
    input offset are above those of all records before it. None says nothing: compaction may have removed what would
    tell.
    """
    metadata = decode_metadata(newest)
    if position.covers(metadata) or not metadata.epoch:
        return None
    return (
        f"the changelog was rewritten before the checkpoint at {position.changelog_offset} of epoch {position.epoch}: "
        f"offset {offset} is of epoch {metadata.epoch}, input offset {metadata.source_offset}"
    )


def why_foreign(metadata: WriteMetadata, position: Position, *, owner: int, transaction: int) -> str | None:
    """Return why no owner can have written a record behind a store's position; None if one may have.

    `owner` is the last owner's epoch and `transaction` the number of its last commit, 0 if that is unknown. All that an
    owner writes is in the transaction of its mark, and no former owner writes behind it. A record of the last owner's
    epoch can't be judged behind a store that lacks the last commit, or never took one itself.
    """
    if metadata.epoch > owner:
        return f"it is of epoch {metadata.epoch}, and the partition's last owner has epoch {owner}"
    if not position.transaction or position.epoch != owner:
        return None
    if metadata.epoch < owner:
        what = f"is of epoch {metadata.epoch}" if metadata.epoch else "has no write metadata"
        return f"it {what}, and lies behind the position of a store of epoch {owner}"
    if position.transaction == transaction:
        return f"the store has the last commit, number {transaction} of epoch {owner}, already"
    return None


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a log's topic keeps deletes, how far clocks may differ, and which topic it is."""

    topic_id: str
    delete_retention_ms: int
    margin_ms: int


def missed_tombstones(plan: Restore, kept: Retention, *, since_ms: int, now_ms: int) -> bool:
    """Return, at the end of a restore, whether deletes may have escaped it.

    `since_ms` is the checkpoint's wall time, or when the restore began if there was none. Compaction removes a
    tombstone `delete.retention.ms` after it was cleaned: a reader that needs longer from there to the end of its read
    may never see the delete, and its old copy of the key would come back. One offset between checkpoint and end is
    the transaction marker of the checkpoint's own commit: no delete fits in.

    A checkpoint that is from the future by as much was written by a clock that was ahead: its age is unknown.
    """
    if plan.end - plan.start <= _MARKER:
        return False
    return abs(now_ms - since_ms) >= kept.delete_retention_ms - kept.margin_ms


def why_not_followed(position: Position, bounds: LogBounds, now_ms: int, kept: Retention) -> str | None:
    """Return why a copy or a snapshot of this position can't be followed on, None if it can.

    `position.wall_time_ms` is when it was last known to be all that the log held.
    """
    plan = plan_restore(position, bounds, kept.topic_id)
    if plan.wipe is not None or plan.lost is not None:
        return plan.wipe or plan.lost
    is_old = missed_tombstones(plan, kept, since_ms=position.wall_time_ms, now_ms=now_ms)
    return "it is older than deletes are kept, some may have escaped it" if is_old else None


@dataclass(frozen=True, slots=True)
class InputFacts:
    """The facts about an input partition: the committed offset (None: the group has none), its log, the state.

    `state_source_offset` is the next input offset as the state has it: one more than the highest source offset found in
    the stores' positions and in the changelog's write metadata, or None when there is no state. 0 is the state of no
    input: one that was published, or written by another program. `finished` is the offset behind
    the last finished input, as the commit says; None if it says nothing of inputs behind the committed offset.
    `last_known` is the committed offset that the leader registry remembers, None if it proves no earlier commit.
    `is_marked` is false if the committed offset lacks the mark of this app's commits. `known_id` is the input topic's
    id as the last commit has it, `input_id` the id that the topic has now; both as `str(uuid)`, empty if unknown.
    `tool` is the command that sets the group's offset of the partition, up to the offset. `is_parallel` says that the
    actor finishes inputs out of order: some below the state's offset may be unfinished, and only the mark says which.
    """

    committed: int | None
    bounds: LogBounds
    state_source_offset: int | None
    finished: int | None = None
    last_known: LastKnown | None = None
    is_marked: bool = True
    known_id: str = ""
    input_id: str = ""
    tool: str = "kafka-consumer-groups.sh --reset-offsets --to-offset"
    is_parallel: bool = False

    @property
    def is_recreated(self) -> bool:
        """Return whether the last commit was of another topic of this name."""
        return bool(self.known_id and self.input_id) and self.known_id != self.input_id

    @property
    def is_first(self) -> bool:
        """Return whether the group never had an offset of the partition, as far as is known."""
        return self.committed is None and self.last_known is None

    @property
    def is_published(self) -> bool:
        """Return whether the state was published before anything was handled: it is of an input on another cluster."""
        return self.is_first and self.state_source_offset == 0

    @property
    def is_moved(self) -> bool:
        """Return whether another program set the committed offset, and this app had committed before."""
        if self.committed is None or self.is_marked:
            return False
        return bool(self.state_source_offset) or self.last_known is not None or self.is_recreated

    @property
    def is_below(self) -> bool:
        """Return whether the committed offset and all finished inputs are below the state's offset: it was set back."""
        return max(self.committed or 0, self.finished or 0) < (self.state_source_offset or 0)

    @property
    def last_position(self) -> int:
        """The highest input offset that an earlier commit is known to have reached."""
        known = None if self.last_known is None else self.last_known.offset
        return max(self.state_source_offset or 0, known or 0)


@dataclass(frozen=True, slots=True)
class LastKnown:
    """The registry's record of a task that has committed before.

    `offset` is None where the record doesn't prove that the group had one. `at_ms` is the time of the takeover, Unix
    milliseconds.
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
    """The settings that decide where a task begins.

    `missing_offset` is where to begin when the committed offset is gone, or is of a topic that was re-created.
    `accept_moved` says that offsets are wanted which another program than this app has committed.
    """

    reset: ResetPolicy
    allow_reprocessing: bool
    allow_lost_input: bool
    missing_offset: ResetPolicy | None = None
    accept_moved: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Go on at `offset`. `is_anew`: an operator chose it, and the state's input offsets so far don't count any more."""

    offset: int
    is_anew: bool = False


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Don't go on: `reason` says which facts disagree, `remedy` what an operator can do."""

    reason: str
    remedy: str


_ACCEPT = 'start the workers once with moved_offset="accept" (or MOVED_OFFSET=accept in the environment)'

_GIVE_UP = (
    "delete the changelog topics while no worker runs, and start the workers once with "
    'lost_changelog="rebuild" (or LOST_CHANGELOG)'
)

_LATER = "later inputs may have been processed"
_EARLIER = (
    f"the actor has concurrency: up to {SPAN} inputs before it may be unprocessed, which are skipped unless you choose "
    "a lower offset"
)

_REPROCESS = (
    "If the input is to be processed again on top of the state, set allow_reprocessing=True; "
    "if the state is to be given up too, {give_up}{begin}; "
    "otherwise set the group's offset to where it was while no worker runs ({tool} {last} is the last known position, "
    "{caveat}), and then {accept}"
)

_MISSING = (
    "Choose where to begin: set the group's offset while no worker runs ({tool} {last} is the last known position; "
    "{caveat}), and then {accept}; or start the workers once with "
    'missing_offset="earliest", which handles everything from offset {start} on again, or missing_offset="latest", '
    "which skips everything before offset {end} (or MISSING_OFFSET in the environment)"
)

_MOVED = (
    "If this is wanted, {accept}: they go on at offset {committed}, {effect}. Otherwise set the offset back while no "
    "worker runs ({tool} {last} is the last known position; {caveat}), and then start them the same way"
)

_RECREATED = (
    'Start the workers once with missing_offset="earliest", which handles every record of the new topic from offset '
    '{start} on, on top of the state that is kept; or with missing_offset="latest", which skips the records before '
    "offset {end} (or MISSING_OFFSET in the environment). To begin at another offset, set it while no worker runs "
    "({tool} OFFSET), and then {accept}. To give the state up as well, {give_up} too"
)


def decide_start(facts: InputFacts, rules: StartRules) -> Start | Contradiction:
    """Decide at which input offset the task continues."""
    if facts.is_recreated and not (facts.is_moved and rules.accept_moved):
        return _recreated_start(facts, rules)
    contradiction = _reset_by_operator(facts, rules)
    if contradiction is not None:
        return contradiction
    if facts.committed is None:
        return _uncommitted_start(facts, rules)
    return _committed_start(facts, facts.committed, rules)


def _filled(remedy: str, facts: InputFacts, **more: object) -> str:
    return remedy.format(
        tool=facts.tool,
        start=facts.bounds.start,
        end=facts.bounds.end,
        last=facts.last_position,
        caveat=f"{_LATER}; {_EARLIER}" if facts.is_parallel else _LATER,
        accept=_ACCEPT,
        give_up=_GIVE_UP,
        **more,
    )


def _recreated_start(facts: InputFacts, rules: StartRules) -> Start | Contradiction:
    """Begin in another topic of the same name, where offsets of the former topic mean nothing."""
    if rules.missing_offset is not None:
        return _start_at(rules.missing_offset, facts.bounds, is_anew=True)
    if facts.committed is None:
        said = "the group has no committed offset any more"
    else:
        said = f"the group's committed offset {facts.committed} is no offset of the new topic"
    if facts.last_known is not None:
        said += f"; {facts.last_known}"
    return Contradiction(
        f"the input topic was re-created: the last commit was made on the topic with the id {show_id(facts.known_id)}, "
        f"now the topic has the id {show_id(facts.input_id)} (kafka-topics.sh --describe shows it); {said}",
        _filled(_RECREATED, facts),
    )


def _reset_by_operator(facts: InputFacts, rules: StartRules) -> Contradiction | None:
    state, committed = facts.state_source_offset, facts.committed
    if facts.is_below and rules.allow_reprocessing:
        return None
    if committed is not None and facts.is_moved:
        return None if rules.accept_moved else _moved(facts, committed)
    if not facts.is_below:
        return None
    begin = ' and missing_offset="earliest" or "latest" (or MISSING_OFFSET)' if committed is None else ""
    remedy = _filled(_REPROCESS, facts, begin=begin)
    if committed is None:
        return Contradiction(f"there is state up to input offset {state}, and no committed offset", remedy)
    return Contradiction(f"the committed offset {committed} is below the state's input offset {state}", remedy)


def _moved(facts: InputFacts, committed: int) -> Contradiction:
    last = facts.last_position
    if committed < last:
        effect = f"which handles the inputs {committed} to {last - 1} again, on top of the state if there is any"
    elif committed > last:
        effect = f"which skips the inputs {last} to {committed - 1}, unless they were processed"
    else:
        effect = "the last known position"
    evidence = [str(facts.last_known)] if facts.last_known is not None else []
    if facts.state_source_offset:
        evidence.append(f"there is state up to input offset {facts.state_source_offset}")
    return Contradiction(
        f"the group's committed offset {committed} was set by hand or by another program: it lacks the mark that the "
        f"commits of this app have. The last known position is {last}: {'; '.join(evidence)}",
        _filled(_MOVED, facts, committed=committed, effect=effect),
    )


def _uncommitted_start(facts: InputFacts, rules: StartRules) -> Start | Contradiction:
    """Begin as the settings say, unless the group had an offset once: then only the operator can know where."""
    state, known = facts.state_source_offset, facts.last_known
    if known is None and not state:
        # It never had one: the operator's choice is for those that had.
        return _start_at(rules.reset, facts.bounds)
    if rules.missing_offset is not None:
        return _start_at(rules.missing_offset, facts.bounds, is_anew=bool(state))
    if rules.allow_reprocessing and rules.reset is ResetPolicy.EARLIEST:
        return _start_at(rules.reset, facts.bounds, is_anew=bool(state))
    evidence = f"there is state up to input offset {state}" if known is None else str(known)
    return Contradiction(
        f"the group has no committed offset any more, and it had one: {evidence}. Committed offsets are deleted "
        "when the group had no members for the brokers' offsets.retention.minutes, or by an operator",
        _filled(_MISSING, facts),
    )


def _start_at(policy: ResetPolicy, bounds: LogBounds, *, is_anew: bool = False) -> Start:
    return Start(bounds.start if policy is ResetPolicy.EARLIEST else bounds.end, is_anew)


def _committed_start(facts: InputFacts, committed: int, rules: StartRules) -> Start | Contradiction:
    bounds, is_anew = facts.bounds, facts.is_recreated or facts.is_below
    if committed > bounds.end:
        return Contradiction(
            f"the committed offset {committed} is beyond the input's end {bounds.end}: the topic lost records, as in "
            "an unclean leader election, or was re-created before this app's commits had its id",
            _filled(
                "Set the group's offset while no worker runs ({tool} {end} goes on behind the last record, {start} "
                "handles all that are left on top of the state), and then {accept}. If the state belongs to a former "
                "topic, {give_up} too",
                facts,
            ),
        )
    if committed >= bounds.start:
        return Start(committed, is_anew)
    if rules.allow_lost_input:
        return Start(bounds.start, is_anew)
    return Contradiction(
        f"the input's records {committed} to {bounds.start - 1} were deleted before they were processed, as far as the "
        "committed offset says",
        "Set allow_lost_input=True to go on at the first record that is left. If the former owner was killed when it "
        "had handled all of its input, these offsets may hold nothing but transaction markers: only a worker that "
        "stops cleanly, or is idle for checkpoint_refresh, commits past them, so this can't be proven",
    )


def next_epoch(known: Iterable[int]) -> int:
    return 1 + max(known, default=0)
