"""What a write changes, and what differs between two states."""

from random import Random

from actors._core.view_rules import changes, differences
from stores._core.record import encode_metadata


def with_metadata(value: bytes | None, epoch: int = 0) -> bytes | None:
    return None if value is None else encode_metadata(epoch, 0) + value


def test_changes_are_those_of_the_values():
    held = {b"a": with_metadata(b"1"), b"b": with_metadata(b"1")}
    writes = [
        (b"a", with_metadata(b"1", 7)),
        (b"a", with_metadata(b"2")),
        (b"a", None),
        (b"a", None),
        (b"b", None),
        (b"c", with_metadata(b"")),
    ]
    found = [(key, old and old[25:], new if new is None else new[25:]) for key, old, new in changes(writes, held.get)]
    assert found == [(b"a", b"1", b"2"), (b"a", b"2", None), (b"b", b"1", None), (b"c", None, b"")]


def test_differences_of_random_states():
    random = Random(1)
    for _ in range(300):
        old, new = (
            {
                b"%d" % random.randrange(12): with_metadata(b"%d" % random.randrange(3), random.randrange(2))
                for _ in range(6)
            }
            for _ in range(2)
        )
        found = list(differences(iter(sorted(old.items())), iter(sorted(new.items()))))
        expected = []
        for key in sorted(old.keys() | new.keys()):
            before, after = old.get(key), new.get(key)
            if (before and before[25:]) != (after and after[25:]):
                expected.append((key, before, after))
        assert found == expected
