"""How far a version must step: decided by what changed between two components, never by hope."""

from __future__ import annotations

import attrs

from compatkit.contract import Anchor, Label, Structural
from compatkit.registry.manifest import Manifest
from compatkit.registry.names import Bump

_ORDER: tuple[Bump, ...] = ("none", "patch", "minor", "major")


def least_bump(old: Manifest, new: Manifest) -> Bump:
    """Return the least step from ``old`` to ``new``.

    Equal shapes are not compatibility: new weights are MAJOR, unless they were trained against a released,
    frozen auxiliary head that the old version was anchored to as well. Shared initial weights never lower it.

    Returns:
        ``"none"`` for equal manifests; ``"patch"`` for identical tensors, blueprint and contract; ``"minor"``
        for added labels, anchors or statistics; else ``"major"``.
    """
    return max(reasons(old, new), key=lambda one: _ORDER.index(one[0]), default=("none", ""))[0]


def reasons(old: Manifest, new: Manifest) -> list[tuple[Bump, str]]:
    """Return each change with the step it demands, for messages; empty for equal manifests."""
    found: list[tuple[Bump, str]] = []
    if old != new:
        found.append(("patch", "the manifest changed"))
    if old.kind != new.kind:
        found.append(("major", f"the kind changed from {old.kind} to {new.kind}"))
    found += _weights(old, new)
    found += _blueprint(old, new)
    found += _structure(old.contract.structural, new.contract.structural)
    found += _data(old, new)
    found += _protocol(old, new)
    if old.contract.statistical != new.contract.statistical:
        found.append(("minor", "the statistics or the probe changed"))
    return found


def _weights(old: Manifest, new: Manifest) -> list[tuple[Bump, str]]:
    if old.payload.tensors == new.payload.tensors:
        return []
    frozen = new.training.get("frozen", ())
    listed = (
        {one for one in frozen if isinstance(one, str)} if isinstance(frozen, (list, tuple)) else set[str]()
    )
    if _heads(old) & _heads(new) & listed:
        return [("minor", "new weights, trained against the same released, frozen auxiliary head")]
    return [("major", "new weights, without a frozen auxiliary head shared with the version before")]


def _blueprint(old: Manifest, new: Manifest) -> list[tuple[Bump, str]]:
    if old.blueprint == new.blueprint:
        return []
    if attrs.evolve(old.blueprint, library=new.blueprint.library) == new.blueprint:
        return [("minor", f"built with {new.blueprint.library} in place of {old.blueprint.library}")]
    if old.payload.tensors != new.payload.tensors:
        return []  # other weights anyway: the weights and the ports decide
    return [("major", "the same weights in another network")]


def _structure(old: Structural, new: Structural) -> list[tuple[Bump, str]]:
    if _bare(old) != _bare(new):
        return [("major", "the ports changed, so that an old partner may no longer be wired")]
    return [("minor", "other measured sizes")] if old != new else []


def _bare(structural: Structural) -> Structural:
    ports = (
        tuple(attrs.evolve(port, measured={}) for port in side)
        for side in (structural.inputs, structural.outputs)
    )
    return Structural(*ports)


def _data(old: Manifest, new: Manifest) -> list[tuple[Bump, str]]:
    before, after = old.contract.data, new.contract.data
    found: list[tuple[Bump, str]] = []
    if attrs.evolve(before, labels=None) != attrs.evolve(after, labels=None):
        found.append(("major", "size, channels, mean, std or interpolation of the images changed"))
    if before.labels != after.labels:
        found.append(_labels(before.labels or (), after.labels or ()))
    return found


def _labels(old: tuple[Label, ...], new: tuple[Label, ...]) -> tuple[Bump, str]:
    kept = len(new) >= len(old) and all(
        before.name == after.name and before.names <= after.names
        for before, after in zip(old, new, strict=False)
    )
    if kept:
        return ("minor", "labels, or other names for them, were added")
    return ("major", "labels were removed, renamed or reordered")


def _protocol(old: Manifest, new: Manifest) -> list[tuple[Bump, str]]:
    before, after = old.contract.protocol, new.contract.protocol
    found: list[tuple[Bump, str]] = []
    if before.normalisation != after.normalisation:
        asks = after.normalisation == "batch"
        found.append(("major" if asks else "minor", f"normalisation is now {after.normalisation!r}"))
    if before.anchors != after.anchors:
        dropped = _heads(old) - _heads(new)
        found.append(
            ("major", "a shared auxiliary head was dropped") if dropped else ("minor", "the anchors changed")
        )
    return found


def _heads(manifest: Manifest) -> set[str]:
    anchors: tuple[Anchor, ...] = manifest.contract.protocol.anchors
    return {anchor.digest for anchor in anchors if anchor.kind == "auxiliary_head"}
