"""`store[key]`."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")
K_contra = TypeVar("K_contra", contravariant=True)
_ABSENT: Any = object()


class _Held(Protocol[K_contra, V]):
    def get(self, key: K_contra, default: V | None = None) -> V | None: ...
    def set(self, key: K_contra, value: V) -> None: ...
    def delete(self, key: K_contra) -> bool: ...


class Subscripts(Generic[K, V]):
    """`store[key]` as a dict has it, over the store's own `get`, `set` and `delete`."""

    __iter__ = None
    """Without this, `for key in store` would ask for the keys 0, 1, 2, …"""

    def __getitem__(self: _Held[K, V], key: K) -> V:
        """Return the value of `key`.

        Raises:
            KeyError: it is absent or expired.
        """
        found: Any = self.get(key, _ABSENT)
        if found is _ABSENT:
            raise KeyError(key)
        value: V = found
        return value

    def __setitem__(self: _Held[K, V], key: K, value: V) -> None:
        """Write `value`, as `set` does."""
        self.set(key, value)

    def __delitem__(self: _Held[K, V], key: K) -> None:
        """Remove `key`.

        Raises:
            KeyError: it is absent or expired.
        """
        if not self.delete(key):
            raise KeyError(key)
