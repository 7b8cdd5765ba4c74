"""Every decoder of bytes from outside returns or raises its own error, and there is none that isn't tried."""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from stores._core.manifest import require_crc32, with_crc32
from tests.decoders import DECODERS, EXCEPTED, TRIED_ELSEWHERE, Decoder
from tests.examples import examples

# --- what is sent ----------------------------------------------------------------------------------------------------

DIGITS = "9" * 5_000
LITERALS = (
    "null", "true", "NaN", "-Infinity", "1e999", "-1e999", "1.5", "-1", "0", str(2**63), str(-(2**63) - 1), str(2**64),
    DIGITS, f"-{DIGITS}", '""', '"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"\x1b]0;x\x07"', '"\u202e"', '"\u0663"',
    "[]", "{}", "[[]]", "[null]", '{"a": [{}]}', "[" * 3_000 + "]" * 3_000, '{"a":' * 3_000 + "1" + "}" * 3_000,
    '"9999-99-99T99:99:99Z"', '"0000-01-01T00:00:00Z"', '"P99999999999999999999D"', f'"{DIGITS}"', '"../../x"', "'",
)  # fmt: skip
RAW = (
    b"", b"\x00", b"\xff", b'"\xff"', b"{", b"[", b"[" * 50_000, b'{"a":' * 50_000, b"\xed\xa0\x80", b"null", b"NaN",
    DIGITS.encode(), b"\x91" * 5_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff", b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", b"\xc7\xff\x01", b"1;" + DIGITS.encode() + b";a",
    DIGITS.encode() + b";1;a;AQ==", "\u0663;\u0663;a".encode(), b";;;;", b"A" * 100_001,
    b"%00%ff&&==&a=1&a=2", bytes(range(256)),
)  # fmt: skip
FLAT = (
    None,
    True,
    -1,
    2**63,
    2**64 - 1,
    -(2**63),
    float("nan"),
    float("inf"),
    "",
    "\x00",
    b"\xff",
    [],
    {},
    [[]],
    [None],
)


def json_with(document: Any) -> Iterator[bytes]:
    """Give a document with each of its values replaced by each literal, left out, or there twice."""
    mark = "\U000f0000"
    for place in places(document):
        marked = json.dumps(replaced(document, place, mark)) if place else json.dumps(mark)
        for literal in LITERALS:
            yield marked.replace(json.dumps(mark), literal).encode(errors="surrogatepass")
        if place and isinstance(place[-1], str):
            name = json.dumps(place[-1])
            yield marked.replace(f"{name}: {json.dumps(mark)}", f'{name}: 1, {name}: null, "\\ud800": 2').encode()


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the way to each value in a document, its own first."""
    yield at
    pairs = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for name, value in pairs:
        yield from places(value, (*at, name))


def replaced(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Give the document with another value at a place."""
    if not place:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[place[0]] = replaced(document[place[0]], place[1:], value)
    return copy


def resealed(valid: bytes) -> Iterator[bytes]:
    """Give a document that has a CRC-32 of itself with changes under which that fits."""
    try:
        document = msgspec.json.decode(valid)
        require_crc32(document)
    except (ValueError, AttributeError, msgspec.MsgspecError):
        return
    for changed in json_with(document):
        with suppress(ValueError, TypeError, RecursionError, msgspec.MsgspecError):
            yield json.dumps(with_crc32(msgspec.json.decode(changed))).encode()


