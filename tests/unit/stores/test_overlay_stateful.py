"""The overlay above each store against plain dicts: messages, commits, lost commits, expiry, ranges."""

import struct
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stores._core.overlay import MessageScope, Overlay, with_metadata
from stores._core.record import Position
from stores.memory import MemoryStore
from stores.rocks import RocksResources, RocksStore
from tests.examples import examples

KEYS = st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff"])
VALUES = st.sampled_from([b"", b"x", b"yy", b"z" * 40])
BOUNDS = st.none() | KEYS | st.binary(max_size=2)
TTL_MS = st.none() | st.integers(min_value=0, max_value=30)

State = dict[bytes, tuple[bytes, bytes, int]]
"""Key to (metadata, value, expires_at_ms or 0): expired keys stay until they are deleted."""


class OverlayMachine(RuleBasedStateMachine):
    """The model is dicts of the whole state: committed, of the freeze, of the last message's end, and now."""

    def __init__(self) -> None:
        super().__init__()
        self.base = self.open_base()
        self.scope = MessageScope()
        self.overlay = Overlay(self.base, self.scope, kept_values=100)
        self.committed: State = {}
        self.frozen: State | None = None
        self.frozen_writes: dict[bytes, tuple[bytes, bytes | None]] = {}
        self.in_base = False
        self.released: State = {}
        self.now: State = {}

    def open_base(self):
        return MemoryStore()

    @initialize(epoch=st.integers(1, 2**63), offset=st.integers(0, 2**62), now_ms=st.integers(1, 2**40))
    def begin(self, epoch, offset, now_ms):
        self.scope.epoch, self.scope.source_offset, self.scope.now_ms = epoch, offset, now_ms

    def expires_at(self, ttl_ms):
        return 0 if ttl_ms is None else self.scope.now_ms + ttl_ms

    def is_live(self, entry):
        return entry[2] == 0 or entry[2] > self.scope.now_ms

    def look_up(self, key):
        entry = self.now.get(key)
        return entry[1] if entry is not None and self.is_live(entry) else None

    def put(self, key, value, expires_at_ms):
        metadata = struct.pack(">BQqq", 1, self.scope.epoch, self.scope.source_offset, expires_at_ms)
        self.now[key] = (metadata, value, expires_at_ms)

    def live_items(self):
        return sorted((key, entry[1]) for key, entry in self.now.items() if self.is_live(entry))

    @rule(key=KEYS, value=VALUES, ttl_ms=TTL_MS)
    def set(self, key, value, ttl_ms):
        expires_at_ms = self.expires_at(ttl_ms)
        self.overlay.set(key, value, expires_at_ms)
        self.put(key, value, expires_at_ms)

    @rule(rows=st.lists(st.tuples(KEYS, VALUES), max_size=3))
    def set_all(self, rows):
        self.overlay.set_all(rows)
        for key, value in rows:
            self.put(key, value, self.expires_at(None))

    @rule(key=KEYS)
    def delete(self, key):
        writes = dict(self.overlay.writes)
        assert self.overlay.delete(key) is (self.look_up(key) is not None)
        if self.now.pop(key, None) is None:
            assert self.overlay.writes == writes

    @rule(start=BOUNDS, end=BOUNDS, reverse=st.booleans(), key=KEYS, value=VALUES)
    def items_while_writing(self, start, end, reverse, key, value):
        expected = [(k, v) for k, v in self.live_items() if (start is None or k >= start) and (end is None or k < end)]
        rows = self.overlay.items(start, end, reverse=reverse)
        got = [row for _, row in zip(range(1), rows, strict=False)]
        self.set(key, value, None)
        self.delete(b"a")
        got += list(rows)
        assert got == (expected[::-1] if reverse else expected)

    @rule(prefix=KEYS | st.binary(max_size=2))
    def prefix(self, prefix):
        expected = [(key, value) for key, value in self.live_items() if key[: len(prefix)] == prefix]
        assert list(self.overlay.prefix(prefix)) == expected

    @rule(by_ms=st.integers(0, 20))
    def time_passes(self, by_ms):
        self.scope.now_ms += by_ms

    @rule()
    def message_succeeds(self):
        self.scope.release()
        self.scope.source_offset += 1
        self.released = dict(self.now)

    @rule()
    def message_fails(self):
        self.scope.rollback()
        self.scope.source_offset += 1
        self.now = dict(self.released)

    @precondition(lambda self: self.frozen is None)
    @rule()
    def commit_begins(self):
        self.message_succeeds()
        self.frozen = dict(self.now)
        self.frozen_writes = self.overlay.freeze()
        self.in_base = False

    @precondition(lambda self: self.frozen is not None and not self.in_base)
    @rule(loading=st.booleans())
    def commit_reaches_the_base(self, loading):
        offset = self.scope.source_offset
        write = self.base.load if loading else self.base.apply
        position = Position(offset, offset, self.scope.now_ms, 1, "id")
        write([(key, with_metadata(entry)) for key, entry in self.frozen_writes.items()], position)
        self.committed, self.in_base = self.frozen, True
        expected = sorted((key, entry[0] + entry[1]) for key, entry in self.committed.items())
        assert list(self.base.scan()) == expected
        assert self.base.position() == position

    @precondition(lambda self: self.in_base)
    @rule()
    def commit_ends(self):
        self.overlay.settle()
        self.frozen, self.in_base = None, False

    @rule()
    def takeover(self):
        self.overlay.discard()
        self.frozen, self.in_base = None, False
        self.now, self.released = dict(self.committed), dict(self.committed)

    @invariant()
    def sees_what_the_model_sees(self):
        assert list(self.overlay.items()) == self.live_items()
        for key in (b"", b"a", b"a\xff", b"b", b"\xff"):
            assert self.overlay.get(key) == self.look_up(key)

    @invariant()
    def counts_no_fewer_bytes_than_it_holds(self):
        held = sum(len(key) + len(value or b"") for key, (_, value) in self.overlay.writes.items())
        assert self.overlay.bytes_held >= held

    def teardown(self):
        self.base.close()


class RocksOverlayMachine(OverlayMachine):
    def open_base(self):
        self.folder = tempfile.TemporaryDirectory()
        return RocksStore.open(Path(self.folder.name) / "0", resources=RESOURCES)

    @precondition(lambda self: self.frozen is None)
    @rule()
    def worker_restarts(self):
        self.base.close()
        self.base = RocksStore.open(Path(self.folder.name) / "0", resources=RESOURCES)
        self.overlay = Overlay(self.base, self.scope, kept_values=100)
        self.scope.release()
        self.now, self.released = dict(self.committed), dict(self.committed)

    def teardown(self):
        super().teardown()
        self.folder.cleanup()


RESOURCES = RocksResources(memtable_bytes=64 << 10)

TestOverMemory = OverlayMachine.TestCase
TestOverMemory.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestOverRocks = RocksOverlayMachine.TestCase
TestOverRocks.settings = settings(max_examples=examples(20), stateful_step_count=40, deadline=None)
