"""The least bump: what a change between two components demands; equal shapes are not compatibility."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from compatkit.contract import Anchor, Label, Protocol, Statistical, Structural
from compatkit.registry.manifest import About, Edge, Manifest, Payload
from compatkit.registry.versions import least_bump, reasons

SHARED = Anchor("auxiliary_head", "tensors:sha256:" + "1" * 64, "dcc")
OTHER = Anchor("auxiliary_head", "tensors:sha256:" + "2" * 64, "rotation")
INITIAL = Anchor("initial_weights", "tensors:sha256:" + "3" * 64)


def payload(fill: str) -> Payload:
    return Payload(Edge("sha256:" + fill * 64, 10), "tensors:sha256:" + fill * 64, 1, 1)


@pytest.fixture
def old(manifest_of: Callable[..., Manifest]) -> Manifest:
    return anchored(manifest_of(payload("a")), SHARED, INITIAL)


def anchored(manifest: Manifest, *anchors: Anchor) -> Manifest:
    return with_contract(manifest, protocol=Protocol("batch", anchors))


def with_contract(manifest: Manifest, **changes: Any) -> Manifest:
    return attrs.evolve(manifest, contract=attrs.evolve(manifest.contract, **changes))


def with_labels(manifest: Manifest, *labels: Label) -> Manifest:
    return with_contract(manifest, data=attrs.evolve(manifest.contract.data, labels=labels))


def with_output(manifest: Manifest, **changes: Any) -> Manifest:
    ports = manifest.contract.structural
    output = attrs.evolve(ports.outputs[0], **changes)
    return with_contract(manifest, structural=Structural(ports.inputs, (output,)))


PLANE, CAR = Label("plane"), Label("automobile", ("car",))
CHANGES: dict[str, tuple[Callable[[Manifest], Manifest], str]] = {
    "nothing": (lambda old: attrs.evolve(old), "none"),
    "about": (lambda old: attrs.evolve(old, about=About(title="better")), "patch"),
    "training record": (lambda old: attrs.evolve(old, training={"seed": 1}), "patch"),
    "same tensors, other file": (
        lambda old: attrs.evolve(old, payload=attrs.evolve(old.payload, file=Edge("sha256:" + "f" * 64, 12))),
        "patch",
    ),
    "labels appended": (lambda old: with_labels(old, PLANE, CAR, Label("ship")), "minor"),
    "another name for a label": (lambda old: with_labels(old, Label("plane", ("airplane",)), CAR), "minor"),
    "labels reordered": (lambda old: with_labels(old, CAR, PLANE), "major"),
    "label removed": (lambda old: with_labels(old, PLANE), "major"),
    "label renamed": (lambda old: with_labels(old, PLANE, Label("car", ("automobile",))), "major"),
    "other name dropped": (lambda old: with_labels(old, PLANE, Label("automobile")), "major"),
    "anchor added": (lambda old: anchored(old, SHARED, INITIAL, OTHER), "minor"),
    "initial weights forgotten": (lambda old: anchored(old, SHARED), "minor"),
    "shared head dropped": (lambda old: anchored(old, INITIAL), "major"),
    "statistics measured": (lambda old: with_contract(old, statistical=Statistical({"mean": 0.4})), "minor"),
    "normalisation asks for less": (
        lambda old: with_contract(old, protocol=Protocol("none", (SHARED, INITIAL))),
        "minor",
    ),
    "other library": (
        lambda old: attrs.evolve(old, blueprint=attrs.evolve(old.blueprint, library="timm 1.0.32")),
        "minor",
    ),
    "same weights, other network": (
        lambda old: attrs.evolve(old, blueprint=attrs.evolve(old.blueprint, kwargs={"act": "gelu"})),
        "major",
    ),
    "measured sizes": (lambda old: with_output(old, measured={"64x64": (32, 32)}), "minor"),
    "channels": (lambda old: with_output(old, shape=("N", 64, 8, 8)), "major"),
    "range": (lambda old: with_output(old, range="signed"), "major"),
    "other mean": (
        lambda old: with_contract(old, data=attrs.evolve(old.contract.data, mean=(0.5,))),
        "major",
    ),
    "kind": (lambda old: attrs.evolve(old, kind="encoder"), "major"),
    "new weights, same initial weights": (lambda old: attrs.evolve(old, payload=payload("b")), "major"),
    "new weights, head shared but not frozen": (
        lambda old: attrs.evolve(old, payload=payload("b"), training={"frozen": []}),
        "major",
    ),
    "new weights, frozen head": (
        lambda old: attrs.evolve(old, payload=payload("b"), training={"frozen": [SHARED.digest]}),
        "minor",
    ),
    "new weights, another frozen head": (
        lambda old: attrs.evolve(
            anchored(old, SHARED, OTHER), payload=payload("b"), training={"frozen": [OTHER.digest]}
        ),
        "major",
    ),
    "new weights, frozen head, other ports": (
        lambda old: attrs.evolve(
            with_output(old, shape=("N", 64)), payload=payload("b"), training={"frozen": [SHARED.digest]}
        ),
        "major",
    ),
    "new weights, a frozen head kept, another dropped": (
        lambda old: attrs.evolve(
            anchored(old, SHARED), payload=payload("b"), training={"frozen": [SHARED.digest]}
        ),
        "minor",
    ),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_the_change_decides(old: Manifest, change: Callable[[Manifest], Manifest], expected: str):
    assert least_bump(old, change(old)) == expected


def test_normalisation_that_asks_for_more_is_a_break(old: Manifest):
    plain = with_contract(old, protocol=Protocol("none", (SHARED, INITIAL)))
    assert least_bump(plain, old) == "major"


def test_dropping_one_of_two_heads_is_a_break_even_with_a_frozen_one(old: Manifest):
    both = anchored(old, SHARED, OTHER)
    new = attrs.evolve(anchored(both, SHARED), payload=payload("b"), training={"frozen": [SHARED.digest]})
    assert least_bump(both, new) == "major"


def test_reasons_say_what_changed(old: Manifest):
    new = with_labels(attrs.evolve(old, payload=payload("b")), CAR)
    assert [bump for bump, _ in reasons(old, new)] == ["patch", "major", "major"]
    assert "labels were removed" in reasons(old, new)[-1][1]
