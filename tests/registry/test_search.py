"""Searching finds what the manifests say, by every filter, and refuses what no search can mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs
import pytest
from handmade import DATA, HEX, Hand, child_of, part, tagged
from hypothesis import given
from hypothesis import strategies as st

from compatkit.contracts.contract import Anchor, Label, Port, Structural
from compatkit.contracts.labels import spelling
from compatkit.contracts.manifest import About, Manifest, from_bytes, to_bytes
from compatkit.errors import FormatError, NotFound, UsageError
from compatkit.foundation.codec import dumps, unstructure
from compatkit.foundation.spelling import normalize_name
from compatkit.registry.index.lookup import Index
from compatkit.registry.index.properties import properties_of
from compatkit.registry.index.query import Query
from compatkit.registry.index.search import glob


def with_contract(manifest: Manifest, **changes: Any) -> Manifest:
    return attrs.evolve(manifest, contract=attrs.evolve(manifest.contract, **changes))


def anchored(*digests: str) -> Any:
    anchors = tuple(Anchor("auxiliary_head", f"tensors:sha256:{digest}", "dcc") for digest in digests)
    return attrs.evolve(part().contract.protocol, anchors=anchors)


def classes(*labels: Label) -> Any:
    return attrs.evolve(DATA, labels=labels or None)


EXTRACTOR = part(about=About("A small net", "for DIGITS and letters", {"domain": "digits"}, "MIT"))
PARTS: dict[str, Manifest] = {
    "digits/mnist.extractor": EXTRACTOR,
    "digits/mnist.head": part("head", about=tagged(domain="digits", team="red")),
    "digits/usps.head": part("head", "vgg11", channels=64, about=tagged(domain="letters", team="red")),
    "shared.dcc": with_contract(part("auxiliary_head"), protocol=anchored(HEX[2], HEX[3])),
    "zoo/animals": with_contract(
        part("head", "vit_small"), data=classes(Label("Wild Cat"), Label("dog", ("hound",)))
    ),
    "zoo/none": with_contract(part("head", "vit_tiny", channels=128), data=classes()),
}


@pytest.fixture(scope="module")
def hand(tmp_path_factory: pytest.TempPathFactory) -> Hand:
    """A registry that tests only read."""
    made = Hand.init(tmp_path_factory.mktemp("searched") / "parts")
    extractor = made.put(EXTRACTOR)
    for name, manifest in PARTS.items():
        parents = child_of(extractor) if name == "digits/mnist.head" else ()
        made.publish(name, "1.0.0", made.put(attrs.evolve(manifest, parents=parents)))
    made.publish("digits/mnist.head", "0.9.0", extractor)
    made.publish("zoo/none", "2.0.0", made.put(part("head", "vit_tiny")))
    made.withdraw("zoo/none", "2.0.0")
    return made


@pytest.fixture(scope="module")
def index(hand: Hand) -> Iterator[Index]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPATKIT_CACHE", str(hand.root.parent / "cache"))
        made = Index.of(hand.root, "id")
        yield made
        made.close()


@pytest.fixture
def names(index: Index) -> Callable[..., list[str]]:
    def search(**filters: Any) -> list[str]:
        result = [component.name for component in index.search(**filters)]
        assert index.count(**filters) == len(result)
        return result

    return search


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "glob": ({"pattern": "digits/*.head"}, ["digits/mnist.head", "digits/mnist.head", "digits/usps.head"]),
    "glob with brackets": ({"pattern": "[!d]*[se]"}, ["zoo/animals", "zoo/none"]),
    "glob with many stars": ({"pattern": "*o*o*a*i*m*"}, ["zoo/animals"]),
    "plain name": ({"pattern": "shared.dcc"}, ["shared.dcc"]),
    "no such name": ({"pattern": "nothing*"}, []),
    "not ASCII": ({"pattern": "dïgits*"}, []),
    "NUL": ({"pattern": "digits*\0"}, []),
    "kind": ({"kind": "auxiliary_head"}, ["shared.dcc"]),
    "one tag": (
        {"tags": {"domain": "digits"}},
        ["digits/mnist.extractor", "digits/mnist.head", "digits/mnist.head"],
    ),
    "two tags": ({"tags": {"domain": "digits", "team": "red"}}, ["digits/mnist.head"]),
    "a tag of another case": ({"tags": {"domain": "Digits"}}, []),
    "model": ({"model": "vit_*"}, ["zoo/animals", "zoo/none"]),
    "channels of a head": ({"channels": 64}, ["digits/usps.head"]),
    "channels that nobody has": ({"channels": 1}, []),
    "class": ({"label": "wild_CAT"}, ["zoo/animals"]),
    "class by another name": ({"label": "hound"}, ["zoo/animals"]),
    "class of most": ({"label": "car", "kind": "extractor"}, ["digits/mnist.extractor", "digits/mnist.head"]),
    "anchor": ({"anchor": HEX[3][:6]}, ["shared.dcc"]),
    "anchor in full": ({"anchor": f"tensors:sha256:{HEX[2]}"}, ["shared.dcc"]),
    "two anchors that begin alike": ({"anchor": HEX[2][:4], "kind": "auxiliary_head"}, ["shared.dcc"]),
    "parent": ({"parent": "digits/mnist.extractor"}, ["digits/mnist.head"]),
    "parent by version": ({"parent": "digits/mnist.extractor@^1"}, ["digits/mnist.head"]),
    "parent that nobody has": ({"parent": f"sha256:{HEX[5]}"}, []),
    "text": ({"text": "digits SMALL"}, ["digits/mnist.extractor", "digits/mnist.head"]),
    "text in part": ({"text": "small absent"}, []),
    "text in model and tags": ({"text": "VGG team=red"}, ["digits/usps.head"]),
    "anywhere in names": ({"anywhere": "usps"}, ["digits/usps.head"]),
    "anywhere in a name and in a tag": ({"anywhere": "usps red"}, ["digits/usps.head"]),
    "anywhere in part": ({"anywhere": "usps absent"}, []),
    "anywhere, and a glob": ({"anywhere": "digits", "pattern": "*usps*"}, ["digits/usps.head"]),
    "latest": ({"latest": True, "pattern": "*mnist.head"}, ["digits/mnist.head"]),
    "withdrawn too": ({"withdrawn": True, "pattern": "zoo/n*"}, ["zoo/none", "zoo/none"]),
    "latest is never withdrawn": ({"withdrawn": True, "latest": True, "pattern": "zoo/n*"}, ["zoo/none"]),
    "several": (
        {"kind": "head", "model": "v*", "label": "automobile", "tags": {"team": "red"}},
        ["digits/usps.head"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_filters(names: Any, case: str) -> None:
    filters, expected = CASES[case]
    assert names(**filters) == expected


def test_order_limit_and_offset(index: Index) -> None:
    result = [str(component) for component in index.search()]
    assert result == sorted(result) and len(result) == 7 and "digits/mnist.head@0.9.0" == result[1]
    assert [str(component) for component in index.search(limit=2, offset=1)] == result[1:3]
    assert index.search(limit=0) == [] and index.search(offset=99) == []
    assert index.search(Query(kind="head"))[0].kind == "head"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"kind": "hed"}, "'kind' must be one of extractor, head, .*Did you mean 'head'"),
        ({"kind": 7}, "must be one of.*got 7"),
        ({"pattern": "a@1.0.0"}, "takes no versions or aliases"),
        ({"pattern": "a:prod"}, "takes no versions or aliases"),
        ({"pattern": 5}, "expected text"),
        ({"pattern": "x" * 2000}, "at most 1000 characters"),
        ({"model": "\udcff"}, "expected text"),
        ({"label": b"car"}, "expected text"),
        ({"text": "word " * 101}, "at most 100 words"),
        ({"tags": {"a": 1}}, "at most 100 texts"),
        ({"tags": {"": "x"}}, "texts by name"),
        ({"tags": ["a=b"]}, "texts by name"),
        ({"tags": {str(number): "x" for number in range(101)}}, "at most 100"),
        ({"channels": 0}, "whole number from 1"),
        ({"channels": 2**63}, "whole number"),
        ({"channels": True}, "whole number"),
        ({"limit": -1}, "limit.*a whole number from 0"),
        ({"offset": 1.5}, "offset.*a whole number"),
        ({"anchor": "abc"}, "first 4 to 64"),
        ({"anchor": "sha256:XYZ0"}, "hexadecimal"),
        ({"parent": "A"}, "not valid"),
        ({"color": "red"}, "'color' is not a filter.*one of pattern, kind, tags"),
    ],
)
def test_what_no_search_can_mean_is_refused(index: Index, filters: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        index.search(**filters)


def test_a_parent_that_does_not_exist_is_named(index: Index) -> None:
    with pytest.raises(NotFound, match="perhaps digits/mnist"):
        index.search(parent="digits/mnist")
    with pytest.raises(UsageError, match="either a query or its fields"):
        index.search(Query(), kind="head")


def test_a_hundred_tags_and_a_hundred_words_are_no_problem(tmp_path: Path) -> None:
    hand = Hand.init(tmp_path / "parts")
    index = Index.of(hand.root, "id")
    tags = {f"key{number}": str(number) for number in range(100)}
    words = " ".join(f"word{number}" for number in range(100))
    hand.publish("busy", "1.0.0", hand.put(part(about=About(words, "", tags))))
    assert [component.name for component in index.search(tags=tags, text=words)] == ["busy"]


def slow(manifest: Manifest) -> dict[str, Any]:
    """Return the searchable facts of a manifest the long way."""
    blueprint, contract = manifest.blueprint, manifest.contract
    ports = contract.structural.outputs if blueprint.side == "extractor" else contract.structural.inputs
    widths = [port.channels for port in ports if isinstance(port.channels, int)]
    return {
        "kind": manifest.kind,
        "builder": blueprint.builder,
        "model": blueprint.model,
        "cut": blueprint.cut,
        "parameters": manifest.payload.parameters,
        "bytes": manifest.payload.file.bytes,
        "title": manifest.about.title,
        "tags": dict(manifest.about.tags),
        "channels": tuple(dict.fromkeys(widths)),
        "classes": [label.names for label in contract.data.labels or ()],
        "anchors": [anchor.digest for anchor in contract.protocol.anchors],
        "parents": [(parent.relation, parent.component) for parent in manifest.parents],
    }


TUPLE = Structural(
    (Port("image", ("N", 1, "H", "W")),),
    (
        Port("grid", ("N", 8, "H", "W")),
        Port("tokens", ("N", "L", 48), layout="NLC"),
        Port("free", ("N", "L2", "L3"), layout="NLC"),
    ),
)


@pytest.mark.parametrize(
    "manifest",
    [
        *PARTS.values(),
        with_contract(part(), structural=TUPLE),
        part(extensions={"other": {"deep": [{"blob": f"sha256:{HEX[7]}", "bytes": 3}], "blob": "no edge"}}),
        part(
            training={"run": {"blob": f"sha256:{HEX[8]}", "bytes": 1}}, parents=child_of(f"sha256:{HEX[9]}")
        ),
    ],
)
def test_the_quick_reader_of_manifests_agrees_with_the_strict_one(manifest: Manifest) -> None:
    data = to_bytes(manifest)
    about, expected = properties_of(data, "m"), slow(from_bytes(data))
    for field, value in expected.items():
        output: Any = getattr(about, field)
        if field == "classes":
            value = [frozenset(map(spelling, names)) for names in value]
            output = [frozenset(names) for names in output]
        if field in ("anchors", "parents"):
            output = list(output)
        assert output == value, field


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.pop("about"),
        lambda value: value["about"].pop("tags"),
        lambda value: value.pop("parents"),
        lambda value: value["contract"]["data"].pop("labels"),
        lambda value: value["contract"]["protocol"].pop("anchors"),
        lambda value: value["contract"]["data"]["labels"][0].pop("same_as"),
    ],
    ids=range(6),
)
def test_fields_that_were_left_out_have_their_defaults(change: Callable[[Any], Any]) -> None:
    value = unstructure(part(about=About()))
    change(value)
    about, manifest = properties_of(dumps(value), "m"), from_bytes(dumps(value))
    assert about.tags == {} and about.model == manifest.blueprint.model
    assert len(about.anchors) == len(manifest.contract.protocol.anchors)
    assert len(about.classes) == len(manifest.contract.data.labels or ())


@pytest.mark.case("E1")
@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(schema=2),
        lambda value: value.update(schema=True),
        lambda value: value.update(kind="other"),
        lambda value: value.update(kind=["head"]),
        lambda value: value.update(unknown=1),
        lambda value: value.pop("payload"),
        lambda value: value.update(about=[]),
        lambda value: value["about"].update(tags={"a": 1}),
        lambda value: value["about"].update(tags=["a"]),
        lambda value: value["payload"].update(parameters=-1),
        lambda value: value["payload"].update(parameters=2**63),
        lambda value: value["payload"].update(parameters=1.0),
        lambda value: value["blueprint"].update(model=None),
        lambda value: value["contract"]["structural"].update(outputs=[[]]),
        lambda value: value["contract"]["structural"]["outputs"][0].update(shape=["N"]),
        lambda value: value["contract"]["data"].update(labels=[1]),
        lambda value: value.update(parents=[{"relation": "x", "component": "sha256:short"}]),
        lambda value: value.update(contract=None),
    ],
    ids=range(18),
)
def test_manifests_that_are_none_are_refused_as_the_strict_reader_does(change: Callable[[Any], Any]) -> None:
    value = unstructure(part(about=About(tags={"a": "b"})))
    change(value)
    with pytest.raises(FormatError) as expected:
        from_bytes(dumps(value), what="manifest x")
    with pytest.raises(FormatError) as output:
        properties_of(dumps(value), "manifest x")
    assert str(output.value) == str(expected.value)


@given(st.text(max_size=20))
def test_class_names_are_spelled_as_everywhere(name: str) -> None:
    assert normalize_name(name) == spelling(name)


@given(st.text("ab/*?[]!-.", max_size=8))
def test_globs_mean_what_they_mean_to_python(pattern: str) -> None:
    import sqlite3

    known = ["a", "b", "a/b", "ab", "a-b", "a.b", "b/a/b", "abab", "aaa"]
    connection = sqlite3.connect(":memory:")
    connection.create_function("fnmatch", 2, fnmatchcase)
    connection.execute("CREATE TABLE t (name)")
    connection.executemany("INSERT INTO t VALUES (?)", [(entry,) for entry in known])
    sql, values = glob("name", pattern)
    result = [name for (name,) in connection.execute(f"SELECT name FROM t WHERE 1{sql}", values)]
    connection.close()
    assert result == [entry for entry in known if fnmatchcase(entry, pattern)]


def test_contracts_are_not_needed_to_tell_what_was_found(index: Index) -> None:
    (result,) = index.search(pattern="digits/mnist.extractor")
    message = result.to_json()
    assert (
        message["parents"] == []
        and message["anchors"] == [f"tensors:sha256:{HEX[1]}"]
        and message["channels"] == [32]
    )
    assert (message["title"], message["license"], message["withdrawn"], message["classes"]) == (
        "A small net",
        "MIT",
        False,
        2,
    )
    (child,) = index.search(parent=result.digest)
    assert child.parents == (("trained_with", result.digest),)
    assert child.to_json()["parents"] == [{"relation": "trained_with", "component": result.digest}]