def hostile(valid: bytes) -> Iterator[bytes]:
    """Give what a valid document may become."""
    yield from (valid[:end] for end in range(0, len(valid), max(1, len(valid) // 12)))
    yield from (valid[:at] + raw + valid[at + 1 :] for at in (0, len(valid) // 2) for raw in RAW)
    lines = valid.splitlines()
    for number, line in enumerate(lines):
        try:
            document = json.loads(line)
        except ValueError:
            continue
        for changed in json_with(document):
            yield b"\n".join((*lines[:number], changed, *lines[number + 1 :]))
    yield from resealed(valid)
    try:
        packed = msgspec.msgpack.decode(valid)
    except (ValueError, UnicodeDecodeError):
        return
    for place in places(packed):
        for value in FLAT:
            yield msgspec.msgpack.encode(replaced(packed, place, value))


def check(decoder: Decoder, raw: bytes) -> None:
    """See that a decoder returns, or raises what it says."""
    try:
        decoder.call(raw)
    except decoder.raises:
        pass
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__} for {raw[:200]!r}") from error


@pytest.mark.parametrize("name", DECODERS)
def test_a_changed_document_is_read_or_refused(name: str) -> None:
    decoder = DECODERS[name]
    for raw in RAW:
        check(decoder, raw)
    for valid in decoder.valid:
        decoder.raises or decoder.call(valid)
        for raw in hostile(valid):
            check(decoder, raw)


@pytest.mark.parametrize("name", ["decode_document", "document snapshot", "decode_summary", "decode_entry"])
def test_a_flipped_bit_is_refused_or_changes_nothing(name: str) -> None:
    decoder = DECODERS[name]
    [valid] = decoder.valid
    content = decoder.call(valid)
    for at, bit in itertools.product(range(len(valid)), range(8)):
        flipped = bytearray(valid)
        flipped[at] ^= 1 << bit
        with suppress(*decoder.raises):
            assert decoder.call(bytes(flipped)) == content, bytes(flipped)


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", DECODERS)
def test_bytes_of_any_kind_are_read_or_refused(name: str) -> None:
    decoder = DECODERS[name]
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )

    @hypothesis.settings(max_examples=examples(20), derandomize=True, database=None)
    @hypothesis.given(st.binary() | values.map(lambda value: json.dumps(value).encode()))
    def try_it(raw: bytes) -> None:
        check(decoder, raw)

    try_it()


# --- nothing else decodes --------------------------------------------------------------------------------------------

GUARDS = ("MALFORMED", "MISSHAPEN", "UnicodeDecodeError")
LIBRARIES = (
    "json.loads", "orjson.loads", "msgspec.convert", "msgspec.json.decode", "msgspec.msgpack.decode",
    "msgspec.json.Decoder", "msgspec.msgpack.Decoder", "bytes.decode",
)  # fmt: skip
LAST_NAMES = {name.rpartition(".")[2] for name in LIBRARIES}


def of_modules(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Give the names of decoders that modules make when they are imported."""
    made = [node for tree in trees for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    made = [node for node in made if node.value is not None and "Decoder(" in ast.unparse(node.value)]
    return frozenset(
        ast.unparse(target)
        for node in made
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )


def decodes(node: ast.AST, made: frozenset[str]) -> bool:
    """Tell whether a node decodes, or names what does: a library's function, or text of bytes unless it can't fail."""
    if isinstance(node, ast.Attribute):
        return node.attr in made or (node.attr in LAST_NAMES and ast.unparse(node) in LIBRARIES)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in made:
        return True
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decode"):
        return False
    of = node.func.value
    is_own = isinstance(of, ast.Call) and "encode" in ast.unparse(of.func)
    return not (node.args or node.keywords or is_own)


def decoding_in(
    tree: ast.AST, made: frozenset[str], owner: str = "", function: str = "", is_guarded: bool = False
) -> Iterator[tuple[str, int, bool]]:
    """Give (function, line, whether what it raises is caught) of all that decodes; a class is part of the name."""
    for child in ast.iter_child_nodes(tree):
        inside, guarded, caught = (owner, function), is_guarded, ""
        if isinstance(child, ast.ClassDef):
            inside = child.name, ""
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inside, guarded = (owner, function or child.name), False
        elif isinstance(tree, ast.Try) and child in tree.body:
            caught = " ".join(ast.unparse(handler.type) for handler in tree.handlers if handler.type)
        elif isinstance(tree, ast.With) and child in tree.body:
            caught = " ".join(map(ast.unparse, tree.items))
        guarded = guarded or bool(caught and any(guard in caught for guard in GUARDS))
        if isinstance(child, ast.expr) and decodes(child, made):
            yield ".".join(filter(None, inside)), child.lineno, guarded
        yield from decoding_in(child, made, *inside, guarded)


def findings(source: str, made: frozenset[str] = frozenset()) -> list[str]:
    """Give what is wrong with a module's decoding."""
    known = {name.partition(" ")[0] for name in DECODERS} | TRIED_ELSEWHERE.keys()
    found = []
    for name, line, is_guarded in decoding_in(ast.parse(source), made):
        if name in EXCEPTED:
            continue
        if name and not is_guarded and name not in known:
            found.append(f"{line}: {name} decodes without `except MALFORMED`, and isn't in tests/decoders.py")
        elif name and name not in known:
            found.append(f"{line}: {name} decodes, and isn't tried in tests/decoders.py")
    return found


def test_nothing_decodes_that_is_not_tried() -> None:
    paths = [path for root in ("actors", "stores", "spark_replay") for path in sorted(Path(root).rglob("*.py"))]
    texts = {path: path.read_text() for path in paths if "testing" not in path.parts}
    made = of_modules(ast.parse(text) for text in texts.values() if "Decoder(" in text)
    assert "decode_reply" in made
    # To parse and walk all modules takes seconds.
    name = re.compile("|".join(map(re.escape, sorted(LAST_NAMES | made))))
    wrong = [
        f"{path}:{finding}" for path, text in texts.items() if name.search(text) for finding in findings(text, made)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    ["json.loads(raw)", "msgspec.json.decode(raw, type=int)", "raw.decode()", "msgspec.json.Decoder(int).decode(raw)"],
)
def test_a_decoder_that_is_not_tried_is_found(line: str) -> None:
    assert findings(f"def read(raw):\n    return {line}\n")
    guarded = f"def read(raw):\n    try:\n        return {line}\n    except MALFORMED:\n        return None\n"
    assert findings(guarded) == ["3: read decodes, and isn't tried in tests/decoders.py"]
    assert not findings("def shown(raw):\n    return raw.decode(errors='replace') + base64.b64encode(raw).decode()\n")
