"""Manifests: byte-identical round trip, strict reading with the path of the fault, edges, function digest."""

from __future__ import annotations

import copy
import json
from typing import Any

import attrs
import pytest

from compatkit.contracts.contract import Anchor, Label, Scaled
from compatkit.contracts.manifest import Edge, Manifest, edges, from_bytes, function_digest, to_bytes
from compatkit.errors import FormatError
from compatkit.foundation.codec import digest, dumps

BLOB = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
TENSORS = "tensors:sha256:" + "c" * 64

DOCUMENTED: dict[str, Any] = json.loads(
    """{
  "schema": 1,
  "kind": "extractor",
  "about": {"title": "MNIST extractor", "description": "", "tags": {"domain": "digits"}, "licence": "", "source": ""},
  "blueprint": {"builder": "timm", "library": "timm 1.0.31", "model": "resnet20_cifar",
                "kwargs": {"in_chans": 1, "num_classes": 10}, "split": "layer2", "side": "extractor",
                "approach": "fx", "traced_size": [32, 32], "cut_outputs": 1},
  "payload":   {"file": {"blob": "BLOB", "bytes": 290816}, "tensors": "TENSORS", "count": 76, "parameters": 69344},
  "contract": {
    "structural": {"inputs":  [{"name": "image", "shape": ["N", 1, "H", "W"], "dtype": "float32", "layout": "NCHW"}],
                   "outputs": [{"name": "features", "shape": ["N", 32,
                                {"of": "H", "add": 1, "floordiv": 2, "plus": 0},
                                {"of": "W", "add": 1, "floordiv": 2, "plus": 0}],
                                "dtype": "float32", "layout": "NCHW", "range": "nonnegative", "pooled": false,
                                "prefix_tokens": 0, "measured": {"32x32": [16, 16], "33x33": [17, 17]}}]},
    "data":       {"size": [32, 32], "channels": "L", "mean": [0.1307], "std": [0.3081],
                   "interpolation": "bilinear", "labels": null},
    "protocol":   {"normalisation": "batch",
                   "anchors": [{"kind": "initial_weights", "digest": "TENSORS"},
                               {"kind": "auxiliary_head", "task": "dcc", "digest": "TENSORS",
                                "classes": [{"name": "0", "same_as": []}]},
                               {"kind": "auxiliary_head", "task": "rotation", "digest": "TENSORS"}]},
    "statistical": {"features": [{"mean": 0.41, "std": 0.72, "per_channel": {"blob": "OTHER", "bytes": 256},
                                  "samples": 5000}],
                    "probe": {"input": "hash-1", "shapes": [[2, 1, 32, 32]], "sketch": [0.11, 0.93],
                              "relative_tolerance": 1e-3, "digest": "value:OTHER"}}
  },
  "training": {"run": {"blob": "OTHER", "bytes": 2048}, "seed": 0, "steps": 2000,
               "data": {"name": "mnist/train", "digest": "data:sha256:00"},
               "plugins": [{"name": "regularizers.dcc", "as": "dcc", "distribution": "compatkit",
                            "version": "0.1.0", "settings": {"weight": 1.0}}],
               "environment": {"torch": "2.15.0", "device": "cpu", "precision": "bf16"}},
  "parents": [{"relation": "initialised_from", "component": "OTHER"}],
  "extensions": {}
}""".replace("BLOB", BLOB)
    .replace("OTHER", OTHER)
    .replace("TENSORS", TENSORS)
)


def documented() -> Manifest:
    return from_bytes(dumps(DOCUMENTED))


def test_the_documented_manifest_is_read():
    result = documented()
    assert result.contract.structural.outputs[0].shape[2] == Scaled("H", 1, 2, 0)
    assert result.contract.protocol.anchors[1] == Anchor("auxiliary_head", TENSORS, "dcc", (Label("0"),))
    assert result.contract.structural.outputs[0].measured == {"32x32": (16, 16), "33x33": (17, 17)}
    assert result.payload.file == Edge(BLOB, 290816)
    assert result.training["plugins"][0]["settings"] == {"weight": 1.0}


