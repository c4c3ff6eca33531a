"""The version step that each change between two manifests requires, and why; see docs/versions.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import attrs

from compatkit.contracts.contract import Anchor, Label
from compatkit.contracts.manifest import Manifest
from compatkit.registry.names import Bump
from compatkit.registry.versions.partners import Location, lost

ORDER: tuple[Bump, ...] = ("none", "patch", "minor", "major")
"""Steps in ascending order."""

Demand = tuple[Bump, str]

_PREPROCESSING = "the same weights behind other preprocessing"
_RECOMBINED = "other parts, adapters between them, or another batch-norm policy"
MEASURED = ", whose stated measurement passed"
"""End of a reason if a measurement reduced the step."""
_CONSEQUENCE = "goes with the new weights"


@attrs.define(eq=False)
class Rules:
    """The rules for one pair of manifests.

    Attributes:
        old: Manifest of the old version.
        new: Manifest of the new version.
        measured: The caller has verified the measurement stated for the new function.
    """

    old: Manifest
    new: Manifest
    measured: bool = False
    _lost: Mapping[Location, str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Compare ports."""
        self._lost = lost(self.old.contract, self.new.contract)

    @cached_property
    def _answering(self) -> Mapping[str, Sequence[Label]]:
        """The new labels by name, because a search for each old one is too slow."""
        labels: dict[str, list[Label]] = {}
        for label in self.new.contract.data.labels or ():
            for name in label.names:
                labels.setdefault(name, []).append(label)
        return labels

    def of(self, level: str, location: Location) -> Demand:
        """Return the smallest step for the change at ``location``, and the reason.

        Args:
            level: One of ``diff.LEVELS``.
            location: Location of the change in the manifest.
        """
        for length in range(len(location), 0, -1):
            if reason := self._lost.get(location[:length]):
                return "major", reason
        rules = {
            "weights": self._weights,
            "blueprint": self._blueprint,
            "structural": self._structural,
            "data": self._data,
            "protocol": self._protocol,
        }
        return rules[level](location) if level in rules else _FIXED[level]

    @property
    def _new_weights(self) -> bool:
        return self.old.payload.tensors != self.new.payload.tensors

    def _function(self, what: str) -> Demand:
        if self.measured:
            return "minor", f"{what}{MEASURED}"
        return "major", f"{what}, without a passed measurement"

    def _weights(self, location: Location) -> Demand:
        if not self._new_weights:
            return "patch", "the same tensors, written anew"
        if location[1:] != ("tensors",):
            return "patch", _CONSEQUENCE
        frozen = self._frozen()
        if frozen is not None and not self.measured:
            return "minor", f"new weights, trained against {_named(frozen)}, frozen, as the version before"
        return self._function("new weights")

    def _frozen(self) -> Anchor | None:
        """Return an auxiliary head that is an anchor of both and was frozen while the new one was trained."""
        frozen = self.new.training.get("frozen")
        stated = frozen if isinstance(frozen, (list, tuple)) else ()
        both = {anchor for anchor in stated if isinstance(anchor, str)} & _heads(self.old)
        heads = (anchor for anchor in self.new.contract.protocol.anchors if anchor.kind == "auxiliary_head")
        return next((anchor for anchor in heads if anchor.digest in both), None)

    def _blueprint(self, location: Location) -> Demand:
        if location == ("blueprint", "library"):
            return "minor", "built by another version of the library; evidence is not carried over"
        if self.new.kind == "recombination":
            return self._function(_RECOMBINED)  # its payload holds only what its parts lack
        return (
            ("minor", _CONSEQUENCE)
            if self._new_weights
            else self._function("the same weights in another network")
        )

    def _structural(self, location: Location) -> Demand:
        seen = "sizes seen at a port; " if "measured" in location else ""
        return "minor", f"{seen}no part that was wired is lost by it"

    def _data(self, location: Location) -> Demand:
        if location[2] == "labels":
            labels = self.old.contract.data.labels, self.new.contract.data.labels
            return _label(*labels, self._answering, location[3:])
        return ("minor", _CONSEQUENCE) if self._new_weights else self._function(_PREPROCESSING)

    def _protocol(self, location: Location) -> Demand:
        if location[2] == "normalisation":
            asks = self.new.contract.protocol.norm == "batch"
            return (
                ("major", "normalization asks for more: statistics of a batch, or estimated anew")
                if asks
                else ("minor", "normalization asks for less")
            )
        before, after = _at(self.old, location[3]), _at(self.new, location[3])
        if before is not None and before.kind == "auxiliary_head" and before.digest not in _heads(self.new):
            return "major", f"{_named(before)}, which parts shared, was dropped"
        known = {anchor.digest for anchor in self.old.contract.protocol.anchors}
        if after is not None and after.digest not in known:
            return "minor", f"anchor added: {_named(after)}"
        return "minor", "the anchors are other or described otherwise; no shared head is dropped"


_FIXED: Mapping[str, Demand] = {
    "about": ("patch", "for people only"),
    "kind": ("major", "another kind of component, which no partner can use in its place"),
    "statistical": ("minor", "statistics or probe measured anew; check reads them"),
    "training": ("patch", "a record of the run; no check reads it"),
    "parents": ("patch", "where it came from; no check reads it"),
    "extensions": ("patch", "of other programs; no check reads it"),
}


def _label(
    old: Sequence[Label] | None,
    new: Sequence[Label] | None,
    answering: Mapping[str, Sequence[Label]],
    location: Location,
) -> Demand:
    """Return the step for a change of the labels, or of the one at ``location``."""
    if not location:
        return ("minor", "classes are named now") if not old else ("major", "labels removed")
    index, before, after = int(location[0]), old or (), new or ()
    if index >= len(before):
        return "minor", "labels appended"
    mine = before[index]
    if index >= len(after):
        return "major", f"label {mine.name!r} removed"
    if mine.names <= after[index].names:
        return "minor", "a label keeps its place and all its names"
    if any(mine.names <= other.names for other in answering.get(mine.name, ())):
        return "major", f"labels reordered: output {index} is no longer {mine.name!r}"
    return "major", f"output {index} no longer answers to all names of {mine.name!r}"


def _at(manifest: Manifest, index: str | int) -> Anchor | None:
    anchors = manifest.contract.protocol.anchors
    return anchors[index] if isinstance(index, int) and index < len(anchors) else None


def _heads(manifest: Manifest) -> set[str]:
    return {anchor.digest for anchor in manifest.contract.protocol.anchors if anchor.kind == "auxiliary_head"}


def _named(anchor: Anchor) -> str:
    weights = anchor.kind == "initial_weights"
    what = "the initial weights" if weights else f"the auxiliary head {anchor.task or ''}"
    return f"{what.rstrip()} {anchor.digest[: len('tensors:sha256:') + 12]}"
