"""Rules for the version step that each change between two manifests requires; see docs/explanation/versions.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.manifest import Manifest
from compatkit.registry.names import Bump
from compatkit.registry.versions.partners import Location, lost_partners

if TYPE_CHECKING:
    from compatkit.contracts.contract import Anchor, Label

ORDER: tuple[Bump, ...] = ("none", "patch", "minor", "major")
"""Steps in ascending order."""

Step = tuple[Bump, str]
"""Smallest step, and its reason."""

_PREPROCESSING = "the same weights behind other preprocessing"
_RECOMBINED = "other parts, adapters between them, or another batch-norm policy"
MEASURED = ", whose stated measurement passed"
"""End of a reason after a measurement that allows a smaller step."""
_CONSEQUENCE = "goes with the new weights"


@attrs.define(eq=False)
class Rules:
    """Rules for one pair of manifests.

    Attributes:
        old: Manifest of the old version.
        new: Manifest of the new version.
        measured: Whether the measurement stated for the new function was verified.
    """

    old: Manifest
    new: Manifest
    measured: bool = False

    @cached_property
    def _lost(self) -> Mapping[Location, str]:
        """Reasons for lost partners, by location."""
        return lost_partners(self.old.contract, self.new.contract)

    @cached_property
    def _new_labels(self) -> Mapping[str, Sequence[Label]]:
        """New labels by name, as a search for each old one is too slow."""
        labels: dict[str, list[Label]] = {}
        for label in self.new.contract.data.labels or ():
            for name in label.names:
                labels.setdefault(name, []).append(label)
        return labels

    def of(self, level: str, location: Location) -> Step:
        """Return the smallest step for the change at ``location``, and the reason.

        Args:
            level: Level, as in ``diff.LEVELS``.
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

    def _function(self, what: str) -> Step:
        if self.measured:
            return "minor", f"{what}{MEASURED}"
        return "major", f"{what}, without a passed measurement"

    def _weights(self, location: Location) -> Step:
        if not self._new_weights:
            return "patch", "the same tensors in another file"
        if location[1:] != ("tensors",):
            return "patch", _CONSEQUENCE
        frozen = self._frozen()
        if frozen is not None and not self.measured:
            return "minor", f"new weights, trained against {_describe(frozen)}, frozen, as the version before"
        return self._function("new weights")

    def _frozen(self) -> Anchor | None:
        """Return an auxiliary head that is an anchor of both and was frozen during the training of the new one."""
        frozen = self.new.training.get("frozen")
        digests = frozen if isinstance(frozen, (list, tuple)) else ()
        shared = {digest for digest in digests if isinstance(digest, str)} & _head_digests(self.old)
        heads = (anchor for anchor in self.new.contract.protocol.anchors if anchor.kind == "auxiliary_head")
        return next((anchor for anchor in heads if anchor.digest in shared), None)

    def _blueprint(self, location: Location) -> Step:
        if location == ("blueprint", "library"):
            return "minor", "built by another version of the library; evidence is not carried over"
        if self.new.kind == "recombination":
            return self._function(_RECOMBINED)  # its payload has the adapters' tensors only
        return (
            ("minor", _CONSEQUENCE)
            if self._new_weights
            else self._function("the same weights in another network")
        )

    def _structural(self, location: Location) -> Step:
        measured = "sizes measured at a port; " if "measured" in location else ""
        return "minor", f"{measured}no wired part is lost"

    def _data(self, location: Location) -> Step:
        if location[2] == "labels":
            labels = self.old.contract.data.labels, self.new.contract.data.labels
            return _label(*labels, self._new_labels, location[3:])
        return ("minor", _CONSEQUENCE) if self._new_weights else self._function(_PREPROCESSING)

    def _protocol(self, location: Location) -> Step:
        if location[2] == "normalisation":
            if self.new.contract.protocol.norm == "batch":
                return "major", "normalization asks for more: statistics of a batch, or re-estimated ones"
            return "minor", "normalization asks for less"
        before, after = _anchor_at(self.old, location[3]), _anchor_at(self.new, location[3])
        if (
            before is not None
            and before.kind == "auxiliary_head"
            and before.digest not in _head_digests(self.new)
        ):
            return "major", f"{_describe(before)}, which parts shared, was dropped"
        old_digests = {anchor.digest for anchor in self.old.contract.protocol.anchors}
        if after is not None and after.digest not in old_digests:
            return "minor", f"anchor added: {_describe(after)}"
        return "minor", "the anchors or their descriptions differ; no shared head is dropped"


_FIXED: Mapping[str, Step] = {
    "about": ("patch", "for people only"),
    "kind": ("major", "another kind of component, which no partner can use in its place"),
    "statistical": ("minor", "statistics or probe measured anew; check reads them"),
    "training": ("patch", "a record of the run; no check reads it"),
    "parents": ("patch", "components that it was made from; no check reads it"),
    "extensions": ("patch", "of other programs; no check reads it"),
}
UNREAD = frozenset(level for level, (bump, _) in _FIXED.items() if bump == "patch")
"""Sections of a manifest that no check reads: any change of them requires a PATCH."""


def _label(
    old: Sequence[Label] | None,
    new: Sequence[Label] | None,
    new_labels: Mapping[str, Sequence[Label]],
    location: Location,
) -> Step:
    """Return the step for a change of the labels, or of the label at ``location``."""
    if not location:
        return ("minor", "classes are named now") if not old else ("major", "labels removed")
    index, before, after = int(location[0]), old or (), new or ()
    if index >= len(before):
        return "minor", "labels appended"
    label = before[index]
    if index >= len(after):
        return "major", f"label {label.name!r} removed"
    if label.names <= after[index].names:
        return "minor", "a label keeps its index and all its names"
    if any(label.names <= other.names for other in new_labels.get(label.name, ())):
        return "major", f"labels reordered: output {index} is no longer {label.name!r}"
    return "major", f"output {index} no longer answers to all names of {label.name!r}"


def _anchor_at(manifest: Manifest, index: str | int) -> Anchor | None:
    anchors = manifest.contract.protocol.anchors
    return anchors[index] if isinstance(index, int) and index < len(anchors) else None


def _head_digests(manifest: Manifest) -> set[str]:
    return {anchor.digest for anchor in manifest.contract.protocol.anchors if anchor.kind == "auxiliary_head"}


def _describe(anchor: Anchor) -> str:
    initial_weights = anchor.kind == "initial_weights"
    kind = "the initial weights" if initial_weights else f"the auxiliary head {anchor.task or ''}"
    return f"{kind.rstrip()} {anchor.digest[: len('tensors:sha256:') + 12]}"
