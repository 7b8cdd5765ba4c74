"""The states of a task, and the only transitions between them.

A task owns one partition number of one actor's inputs. It begins when its partition is assigned, and takes over:

    FENCING     the worker's own transaction ends, if its outcome is unknown
    CONFIRMING  the group still knows this worker by (member id, generation). Asked after FENCING: an answer from
                before it may be outdated
    LOOKING     waits for what former owners left open, ends what the dead left; reads the group's committed offsets,
                the changelogs' bounds, the positions on disk
    RESTORING   applies the changelogs' tails to the stores
    CLAIMING    a transaction raises the ownership epoch and records it
    RUNNING     handles records; writes and outputs are held in memory
    COMMITTING  a transaction with all of them, then the stores

A failure, or an unknown outcome, leads back to FENCING with all uncommitted work dropped: no decision is ever taken
from incomplete facts. A HALTED task stands before a record that can't be handled; the state of a REFUSED task
contradicts the broker. Both keep the partition, because another worker would meet the same problem.
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
    """An event of a task's life."""

    FENCED = "the new producer is ready"
    CONFIRMED = "the group knows this member and generation"
    LOOKED = "the facts of the takeover are together"
    CONTRADICTED = "the facts contradict each other"
    RESTORED = "the stores are at the high watermark"
    CLAIMED = "the new epoch is committed"
    COMMIT = "there is something to commit, and it is time"
    COMMITTED = "the transaction and the stores have it"
    UNKNOWN = "something failed, or may have"
    BAD_RECORD = "a record can't be handled"
    REVOKED = "the partition is another worker's, or the worker stops"


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
