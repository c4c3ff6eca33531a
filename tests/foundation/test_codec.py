"""Attrs classes from JSON: as a slow reader that follows the annotations, whatever the spelling of the document."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import attrs
import pytest
from fuzzing import changed
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_contracts import manifests

from compatkit.contracts.manifest import Manifest
from compatkit.errors import FormatError
from compatkit.foundation import codec
from compatkit.foundation.codec import decode, dumps, loads, structure, unstructure

DAMAGED = manifests("head").flatmap(lambda item: changed(unstructure(item)))
some = settings(max_examples=100, deadline=None)


@attrs.frozen
class Leaf:
    number: float
    letter: Literal["a", "b"] = attrs.field(default="a", metadata={"key": "word"})
    later: tuple[int, ...] = attrs.field(default=(), metadata={"absent_where_default": True})


@attrs.frozen
class Tree:
    leaves: tuple[Leaf, ...]
    named: Mapping[str, Leaf | None]
    size: int | str | Leaf = 3
    free: Mapping[str, Any] = attrs.field(factory=dict)
    schema: Literal[1] = 1


def slow(kind: Any, value: Any) -> Any:
    """Return a JSON value as ``kind``; AssertionError where it does not fit."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        (limits,), read = arguments[1:], slow(arguments[0], value)
        assert limits.ge is None or read >= limits.ge
        assert limits.gt is None or read > limits.gt
        assert limits.le is None or read <= limits.le
        assert limits.pattern is None or re.search(limits.pattern, read)
        assert limits.min_length is None or len(read) >= limits.min_length
        assert limits.max_length is None or len(read) <= limits.max_length
        return read
    if origin in (types.UnionType, typing.Union):
        for argument in arguments:
            try:
                return slow(argument, value)
            except AssertionError:
                pass
        raise AssertionError
    if origin is Literal:
        assert any(type(value) is type(argument) and value == argument for argument in arguments)
        return value
    if origin is tuple:
        assert isinstance(value, list)
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        assert len(kinds) == len(value)
        return tuple(slow(entry, item) for entry, item in zip(kinds, value, strict=True))
    if origin is Mapping:
        assert isinstance(value, dict)
        return {slow(arguments[0], key): slow(arguments[1], item) for key, item in value.items()}
    if attrs.has(kind):
        names = {field.metadata.get("key", field.name): field.name for field in attrs.fields(kind)}
        annotations = typing.get_type_hints(kind, include_extras=True)
        hints = {key: annotations[name] for key, name in names.items()}
        assert isinstance(value, dict) and value.keys() <= hints.keys()
        assert "schema" not in hints or "schema" in value
        try:
            return kind(**{names[key]: slow(hints[key], item) for key, item in value.items()})
        except (TypeError, FormatError):  # a field is missing, or a validator says no
            raise AssertionError from None
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise AssertionError from None
    assert type(value) is (type(None) if kind is None else kind)
    return value


def outcome(read: Any, *arguments: Any, **kwargs: Any) -> Any:
    try:
        return read(*arguments, **kwargs)
    except (AssertionError, FormatError):
        return "refused"


@some
@given(manifests("extractor"))
def test_what_is_written_is_read_again(manifest: Manifest):
    data = dumps(manifest)
    assert (
        decode(Manifest, data, what="manifest")
        == manifest
        == structure(Manifest, unstructure(manifest), "manifest")
    )
    assert loads(data, what="manifest") == unstructure(manifest)


@some
@given(DAMAGED)
def test_documents_are_read_as_the_slow_reader_does(text: str):
    data = text.encode("utf-8", "surrogatepass")
    value = outcome(loads, data, what="manifest")
    expected = "refused" if value == "refused" else outcome(slow, Manifest, value)
    result = outcome(decode, Manifest, data, what="manifest")
    assert result == expected
    if expected != "refused":
        assert unstructure(result) == unstructure(expected)  # 1 and 1.0 are equal, and not the same


@some
@given(DAMAGED)
def test_another_spelling_is_the_same_document(text: str):
    value = outcome(loads, text.encode("utf-8", "surrogatepass"), what="manifest")
    if value == "refused":
        return
    spellings = (dumps(value), json.dumps(value).encode(), json.dumps(value, indent=1).encode())
    canonical, *others = (outcome(decode, Manifest, spelling, what="manifest") for spelling in spellings)
    assert others == [canonical, canonical]


TREE = {"leaves": [{"number": 1.5}], "named": {"x": {"number": 2, "word": "b"}, "y": None}, "schema": 1}


