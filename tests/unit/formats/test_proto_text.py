"""The text of a descriptor says what the descriptor does, as a parser of `.proto` files sees it."""

import time

import pytest
from google.protobuf import descriptor_pb2

from actors.formats.proto_text import names_of, proto_text

FILE = descriptor_pb2.FileDescriptorProto(name="all.proto", package="shop", syntax="proto3", dependency=["item.proto"])
ORDER = FILE.message_type.add(name="Order")
LINE = ORDER.nested_type.add(name="Line")
ENTRY = ORDER.nested_type.add(name="CountsEntry")
ENTRY.options.map_entry = True
ENTRY.field.add(name="key", number=1, label=1, type=9)
ENTRY.field.add(name="value", number=2, label=1, type=3)
ORDER.nested_type.add(name="Price").field.add(name="cents", number=1, label=1, type=3)
ORDER.field.add(name="counts", number=3, label=3, type=11, type_name=".shop.Order.CountsEntry")
ORDER.field.add(name="lines", number=1, label=3, type=11, type_name=".shop.Order.Line")
ORDER.oneof_decl.add(name="paid")
ORDER.oneof_decl.add(name="_note")
ORDER.field.add(name="card", number=4, label=1, type=9, oneof_index=0)
ORDER.field.add(name="cash", number=5, label=1, type=8, oneof_index=0)
ORDER.field.add(name="note", number=6, label=1, type=9, oneof_index=1, proto3_optional=True)
ORDER.field.add(name="size", number=7, label=1, type=14, type_name=".shop.Order.Size")
ORDER.reserved_range.add(start=10, end=12)
ORDER.reserved_range.add(start=20, end=21)
ORDER.reserved_name.append("old")
SIZE = ORDER.enum_type.add(name="Size")
SIZE.value.add(name="SMALL", number=0)
TEXT = """\
syntax = "proto3";
package shop;
import "item.proto";
message Order {
  reserved 10 to 11;
  reserved 20;
  reserved "old";
  enum Size {
    SMALL = 0;
  }
  message Line {
  }
  map<string, int64> counts = 3;
  message Price {
    int64 cents = 1;
  }
  oneof paid {
    string card = 4;
    bool cash = 5;
  }
  repeated .shop.Order.Line lines = 1;
  optional string note = 6;
  .shop.Order.Size size = 7;
}
"""


def test_a_file_of_everything() -> None:
    assert proto_text(FILE) == TEXT


def test_messages_have_the_places_that_the_descriptor_gives_them() -> None:
    names = {(0,): "shop.Order", (0, 0): "shop.Order.Line", (0, 2): "shop.Order.Price"}
    assert dict(names_of(TEXT)) == names


def test_proto2_and_what_has_no_text() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="two.proto")
    message = file.message_type.add(name="M")
    message.field.add(name="a", number=1, label=2, type=5)
    message.field.add(name="b", number=2, label=1, type=9, default_value='x"y')
    message.field.add(name="c", number=3, label=3, type=5).options.packed = True
    assert proto_text(file) == (
        'syntax = "proto2";\nmessage M {\n  required int32 a = 1;\n  optional string b = 2 [default = "x\\"y"];\n'
        "  repeated int32 c = 3 [packed = true];\n}\n"
    )
    message.extension_range.add(start=100, end=200)
    assert proto_text(file) is None


PARTS = [
    "a",
    "a_ ",
    "message ",
    "/* ",
    '\\"',
    "\\'",
    "map<",
    "map <a ",
    "optional ",
    "group a = ",
    "group a = 1 [",
    "x = ",
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("head", ["message A { ", 'message A { "'])
def test_a_long_text_is_read_in_one_pass(head: str, part: str) -> None:
    began_s = time.process_time()
    assert names_of(head + part * (300_000 // len(part))) == {(0,): "A"}
    # A look at the rest for each part takes much longer.
    assert time.process_time() - began_s < 10


def test_messages_that_are_declared_too_deep_in_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="deeper than 64 levels"):
        names_of("message A {" * 100_000)
