from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Shipment(_message.Message):
    __slots__ = ("order", "item", "count", "name", "city")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CITY_FIELD_NUMBER: _ClassVar[int]
    order: str
    item: str
    count: int
    name: str
    city: str
    def __init__(self, order: _Optional[str] = ..., item: _Optional[str] = ..., count: _Optional[int] = ..., name: _Optional[str] = ..., city: _Optional[str] = ...) -> None: ...
