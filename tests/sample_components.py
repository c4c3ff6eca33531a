"""Contracts, manifests and loaded parts made by hand, for tests of what compares and measures them."""

from __future__ import annotations

import hashlib
from typing import Any

import attrs
from torch import nn

from compatkit.contracts.contract import (
    Anchor,
    Blueprint,
    Contract,
    Data,
    FeatureStatistics,
    Label,
    Port,
    Protocol,
    Statistical,
    Structural,
)
from compatkit.contracts.kinds import Kind
from compatkit.contracts.manifest import Edge, Manifest, Parent, Payload
from compatkit.contracts.report import Finding, Report
from compatkit.evaluation.component import Component
from compatkit.registry.names import Reference

IMAGE = Port("image", ("N", 1, "H", "W"))
FEATURES = Port("features", ("N", 4, "H", "W"))
LOGITS = Port("logits", ("N", 3), layout="NC")
GRAY = Data((8, 8), "L", (0.5,), (0.25,))


def sha256(text: str) -> str:
    """Return a digest made from ``text``."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def labels(*names: str) -> tuple[Label, ...]:
    """Return labels without other names."""
    return tuple(map(Label, names))


def initial(text: str) -> Anchor:
    """Return an anchor: initial weights."""
    return Anchor("initial_weights", "tensors:" + sha256(text))


def shared(text: str, task: str = "dcc") -> Anchor:
    """Return an anchor: a shared auxiliary head."""
    return Anchor("auxiliary_head", "tensors:" + sha256(text), task)


def figures(mean: float, std: float) -> tuple[FeatureStatistics, ...]:
    """Return the statistics of one feature port."""
    return (FeatureStatistics(mean, std, 100),)


def maps(channels: int, *spatial: Any, layout: Any = "NCHW", **changes: Any) -> Port:
    """Return a port of maps, of free size where none is given."""
    sizes = spatial or ("H", "W")
    shape = ("N", channels, *sizes) if layout == "NCHW" else ("N", *sizes, channels)
    return Port("features", shape, layout=layout, **changes)


def tokens(width: int, count: int | str = "L", prefix: int = 0) -> Port:
    """Return a port of patch tokens."""
    return Port("features", ("N", count, width), layout="NLC", prefix_tokens=prefix)


def vector(width: int, *, pooled: bool = True) -> Port:
    """Return a port of averaged features."""
    return Port("features", ("N", width), layout="NC", pooled=pooled)


def codes(report: Report) -> set[str]:
    """Return the codes of all findings."""
    return {finding.code for finding in report.findings}


def only(report: Report, code: str) -> Finding:
    """Return the one finding with ``code``."""
    (result,) = [finding for finding in report.findings if finding.code == code]
    return result


def manifest(kind: Kind, contract: Contract, **changes: Any) -> Manifest:
    """Return a manifest around a contract; blueprint and payload are never looked at by a check."""
    side = "extractor" if kind == "extractor" else "head"
    blueprint = Blueprint("timm", "timm 1.0.31", "resnet20_cifar", {}, "layer2", side, "fx", (8, 8))
    payload = Payload(Edge(sha256("file"), 1), "tensors:" + sha256("tensors"), 1, 1)
    return Manifest(kind=kind, blueprint=blueprint, payload=payload, contract=contract, **changes)


def extractor(
    port: Port = FEATURES,
    *,
    data: Data = GRAY,
    anchors: tuple[Anchor, ...] = (),
    norm: Any = "none",
    features: tuple[FeatureStatistics, ...] | None = None,
) -> Manifest:
    """Return the manifest of an extractor with one output."""
    contract = Contract(Structural((IMAGE,), (port,)), data, Protocol(norm, anchors), Statistical(features))
    return manifest("extractor", contract)


def head(
    port: Port = FEATURES,
    *,
    data: Data = GRAY,
    classes: tuple[Label, ...] | None = None,
    anchors: tuple[Anchor, ...] = (),
    norm: Any = "none",
    features: tuple[FeatureStatistics, ...] | None = None,
    kind: Kind = "head",
) -> Manifest:
    """Return the manifest of a head with one input."""
    contract = Contract(
        Structural((port,), (LOGITS,)),
        attrs.evolve(data, labels=classes),
        Protocol(norm, anchors),
        Statistical(features),
    )
    return manifest(kind, contract)


def loaded(name: str, made: Manifest, module: nn.Module, trained_with: Component | None = None) -> Component:
    """Return a part with its module, as a registry loads it."""
    parents = (Parent("trained_with", trained_with.digest),) if trained_with is not None else ()
    place = attrs.evolve(Reference.parse(f"{name}@1.0.0"), digest=sha256(name))
    function = "value:" + sha256(name)
    return Component(None, place, attrs.evolve(made, parents=parents), function=function, module=module)
