"""The order of a commit's writes where it isn't atomic, as with `processing_guarantee="at_least_once"`.

A message, timer or result counts as handled once the actor's own stores say so: its id is known, its question answered,
its entry gone. A process that dies between two writes must leave the opposite, so that it is handled again. So what it
led to is written first, and in steps, each acknowledged before the next:

    state                   the stores of the app, and of class actors
    entries that are new    in the lines of parked messages and of effects
    windows                 what closes led to may be in those of another store
    stream time             with how far windows are closed: a message that is handled again may be too late by it
    timers                  one that fired is removed, or moved on, with those that its handler set: one store, in order
    entries that are gone   from these lines: a retry or a result may have led to all of the above
    ids and answers         what makes a repeat be skipped
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from actors.ports import ChangelogWrites
from actors.runtime.inputs.time_order import STREAM_TIME
from actors.runtime.message.store import Store
from actors.runtime.quarantine.entries import is_slice
from actors.runtime.spec import ActorSpec
from stores._core.windows import PROGRESS_KEY

Changelogs = Mapping[str, ChangelogWrites]


def in_steps(spec: ActorSpec, changelogs: Changelogs) -> Sequence[Changelogs]:
    """Return a commit's writes, by the changelogs' topics, in the steps that they take; the steps aren't empty."""
    parked, effects, timers = (_topics(spec, store) for store in (spec.parked, spec.effects, spec.timers))
    ordered, last = _topics(spec, spec.order), _topics(spec, *spec.seen)
    lines = parked | effects | ordered
    windows = _topics(spec, *(store.rows for store in spec.windows))
    new: dict[str, ChangelogWrites] = {}
    gone: dict[str, ChangelogWrites] = {}
    for topic in lines & changelogs.keys():
        writes = list(changelogs[topic].items())
        if topic in parked:
            # Slices before the entry that says that they are there.
            writes.sort(key=lambda write: not is_slice(write[0]))
        # Stream time comes behind what is handled by it: what is read again before it is late.
        behind = {key for key, entry in writes if entry[1] is None or (topic in ordered and key == STREAM_TIME)}
        new[topic] = {key: entry for key, entry in writes if key not in behind}
        gone[topic] = {key: entry for key, entry in changelogs[topic].items() if key in behind}
    steps: list[Changelogs] = [
        {topic: writes for topic, writes in changelogs.items() if topic not in lines | timers | last | windows},
        {topic: writes for topic, writes in new.items() if writes},
        *_of_windows({topic: changelogs[topic] for topic in windows & changelogs.keys()}),
        {topic: changelogs[topic] for topic in timers & changelogs.keys()},
        {topic: writes for topic, writes in gone.items() if writes},
        {topic: changelogs[topic] for topic in last & changelogs.keys()},
    ]
    return [step for step in steps if step]


def _of_windows(changelogs: Changelogs) -> Iterator[Changelogs]:
    """Yield what window stores hold, and then their times."""
    for is_time in (False, True):
        kept = {
            topic: {key: entry for key, entry in writes.items() if (key == PROGRESS_KEY) is is_time}
            for topic, writes in changelogs.items()
        }
        yield {topic: writes for topic, writes in kept.items() if writes}


def _topics(spec: ActorSpec, *stores: Store[bytes, bytes] | None) -> set[str]:
    return {spec.changelogs[store.name].topic for store in stores if store is not None}
