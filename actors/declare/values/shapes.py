"""The shape that values of a type have as JSON; see `actors._core.shapes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from faust.models.base import Model
from msgspec import inspect

from actors._core.shapes import ANY, Shape, union_of

_SCALARS = {
    inspect.AnyType: ANY,
    inspect.RawType: ANY,
    inspect.NoneType: "none",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
    inspect.DateTimeType: "datetime",
    inspect.TimeType: "time",
    inspect.DateType: "date",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "uuid",
    inspect.DecimalType: "decimal",
}


def shape_of(type_: Any) -> Shape:
    """Return the shape of a `faust.Record`, `msgspec.Struct`, dataclass, TypedDict or any type that msgspec knows."""
    return _Shaper().of(type_)


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a store's values, and their version; `type` is bytes where they aren't kept as JSON."""

    type: Any
    version: int

    def shape(self) -> Shape | None:
        """Return the values' shape, None where the type says nothing of it."""
        return None if self.type is bytes else shape_of(self.type)


class _Shaper:
    """Walks through a type. `_around` has the classes around the place where it is, the outermost first."""

    def __init__(self) -> None:
        self._around: list[Any] = []

    def of(self, type_: Any) -> Shape:
        if type_ in (None, Any, object):
            return ANY
        if isinstance(type_, type) and issubclass(type_, Model):
            return self._within(type_, lambda: self._record(type_))
        try:
            found = inspect.type_info(type_)
        except TypeError:
            # What Faust alone can carry, such as a union of Records.
            return getattr(type_, "__name__", str(type_))
        return self._info(found)

    def _within(self, class_: Any, make: Any) -> Shape:
        if class_ in self._around:
            return {"up": len(self._around) - self._around.index(class_)}
        self._around.append(class_)
        try:
            return make()
        finally:
            self._around.pop()

    def _record(self, class_: Any) -> Shape:
        fields = {
            field.output_name: [self.of(field.type), field.required] for field in class_._options.descriptors.values()
        }
        return {"object": fields}

    def _info(self, info: inspect.Type) -> Shape:
        if type(info) in _SCALARS:
            return _SCALARS[type(info)]
        # Releases of msgspec differ in how many kinds of lists and maps they know.
        if hasattr(info, "item_type"):
            return {"list": self._info(info.item_type)}
        if hasattr(info, "key_type") and hasattr(info, "value_type"):
            return {"map": [self._info(info.key_type), self._info(info.value_type)]}
        if isinstance(info, inspect.TupleType):
            return {"row": [[self._info(item), True] for item in info.item_types]}
        if isinstance(info, inspect.UnionType):
            return union_of([self._info(arm) for arm in info.types])
        if isinstance(info, inspect.EnumType):
            return {"values": sorted(repr(member.value) for member in info.cls)}
        if isinstance(info, inspect.LiteralType):
            return {"values": sorted(map(repr, info.values))}
        if isinstance(info, inspect.Metadata):
            return self._info(info.type)
        if isinstance(info, inspect.CustomType):
            return self.of(info.cls) if issubclass(info.cls, Model) else info.cls.__name__
        return self._fields(info)

    def _fields(self, info: Any) -> Shape:
        def make() -> Shape:
            fields = [(field.encode_name, [self._info(field.type), field.required]) for field in info.fields]
            if getattr(info, "array_like", False) or isinstance(info, inspect.NamedTupleType):
                tag = [] if getattr(info, "tag", None) is None else [[{"values": [repr(info.tag)]}, True]]
                return {"row": tag + [field for _, field in fields]}
            shape: dict[str, Any] = {"object": dict(fields)}
            if getattr(info, "tag", None) is not None:
                shape["tag"] = f"{info.tag_field}={info.tag}"
            return shape

        return self._within(info.cls, make)
