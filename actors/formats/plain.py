"""The formats without schemas: Faust's serializers `json` and `raw`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from actors.declare.values.codecs import Codec, Place, resolve, resolve_key


@dataclass(frozen=True, slots=True)
class Json:
    """JSON, as without any format.

    Attributes:
        type: of the values.

    Examples:
        >>> from actors.formats import Json, Place
        >>> Json().bind(Place("orders", "value"), dict[str, int], None).encode({"hats": 2})
        b'{"hats":2}'
    """

    type: Any = None
    serializer: ClassVar[str] = "json"

    def bind(self, place: Place, type_: Any, app: Any) -> Codec:
        """Return the codec of a type; see `Format`."""
        if place.part == "key":
            return resolve_key(type_, self.serializer)
        return resolve(type_, self.serializer, for_others=not place.is_state)


@dataclass(frozen=True, slots=True)
class Raw(Json):
    """Bytes as they are, and text as UTF-8.

    Examples:
        >>> from actors.formats import Place, Raw
        >>> Raw().bind(Place("notes", "value"), str, None).encode("two hats")
        b'two hats'
    """

    serializer: ClassVar[str] = "raw"
