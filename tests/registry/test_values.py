"""Hostile contracts: values of the right type that no component can have are refused, with their path."""

from __future__ import annotations

import time
from typing import Any

import attrs
import pytest

from compatkit.contracts.contract import Label
from compatkit.contracts.manifest import Manifest, from_bytes, to_bytes
from compatkit.errors import FormatError
from compatkit.foundation.codec import dumps, unstructure

PORT = "contract.structural.outputs.0"
FEATURES = {"mean": 0.5, "std": 1.0, "samples": 10, "per_channel": None}
EDGE = {"blob": "sha256:" + "a" * 64, "bytes": 256}
ANCHOR = {"kind": "initial_weights", "digest": "tensors:sha256:" + "c" * 64}
LONG = "x" * 2000


@pytest.fixture
def honest(store: Any, put: Any, manifest_of: Any) -> Manifest:
    return manifest_of(put(store))


def replaced(manifest: Manifest, path: str, value: Any) -> bytes:
    """Return the manifest's JSON with one value replaced."""
    document: Any = unstructure(manifest)
    place = document
    *folders, last = (int(part) if part.isdecimal() else part for part in path.split("."))
    for part in folders:
        place = place[part]
    place[last] = value
    return dumps(document)


@pytest.mark.case("E2", "F")
@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (f"{PORT}.shape.1", 0, r"outputs\[0\]\.shape\[1\]: expected int >= 1"),
        (f"{PORT}.shape.1", -4, "expected int >= 1"),
        (f"{PORT}.shape.1", 2**60, "expected int <= 1099511627776"),
        (f"{PORT}.shape.1", "batch", "expected str matching regex"),
        (f"{PORT}.shape.1", "", "expected str matching regex"),
        (f"{PORT}.shape.2.of", "L", r"shape\[2\]\.of: expected str matching regex .*, got 'L'"),
        (f"{PORT}.shape.2.floordiv", 0, r"floordiv: expected int >= 1"),
        (f"{PORT}.shape.2.times", -1, r"times: expected int >= 1"),
        (f"{PORT}.shape.2.add", 2**60, r"add: expected int <="),
        (f"{PORT}.shape", [], r"outputs\[0\]\.shape: expected array of length >= 1"),
        (f"{PORT}.shape", ["N"] * 10_000, "expected array of length <= 32"),
        (f"{PORT}.shape", ["N", 32], "expected 4 axes for the layout NCHW, got 2"),
        (f"{PORT}.name", "", "expected a name of 1 to"),
        (f"{PORT}.name", LONG, "expected a name of 1 to"),
        (f"{PORT}.name", "fea\x1b[31mtures", "expected a name without control characters"),
        (f"{PORT}.name", "fea\u202etures", "expected a name without control characters"),
        (f"{PORT}.dtype", "float33", "dtype: expected str matching regex"),
        (f"{PORT}.prefix_tokens", -1, "expected int >= 0"),
        (f"{PORT}.multiple_of", 0, "multiple_of: expected int >= 1"),
        (f"{PORT}.multiple_of", 32, "multiple_of: expected 1 for a port that takes no images, got 32"),
        (
            "contract.statistical.features",
            [{**FEATURES, "mean": -0.5}],
            r"\[0\]\.mean: expected a number from 0",
        ),
        (f"{PORT}.measured", {"32": [16, 16]}, "measured: expected str matching regex"),
        (f"{PORT}.measured", {"32x32": [16]}, r"measured\.32x32: expected 2 sizes from 0"),
        (f"{PORT}.measured", {"32x32": [16, -16]}, r"measured\.32x32\[1\]: expected int >= 0"),
        ("contract.structural.outputs", [], "outputs: expected array of length >= 1"),
        ("contract.data.size", [0, 32], "expected int >= 1, got 0"),
        ("contract.data.size", [32, 2**60], "expected int <= 4096"),
        ("contract.data.mean", [], r"data\.mean: expected 1 for L images"),
        ("contract.data.mean", [0.5] * 3, r"data\.mean: expected 1 for L images"),
        ("contract.data.std", [-0.3], "expected float > 0.0"),
        ("contract.data.std", [0.0], "expected float > 0.0"),
        ("contract.data.crop_pct", 0.0, "crop_pct: expected float > 0.0"),
        ("contract.data.crop_pct", 1e-6, "expected images resized to 4096 pixels"),
        ("contract.data.crop_mode", "border", "expected one of 'center', 'squash'"),
        ("contract.data.interpolation", "bi\ncubic", "expected a name without control characters"),
        ("contract.data.labels", [{"name": ""}], r"labels\[0\]: expected a name"),
        ("contract.data.labels", [{"name": " \t"}], r"labels\[0\]: expected a name"),
        ("contract.data.labels", [{"name": "c\u0000at"}], "without control characters"),
        ("contract.data.labels", [{"name": "cat", "same_as": ["\x07"]}], "without control characters"),
        ("contract.data.labels", [{"name": "cat"}, {"name": "cat"}], "'cat' duplicates number 0"),
        ("contract.data.labels", [{"name": "Cat"}, {"name": "cAT"}], "Rename one of them"),
        ("contract.data.labels", [{"name": "Stra\u00dfe"}, {"name": "STRASSE"}], "duplicates number 0"),
        ("contract.data.labels", [{"name": "caf\u00e9"}, {"name": "CAFE\u0301"}], "duplicates number 0"),
        ("contract.protocol.anchors", [ANCHOR, ANCHOR], r"anchors\[1\]: expected each anchor once"),
        ("contract.protocol.anchors", [{**ANCHOR, "task": "\n"}], r"task: expected a name"),
        (
            "contract.protocol.anchors",
            [{**ANCHOR, "classes": [{"name": "a"}, {"name": "A"}]}],
            "duplicates number 0",
        ),
        ("contract.statistical.features", [], "expected statistics of each of 1 feature ports, got 0"),
        ("contract.statistical.features", [FEATURES] * 2, "expected statistics of each of 1"),
        (
            "contract.statistical.features",
            [{**FEATURES, "std": -1.0}],
            "std: expected float >= 0.0, got -1.0",
        ),
        (
            "contract.statistical.features",
            [{**FEATURES, "samples": -5}],
            "samples: expected int >= 1, got -5",
        ),
        ("contract.statistical.features", [{**FEATURES, "samples": 0}], "samples: expected int >= 1"),
        ("contract.statistical.features", [{**FEATURES, "per_channel": {}}], "exactly 'blob' and 'bytes'"),
        (
            "contract.statistical.features",
            [{**FEATURES, "per_channel": {**EDGE, "more": 1}}],
            "exactly 'blob' and 'bytes'",
        ),
        (
            "contract.statistical.features",
            [{**FEATURES, "per_channel": {**EDGE, "bytes": 255}}],
            r"per_channel\.bytes: expected 8 a channel: 256, got 255",
        ),
        (
            "contract.statistical.features",
            [{**FEATURES, "per_channel": {**EDGE, "bytes": 256.0}}],
            r"per_channel\.bytes: expected 8 a channel",
        ),
        (
            "contract.statistical.features",
            [{**FEATURES, "per_channel": {**EDGE, "blob": "../x"}}],
            r"per_channel\.blob: expected 'sha256:'",
        ),
        ("contract.statistical.probe.sketch", [], "sketch: expected array of length >= 1"),
        ("contract.statistical.probe.sketch", [0.5] * 1025, "sketch: expected array of length <= 1024"),
        ("contract.statistical.probe.shapes", [], "expected a shape for each of 1 inputs"),
        ("contract.statistical.probe.shapes", [[]], r"probe\.shapes\[0\].*expected"),
        ("contract.statistical.probe.shapes", [[2, 1, 0, 32]], r"probe\.shapes\[0\].*expected"),
        ("contract.statistical.probe.shapes", [[2, 1, 2**20, 2**20]], "at most 268435456 values"),
        ("contract.statistical.probe.relative_tolerance", 1e9, "expected float <= 0.1"),
        ("contract.statistical.probe.relative_tolerance", 0.0, "expected float > 0.0"),
        ("contract.statistical.probe.digest", "nonsense", "expected 'value:sha256:'"),
        ("blueprint.traced_size", [32, -32], "expected int >= 1, got -32"),
        ("blueprint.cut_outputs", 0, "cut_outputs: expected int >= 1"),
    ],
)
def test_a_value_that_no_contract_can_hold_is_refused(
    honest: Manifest, path: str, value: Any, complaint: str
):
    with pytest.raises(FormatError, match=complaint) as caught:
        from_bytes(replaced(honest, path, value), what="m")
    assert str(caught.value).startswith("m.")


