"""The states of a task, and the only ways between them.

A task owns one partition of one actor. It is born when its partition is assigned, and takes over:

    FENCING     a new producer starts: what the task's transactional id left open is settled, and whoever held the
                id before can't commit any more
    CONFIRMING  the group still knows us by (member id, generation). Asked after FENCING: a check before it would be
                true of a moment that has passed
    LOOKING     the group's committed offset, the changelogs' bounds, what the disk holds
    RESTORING   the changelogs' tails go into the stores
    CLAIMING    a transaction raises the ownership epoch and writes it down
    RUNNING     records are handled; writes and outputs are held in memory
    COMMITTING  a transaction with all of them, then the stores

Whatever goes wrong, and whatever is merely unknown, leads back to FENCING with all uncommitted work dropped: no
decision is ever taken from half of the facts. HALTED is a partition in front of a record that can't be handled,
REFUSED one whose state contradicts the broker: both keep the partition, so that no other worker runs into the same.
"""

from __future__ import annotations

import enum


class State(enum.Enum):
    """Where a task is."""

    FENCING = "fencing"
    CONFIRMING = "confirming"
    LOOKING = "looking"
    RESTORING = "restoring"
    CLAIMING = "claiming"
    RUNNING = "running"
    COMMITTING = "committing"
    HALTED = "halted"
    REFUSED = "refused"
    CLOSED = "closed"


class Event(enum.Enum):
    """What happened to a task."""

    FENCED = "the new producer is ready"
    CONFIRMED = "the group knows this member and generation"
    MIGRATED = "the group doesn't"
    LOOKED = "the facts of the takeover are together"
    CONTRADICTED = "the facts contradict each other"
    RESTORED = "the stores are at the high watermark"
    CLAIMED = "the new epoch is committed"
    COMMIT = "there is something to commit, and it is time"
    COMMITTED = "the transaction and the stores have it"
    UNKNOWN = "something failed, or may have"
    BAD_RECORD = "a record can't be handled"
    REVOKED = "the partition goes elsewhere, or the worker stops"


_TAKEOVER = {
    State.FENCING: (Event.FENCED, State.CONFIRMING),
    State.CONFIRMING: (Event.CONFIRMED, State.LOOKING),
    State.LOOKING: (Event.LOOKED, State.RESTORING),
    State.RESTORING: (Event.RESTORED, State.CLAIMING),
    State.CLAIMING: (Event.CLAIMED, State.RUNNING),
}

TRANSITIONS: dict[tuple[State, Event], State] = {
    **{(state, event): target for state, (event, target) in _TAKEOVER.items()},
    **{(state, Event.UNKNOWN): State.FENCING for state in _TAKEOVER},
    **{(state, Event.REVOKED): State.CLOSED for state in State},
    **{(state, Event.MIGRATED): State.CLOSED for state in _TAKEOVER},
    (State.FENCING, Event.CONTRADICTED): State.REFUSED,
    (State.LOOKING, Event.CONTRADICTED): State.REFUSED,
    (State.RESTORING, Event.CONTRADICTED): State.REFUSED,
    (State.CLAIMING, Event.CONTRADICTED): State.REFUSED,
    (State.RUNNING, Event.COMMIT): State.COMMITTING,
    (State.RUNNING, Event.BAD_RECORD): State.HALTED,
    (State.RUNNING, Event.UNKNOWN): State.FENCING,
    (State.COMMITTING, Event.COMMITTED): State.RUNNING,
    (State.COMMITTING, Event.UNKNOWN): State.FENCING,
    (State.COMMITTING, Event.BAD_RECORD): State.HALTED,
    (State.HALTED, Event.UNKNOWN): State.FENCING,
}


class IllegalTransitionError(RuntimeError):
    """A defect of the runtime: this event can't happen in this state."""


def advance(state: State, event: Event) -> State:
    """Return the state after `event`.

    Raises:
        IllegalTransitionError: the event can't happen in this state.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(f"{event.name} can't happen in {state.name}") from None
