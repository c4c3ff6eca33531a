"""Pairs of manifests that differ in one thing: a row for every rule of docs/explanation/versions.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from compatkit.contracts.contract import (
    Anchor,
    Blueprint,
    Contract,
    Data,
    FeatureStatistics,
    Label,
    Port,
    Probe,
    Protocol,
    Scaled,
    Statistical,
    Structural,
)
from compatkit.contracts.manifest import About, Edge, Manifest, Parent, Payload

SHARED = Anchor("auxiliary_head", "tensors:sha256:" + "1" * 64, "dcc")
OTHER = Anchor("auxiliary_head", "tensors:sha256:" + "2" * 64, "rotation")
INITIAL = Anchor("initial_weights", "tensors:sha256:" + "3" * 64)
PLANE, CAR = Label("plane"), Label("automobile", ("car",))

Make = Callable[[Manifest], Manifest]
"""What makes the new version out of the old one."""


def payload(fill: str) -> Payload:
    return Payload(Edge("sha256:" + fill * 64, 10), "tensors:sha256:" + fill * 64, 1, 1)


FEATURES = Port(
    "features",
    ("N", 32, Scaled("H", 1, 2), Scaled("W", 1, 2)),
    range="nonnegative",
    measured={"32x32": (16, 16), "33x33": (17, 17)},
)
OLD = Manifest(
    kind="extractor",
    blueprint=Blueprint(
        "timm", "timm 1.0.31", "resnet20_cifar", {"in_chans": 1}, "layer2", "extractor", "fx", (32, 32)
    ),
    payload=payload("a"),
    contract=Contract(
        Structural((Port("image", ("N", 1, "H", "W")),), (FEATURES,)),
        Data((32, 32), "L", (0.1307,), (0.3081,), labels=(PLANE, CAR)),
        Protocol("batch", (SHARED, INITIAL)),
        Statistical(None, Probe("hash-1", ((2, 1, 32, 32),), (0.11, 0.93), 1e-3, "value:sha256:" + "0" * 64)),
    ),
)
"""An extractor; it has labels too, so that every rule has something to be broken."""


def anchored(manifest: Manifest, *anchors: Anchor) -> Manifest:
    return with_contract(manifest, protocol=Protocol("batch", anchors))


def with_contract(manifest: Manifest, **changes: Any) -> Manifest:
    return attrs.evolve(manifest, contract=attrs.evolve(manifest.contract, **changes))


def with_data(manifest: Manifest, **changes: Any) -> Manifest:
    return with_contract(manifest, data=attrs.evolve(manifest.contract.data, **changes))


def with_labels(manifest: Manifest, *labels: Label) -> Manifest:
    return with_data(manifest, labels=labels)


def with_output(manifest: Manifest, **changes: Any) -> Manifest:
    ports = manifest.contract.structural
    output = attrs.evolve(ports.outputs[0], **changes)
    return with_contract(manifest, structural=Structural(ports.inputs, (output,)))


def with_input(manifest: Manifest, **changes: Any) -> Manifest:
    ports = manifest.contract.structural
    taken = attrs.evolve(ports.inputs[0], **changes)
    return with_contract(manifest, structural=Structural((taken,), ports.outputs))


def with_blueprint(manifest: Manifest, **changes: Any) -> Manifest:
    return attrs.evolve(manifest, blueprint=attrs.evolve(manifest.blueprint, **changes))


def weights(manifest: Manifest, *frozen: Anchor) -> Manifest:
    """New weights, trained against auxiliary heads that did not move."""
    training = {"frozen": [anchor.digest for anchor in frozen]}
    return attrs.evolve(manifest, payload=payload("b"), training=training)


ADAPTER = Blueprint("adapter", "compatkit 0.1.0", "pool", {}, "", "adapter", "whole", (32, 32))
MAJOR: dict[str, tuple[str, Make]] = {
    "another kind": ("kind", lambda old: attrs.evolve(old, kind="encoder")),
    "new weights": ("weights", weights),
    "new weights, same initial weights": ("weights", lambda old: weights(anchored(old, INITIAL, SHARED))),
    "new weights, another frozen head": ("weights", lambda old: weights(anchored(old, SHARED, OTHER), OTHER)),
    "new weights, a frozen head that was no anchor": ("weights", lambda old: weights(old, OTHER)),
    "same weights, other network": ("blueprint", lambda old: with_blueprint(old, kwargs={"act": "gelu"})),
    "same weights, other cut": ("blueprint", lambda old: with_blueprint(old, cut="layer3")),
    "same weights, other adapters": ("blueprint", lambda old: with_contract(old, adapters=(ADAPTER,))),
    "same weights, other mean": ("data", lambda old: with_data(old, mean=(0.5,))),
    "same weights, other crop": ("data", lambda old: with_data(old, crop_pct=0.9)),
    "same weights, other interpolation": ("data", lambda old: with_data(old, interpolation="bicubic")),
    "other channels": ("structural", lambda old: with_output(old, shape=("N", 64, "H", "W"))),
    "signed features": ("structural", lambda old: with_output(old, range="signed")),
    "frozen head, other layout": (
        "structural",
        lambda old: weights(with_output(old, layout="NHWC", shape=("N", 16, 16, 32)), SHARED),
    ),
    "gray images no longer": ("structural", lambda old: with_input(old, shape=("N", 3, "H", "W"))),
    "images of one size only": ("structural", lambda old: with_input(old, shape=("N", 1, 32, 32))),
    "labels reordered": ("data", lambda old: with_labels(old, CAR, PLANE)),
    "label inserted in front": ("data", lambda old: with_labels(old, Label("ship"), PLANE, CAR)),
    "label removed": ("data", lambda old: with_labels(old, PLANE)),
    "all labels removed": ("data", lambda old: with_data(old, labels=None)),
    "label renamed": ("data", lambda old: with_labels(old, PLANE, Label("truck"))),
    "other name dropped": ("data", lambda old: with_labels(old, PLANE, Label("automobile"))),
    "shared head dropped": ("protocol", lambda old: anchored(old, INITIAL)),
    "shared head replaced": ("protocol", lambda old: anchored(old, OTHER, INITIAL)),
    "one of two frozen heads dropped": (
        "protocol",
        lambda old: weights(anchored(old, OTHER), OTHER),
    ),
}
MINOR: dict[str, tuple[str, Make]] = {
    "new weights, frozen head": ("weights", lambda old: weights(old, SHARED)),
    "new weights, frozen head, other preprocessing": (
        "weights",
        lambda old: with_data(weights(old, SHARED), mean=(0.5,)),
    ),
    "new weights, frozen head, more classes": (
        "weights",
        lambda old: with_blueprint(with_labels(weights(old, SHARED), PLANE, CAR, Label("ship")), kwargs={}),
    ),
    "other library": ("blueprint", lambda old: with_blueprint(old, library="timm 1.0.32")),
    "sizes not known any more": (
        "structural",
        lambda old: with_output(old, shape=("N", 32, "H", "W"), measured={}),
    ),
    "another formula, same size": (
        "structural",
        lambda old: with_output(old, shape=("N", 32, Scaled("H", 0, 2), Scaled("W", 0, 2))),
    ),
    "nothing known of the range": ("structural", lambda old: with_output(old, range="any")),
    "another name for the only output": ("structural", lambda old: with_output(old, name="map")),
    "more sizes seen": (
        "structural",
        lambda old: with_output(
            old, measured={**old.contract.structural.outputs[0].measured, "64x64": (32, 32)}
        ),
    ),
    "labels appended": ("data", lambda old: with_labels(old, PLANE, CAR, Label("ship"))),
    "another name for a label": ("data", lambda old: with_labels(old, Label("plane", ("airplane",)), CAR)),
    "label renamed, its old names kept": (
        "data",
        lambda old: with_labels(old, PLANE, Label("car", ("automobile",))),
    ),
    "anchor added": ("protocol", lambda old: anchored(old, SHARED, INITIAL, OTHER)),
    "anchor added in front": ("protocol", lambda old: anchored(old, OTHER, SHARED, INITIAL)),
    "initial weights forgotten": ("protocol", lambda old: anchored(old, SHARED)),
    "normalization asks for less": (
        "protocol",
        lambda old: with_contract(old, protocol=Protocol("none", (SHARED, INITIAL))),
    ),
    "statistics measured": (
        "statistical",
        lambda old: with_contract(old, statistical=Statistical((FeatureStatistics(0.4, 0.7, 100),))),
    ),
}
PATCH: dict[str, tuple[str, Make]] = {
    "about": ("about", lambda old: attrs.evolve(old, about=About(title="better", tags={"a.b": "c"}))),
    "same tensors, other file": (
        "weights",
        lambda old: attrs.evolve(old, payload=attrs.evolve(old.payload, file=Edge("sha256:" + "f" * 64, 12))),
    ),
    "training record": ("training", lambda old: attrs.evolve(old, training={"seed": 1})),
    "its extractor was published anew": (
        "parents",
        lambda old: attrs.evolve(old, parents=(Parent("trained_with", "sha256:" + "c" * 64),)),
    ),
    "another program's note": ("extensions", lambda old: attrs.evolve(old, extensions={"lab": {"x": [1]}})),
}
