"""The contract of a component as a catalogue shows it: ports, preprocessing, classes, anchors, probe, weights."""

from __future__ import annotations

from typing import Any

from compatkit.components.catalogue.snapshot import Snapshot
from compatkit.components.catalogue.texts import Rows, line, rows_of
from compatkit.contracts.contract import Anchor, Port
from compatkit.contracts.manifest import Manifest
from compatkit.registry.index.search import SearchResult
from compatkit.reports.contracts import dimension_formula, summary

MAX_SHARERS = 20
MAX_PORTS = 64
MAX_CLASS = 200
"""Maximum number of characters of a class name."""
_IN_OTHER_PLACES = ("kind", "takes", "gives", "images", "classes", "parameters")
"""Rows of a summary that have a section of their own."""


def contract_of(snapshot: Snapshot, version: SearchResult, manifest: Manifest) -> dict[str, Any]:
    """Return the contract of a component; its class names are in ``classes_of``."""
    contract, payload = manifest.contract, manifest.payload
    texts = {
        label: text
        for label, text in summary(manifest).items()
        if label not in _IN_OTHER_PLACES and not label.startswith("trained against")
    }
    return {
        "inputs": [_port(port) for port in contract.structural.inputs[:MAX_PORTS]],
        "outputs": [_port(port) for port in contract.structural.outputs[:MAX_PORTS]],
        "training": rows_of(texts),
        "images": _images(manifest),
        "anchors": [_anchor(snapshot, version, anchor) for anchor in contract.protocol.anchors],
        "probe": _probe(manifest),
        "weights": rows_of(
            {
                "parameters": f"{payload.parameters:,}",
                "tensors": f"{payload.count:,}",
                "file": f"{payload.file.bytes:,} bytes",
                "tensor digest": payload.tensors,
                "file digest": payload.file.blob,
            }
        ),
    }


def classes_of(manifest: Manifest) -> list[str]:
    """Return the names of the classes in the order of the outputs, with their synonyms."""
    return [
        line(
            label.name if not label.same_as else f"{label.name} (also {', '.join(label.same_as)})", MAX_CLASS
        )
        for label in manifest.contract.data.labels or ()
    ]


def _port(port: Port) -> list[str]:
    shape = " x ".join(dimension_formula(size) for size in port.shape)
    notes = ["pooled"] if port.pooled else []
    notes += [f"{port.prefix_tokens} prefix tokens"] if port.prefix_tokens else []
    notes += [f"sides in steps of {port.multiple_of}"] if port.multiple_of != 1 else []
    seen = "; ".join(
        f"{'x'.join(map(str, sizes))} for {image}" for image, sizes in [*port.measured.items()][:4] if sizes
    )
    return [*map(line, (port.name, shape, port.layout, port.dtype, port.range, ", ".join(notes), seen))]


def _images(manifest: Manifest) -> Rows:
    data = manifest.contract.data
    crop = f"{data.crop_pct:g} of the resized image is kept, {data.crop_mode}"
    return rows_of(
        {
            "size": f"{data.size[0]} x {data.size[1]} pixels",
            "channels": data.channels,
            "mean": _numbers(data.mean),
            "std": _numbers(data.std),
            "interpolation": data.interpolation,
            "crop": crop,
        }
    )


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _anchor(snapshot: Snapshot, version: SearchResult, anchor: Anchor) -> dict[str, Any]:
    """Return an anchor with the components that share it."""
    what = "initial weights" if anchor.kind == "initial_weights" else f"auxiliary head {anchor.task or ''}"
    names = {
        place.name: str(place)
        for place in snapshot.sharers.get(anchor.digest, ())
        if place.name != version.name and not place.withdrawn
    }
    shown = [names[name] for name in sorted(names)]
    return {
        "what": line(what),
        "digest": anchor.digest,
        "shared": shown[:MAX_SHARERS],
        "more": max(0, len(shown) - MAX_SHARERS),
    }


def _probe(manifest: Manifest) -> Rows:
    probe = manifest.contract.statistical.probe
    if probe is None:
        return []
    return rows_of(
        {
            "input": probe.input,
            "shapes": "; ".join("x".join(map(str, shape)) for shape in probe.shapes),
            "outputs": f"{len(probe.sketch):,} projections, within {probe.relative_tolerance:g} of their norm",
            "digest": probe.digest,
        }
    )