def test_writing_and_reading_again_changes_neither_value_nor_byte():
    data = to_bytes(documented())
    assert from_bytes(data) == documented()
    assert to_bytes(from_bytes(data)) == data


def test_a_whole_number_where_a_fraction_is_expected_gives_the_same_bytes():
    changed = copy.deepcopy(DOCUMENTED)
    changed["contract"]["data"]["std"] = [1]
    exact = copy.deepcopy(DOCUMENTED)
    exact["contract"]["data"]["std"] = [1.0]
    assert to_bytes(from_bytes(dumps(changed))) == to_bytes(from_bytes(dumps(exact)))


def replaced(path: str, value: Any) -> bytes:
    """Return the documented manifest with one value replaced; ``...`` removes it."""
    changed = copy.deepcopy(DOCUMENTED)
    *folders, last = (int(part) if part.isdecimal() else part for part in path.split("."))
    place: Any = changed
    for part in folders:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return dumps(changed)


@pytest.mark.case("E1", "E2")
@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("schema", 10**4000, r"m\.schema: expected 1, got 1000"),
        ("schema", 2, r"m\.schema: expected 1, got 2; it was written by a newer compatkit"),
        ("schema", "1", r"m\.schema: expected 1, got '1'"),
        ("schema", True, r"m\.schema"),
        ("schema", ..., r"m\.schema"),
        ("surprise", 1, r"m: unknown field 'surprise'.*extensions"),
        ("contract.data.gamma", 1.0, r"m\.contract\.data: unknown field 'gamma'"),
        (
            "contract.structural.outputs.0.depth",
            1,
            r"m\.contract\.structural\.outputs\[0\]: unknown field 'depth'",
        ),
        ("kind", "model", r"m\.kind: expected one of 'extractor'"),
        ("kind", ..., r"m: .*required field kind"),
        ("blueprint.kwargs", [], r"m\.blueprint\.kwargs: "),
        ("blueprint.traced_size", [32], r"m\.blueprint\.traced_size: .*length 2"),
        ("blueprint.cut_outputs", 1.0, r"m\.blueprint\.cut_outputs: expected int, got 1"),
        ("payload.file.blob", "sha256:xyz", r"m\.payload\.file\.blob: expected 'sha256:'"),
        ("payload.file.blob", BLOB.upper(), r"m\.payload\.file\.blob"),
        ("payload.file.bytes", -1, r"m\.payload\.file\.bytes: expected a whole number from 0"),
        ("payload.tensors", BLOB, r"m\.payload\.tensors: expected 'tensors:sha256:'"),
        ("payload.count", "76", r"m\.payload\.count: expected int, got '76'"),
        (
            "contract.structural.outputs.0.shape.1",
            1.5,
            r"outputs\[0\]\.shape\[1\]: expected int .* got 1",
        ),
        ("contract.structural.outputs.0.shape.1", True, r"outputs\[0\]\.shape\[1\]"),
        ("contract.structural.outputs.0.layout", "CHWN", r"outputs\[0\]\.layout: expected one of 'NCHW'"),
        (
            "contract.structural.outputs.0.measured.32x32.0",
            "16",
            r"measured\.32x32\[0\]: expected int, got '16'",
        ),
        ("contract.data.channels", "BGR", r"m\.contract\.data\.channels"),
        ("contract.data.mean", 0.5, r"m\.contract\.data\.mean: .* got 0.5"),
        ("contract.data.labels", "0", r"m\.contract\.data\.labels: .* null"),
        ("contract.data.labels", [{"same_as": []}], r"labels\[0\]: .*required field name"),
        ("contract.protocol.anchors.0.digest", BLOB, r"anchors\[0\]\.digest: expected 'tensors:sha256:'"),
        ("contract.statistical.probe.digest", "nonsense", r"probe\.digest: expected 'value:sha256:'"),
        (
            "contract.statistical.features.0.per_channel.blob",
            "sha256:../x",
            r"per_channel\.blob: expected 'sha256:'",
        ),
        ("training.run.blob", "sha256:12", r"training\.run\.blob: expected 'sha256:'"),
        ("training", None, r"m\.training: .* got None"),
        ("contract.data.mean.0", 10**400, r"data\.mean\[0\]: .* got 1000"),
        ("about.tags", {"k" * 500: 1}, r"m\.about\.tags\.k{80}: expected str, got 1"),
        ("about", {"k" * 500: 1}, r"m\.about: unknown field 'k{99}; known are"),
        ("extensions", {"k" * 500: {"component": "sha256:"}}, r"m\.extensions\.k{80}\.component: expected"),
        ("extensions", {"x": [{"k" * 513: 1}]}, r"m: a key has 513 characters; the limit is 512: 'kkk"),
        ("parents.0.relation", "", r"parents\[0\]\.relation: expected a word"),
        ("parents.0.relation", "\x1b[2J", r"relation: expected a word of 1 to 64"),
        ("parents.0.relation", "Trained with", r"relation: expected a word"),
        ("parents.0.component", "digits/mnist", r"m\.parents\[0\]\.component: expected 'sha256:'"),
        ("about.tags.domain", 3, r"m\.about\.tags\.domain: expected str, got 3"),
    ],
)
def test_a_fault_is_named_with_its_path(path: str, value: Any, complaint: str):
    with pytest.raises(FormatError, match=complaint) as caught:
        from_bytes(replaced(path, value), what="m")
    assert caught.value.exit_code == 3 and len(str(caught.value)) < 600