def test_fields_with_a_default_may_be_absent_and_a_whole_number_is_a_fraction():
    tree = decode(Tree, dumps(TREE), what="tree")
    assert tree == Tree((Leaf(1.5),), {"x": Leaf(2.0, "b"), "y": None})
    assert type(tree.named["x"].number) is float
    assert dumps(tree) == (
        b'{"free":{},"leaves":[{"number":1.5,"word":"a"}],"named":{"x":{"number":2.0,"word":"b"},"y":null},'
        b'"schema":1,"size":3}\n'
    )
    assert b'"later":[7]' in dumps(attrs.evolve(tree, size=Leaf(1, later=(7,))))
    assert b'"number":1.0' in dumps(attrs.evolve(tree, size=Leaf(1)))


def test_a_field_with_another_key_on_disk_has_only_its_own_name_here():
    data = b'{"number":1.0,"word":"b"}'
    for leaf in (decode(Leaf, data, what="leaf"), structure(Leaf, json.loads(data), "leaf")):
        assert leaf == Leaf(1.0, letter="b") and type(leaf) is Leaf and not hasattr(leaf, "word")
        assert dumps(leaf) == data + b"\n"
    with pytest.raises(FormatError, match=r"^leaf: unknown field 'letter'; known are later, number, word"):
        structure(Leaf, {"number": 1, "letter": "b"}, "leaf")


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"leaves": [{"number": "1"}]}, "tree.leaves[0].number: "),
        ({"leaves": [{"number": True}]}, "tree.leaves[0].number: "),
        ({"leaves": [{}]}, "tree.leaves[0]: "),
        ({"leaves": {}}, "tree.leaves: "),
        ({"named": {"x": {"number": 1, "word": "c"}}}, "tree.named.x.word: "),
        ({"named": {"x": {"number": 1, "later": [1, 2.5]}}}, "tree.named.x.later[1]: "),
        ({"named": {"x": {"number": 1, "color": 2}}}, "tree.named.x: unknown field 'color'"),
        ({"named": {"x": 3}}, "tree.named.x: "),
        ({"size": 1.0}, "tree.size: "),
        ({"size": {"number": None}}, "tree.size.number: "),
        ({"free": []}, "tree.free: "),
        ({"schema": 2, "new": 1}, "tree.schema: "),
        ({"schema": True}, "tree.schema: "),
        ({"schema": 1.0}, "tree.schema: "),
        ({"free": {"a": {"b" * 600: 1}}}, "tree: a key has 600 characters"),
        ({"free": json.loads('{"a":' * 99 + "{}" + "}" * 99)}, "tree: nested deeper"),
    ],
)
def test_a_fault_is_told_with_its_place(change: dict[str, Any], start: str):
    data = json.dumps(TREE | change).encode()
    for spelled in (data, json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()):
        with pytest.raises(FormatError) as caught:
            decode(Tree, spelled, what="tree")
        assert str(caught.value).startswith(start) and caught.value.code == "format"


def test_a_document_without_its_schema_is_refused():
    with pytest.raises(FormatError) as caught:
        decode(Tree, dumps({key: value for key, value in TREE.items() if key != "schema"}), what="tree")
    assert str(caught.value).startswith("tree.schema: ")


@pytest.mark.parametrize("inside", ["", "\x00", "\n", '"', "\\", "[", "}", "]]]]", "é", '":', ","])
def test_depth_and_keys_are_told_apart_from_what_stands_in_strings(inside: str):
    deep: Any = {"k" * (512 - len(inside)) + inside: [inside] * 200}
    for _ in range(96):
        deep = [inside, deep]
    tree = TREE | {"free": {"x": deep}}
    assert decode(Tree, dumps(tree), what="tree").free == {"x": deep}
    text = dumps(tree).decode()
    with pytest.raises(FormatError, match="tree: nested deeper"):
        decode(
            Tree,
            text.replace('"x":', '"x":[', 1).replace(']},"leaves"', ']]},"leaves"').encode(),
            what="tree",
        )
    with pytest.raises(FormatError, match="tree: a key has 513"):
        decode(Tree, text.replace('{"k', '{"kk').encode(), what="tree")


@pytest.mark.case("E1")
def test_bytes_and_values_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(codec, "MAX_VALUES", 30)
    monkeypatch.setattr(codec, "decoder_of", lambda kind: pytest.fail("parsed"))
    many = dumps(TREE | {"free": {"x": [0] * 40}})
    with pytest.raises(FormatError, match="tree: expected at most"):
        decode(Tree, many, what="tree", max_bytes=len(many) - 1)


@given(
    st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=30), st.text('[]{}\\"a')
)
def test_depth_is_that_of_the_value(value: Any, word: str):
    def depth(item: Any) -> int:
        return 1 + max(map(depth, item), default=0) if isinstance(item, list) else 0

    data = dumps([value, word, [[]] * 9])
    deepest = depth([value, [[]]])
    assert loads(data, what="value", max_depth=deepest) == [value, word, [[]] * 9]
    with pytest.raises(FormatError, match="nested deeper"):
        loads(data, what="value", max_depth=deepest - 1)