def test_ports_of_one_side_have_different_names(honest: Manifest):
    port = unstructure(honest)["contract"]["structural"]["outputs"][0]
    with pytest.raises(FormatError, match="expected ports with different names, got 'FEATURES'"):
        from_bytes(replaced(honest, "contract.structural.outputs", [{**port, "name": "FEATURES"}, port]))


@pytest.mark.case("E1")
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_no_json(honest: Manifest, number: str):
    data = to_bytes(honest).replace(b'"std":[0.3081]', b'"std":[' + number.encode() + b"]")
    with pytest.raises(FormatError):
        from_bytes(data)


def test_names_of_any_script_are_fine(honest: Manifest):
    names = [
        "cat",
        "c\u0430t",
        "\u732b",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "0 - zero",
        "New York",
    ]
    data = attrs.evolve(honest.contract.data, labels=tuple(map(Label, names)))
    manifest = attrs.evolve(honest, contract=attrs.evolve(honest.contract, data=data))
    assert [label.name for label in from_bytes(to_bytes(manifest)).contract.data.labels or ()] == names


def test_ten_thousand_classes_are_read_at_once(honest: Manifest):
    labels = tuple(Label(f"class {index} \u00e9", (f"number {index}",)) for index in range(10_000))
    data = attrs.evolve(honest.contract.data, labels=labels)
    stored = to_bytes(attrs.evolve(honest, contract=attrs.evolve(honest.contract, data=data)))
    start = time.process_time()
    assert from_bytes(stored).contract.data.labels == labels
    assert time.process_time() - start < 5