@pytest.mark.case("E1")
@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"{}", b'{"schema":1}', b'{"schema":1,"schema":1}', b"\x80\x04"]
)
def test_what_is_no_manifest_is_refused(data: bytes):
    with pytest.raises(FormatError):
        from_bytes(data)


@pytest.mark.case("E1")
def test_truncated_manifests_are_refused():
    data = to_bytes(documented())
    for length in range(0, len(data) - 1, 37):
        with pytest.raises(FormatError):
            from_bytes(data[:length])


@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"loss": float("nan")}},
        {"training": {"when": object()}},
        {"extensions": {1: 2}},
        {"schema": 2},
        {"kind": "model"},
    ],
    ids=["not a number", "no JSON value", "a key that is no text", "another schema", "no kind"],
)
def test_what_could_not_be_read_back_is_never_written(changes: dict[str, Any]):
    with pytest.raises(FormatError):
        to_bytes(attrs.evolve(documented(), **changes))


@pytest.mark.case("B2")
def test_malformed_digests_cannot_even_be_built():
    with pytest.raises(FormatError, match="blob"):
        Edge("sha256:../../etc", 3)


def test_the_walker_finds_every_edge_without_knowing_the_schema():
    assert sorted(edges(documented())) == [BLOB, OTHER, OTHER, OTHER]
    evidence = {"x": [{"deep": {"blob": BLOB, "bytes": 1}}], "component": OTHER, "blob": "not an edge"}
    assert sorted(edges(evidence)) == [BLOB, OTHER]
    assert list(edges({"digest": TENSORS, "data": {"digest": BLOB}})) == []  # compared, not kept


def test_the_function_digest_is_that_of_its_definition():
    stated = DOCUMENTED["contract"]["data"]
    preprocessing = {key: stated[key] for key in ("size", "channels", "mean", "std", "interpolation")}
    decides = {
        "blueprint": DOCUMENTED["blueprint"],
        "tensors": TENSORS,
        "preprocessing": {**preprocessing, "crop_pct": 1.0, "crop_mode": "squash"},
        "labels": None,
    }
    assert function_digest(documented()) == f"value:{digest(dumps(decides))}"


@pytest.mark.parametrize("path", ["about.title", "training.seed", "extensions"])
def test_what_is_about_the_component_keeps_its_function(path: str):
    value = {"about.title": "other", "training.seed": 7, "extensions": {"x": {}}}[path]
    assert function_digest(from_bytes(replaced(path, value))) == function_digest(documented())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("blueprint.kwargs", {"in_chans": 3}),
        ("payload.tensors", "tensors:sha256:" + "d" * 64),
        ("contract.data.mean", [0.5]),
        ("contract.data.crop_pct", 0.875),
        ("contract.data.labels", [{"name": "0"}]),
    ],
)
def test_what_decides_the_outputs_changes_the_function(path: str, value: Any):
    assert function_digest(from_bytes(replaced(path, value))) != function_digest(documented())
