"""Searchable properties of manifests."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from compatkit.contracts.manifest import from_bytes
from compatkit.foundation.spelling import normalize_name, normalize_text
from compatkit.registry.canonical_manifests import read_canonical


@attrs.frozen
class ManifestProperties:
    """Searchable properties of one manifest.

    Attributes:
        bytes: Size of the payload file.
        channels: Numeric feature widths: of the outputs of an extractor, of the inputs of other kinds; none for a
            recombination.
        classes: All names of each class, normalized by ``normalize_name``, in the order of the outputs.
        anchors: Tensor digests that the part was trained against.
        parents: Relation and manifest digest of each parent.
    """

    kind: str
    builder: str
    model: str
    cut: str
    parameters: int
    bytes: int
    title: str
    description: str
    license: str
    tags: Mapping[str, str]
    channels: tuple[int, ...]
    classes: tuple[tuple[str, ...], ...]
    anchors: tuple[str, ...]
    parents: tuple[tuple[str, str], ...]

    @property
    def words(self) -> str:
        """Title, description, model and tags, normalized for word search."""
        tags = (f"{key}={value}" for key, value in self.tags.items())
        return normalize_text("\n".join((self.title, self.description, self.model, *tags)))

    def terms(self) -> list[tuple[str, str]]:
        """Return field and value of each property that is searched by its exact value."""
        terms = [(f"tag:{key}", value) for key, value in self.tags.items()]
        terms += [("channels", str(width)) for width in self.channels]
        terms += [("anchor", anchor) for anchor in self.anchors]
        return terms + [("parent", parent) for _, parent in self.parents]


def properties_of(data: bytes, what: str) -> ManifestProperties:
    """Return the properties of a manifest.

    Args:
        data: Content of the manifest, already verified.
        what: Description of the manifest, for messages.

    Raises:
        FormatError: This version cannot read the manifest.
    """
    canonical = read_canonical(data)
    manifest = canonical.manifest if canonical is not None else from_bytes(data, what=what)
    about, blueprint, contract = manifest.about, manifest.blueprint, manifest.contract
    extractor, recombination = blueprint.side == "extractor", blueprint.side == "recombination"
    ports = contract.structural.outputs if extractor else contract.structural.inputs
    widths = (port.channels for port in ports if not recombination)
    return ManifestProperties(
        manifest.kind,
        blueprint.builder,
        blueprint.model,
        blueprint.cut,
        manifest.payload.parameters,
        manifest.payload.file.bytes,
        about.title,
        about.description,
        about.license,
        about.tags,
        tuple(dict.fromkeys(width for width in widths if isinstance(width, int))),
        tuple(tuple(map(normalize_name, label.names)) for label in contract.data.labels or ()),
        tuple(anchor.digest for anchor in contract.protocol.anchors),
        tuple((parent.relation, parent.component) for parent in manifest.parents),
    )
