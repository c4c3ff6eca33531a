"""Searchable facts of manifests."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from compatkit.contracts.manifest import from_bytes
from compatkit.registry.index.search import searched, spelled


@attrs.frozen
class ManifestFacts:
    """The searchable facts of one manifest.

    Attributes:
        bytes: Of the payload file.
        channels: Feature widths that are numbers: of the outputs of an extractor, of the inputs of anything else but a
            recombination, which has none.
        classes: Every name of every class, as ``spelled`` gives them, in the order of the outputs.
        anchors: Tensor digests that the part was trained against.
        parents: Relation and manifest digest.
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
        """Title, description, model and tags, normalized for a search for words."""
        tags = (f"{key}={value}" for key, value in self.tags.items())
        return searched("\n".join((self.title, self.description, self.model, *tags)))

    def terms(self) -> list[tuple[str, str]]:
        """Return what is searched for by its exact value: field and value of each."""
        terms = [(f"tag:{key}", value) for key, value in self.tags.items()]
        terms += [("channels", str(width)) for width in self.channels]
        terms += [("anchor", anchor) for anchor in self.anchors]
        return terms + [("parent", parent) for _, parent in self.parents]


def facts_of(data: bytes, what: str) -> ManifestFacts:
    """Return the facts of a manifest.

    Args:
        data: Its bytes, already compared with their digest.
        what: Which manifest, for messages.

    Raises:
        FormatError: It is none that this version can read.
    """
    manifest = from_bytes(data, what=what)
    about, blueprint, contract = manifest.about, manifest.blueprint, manifest.contract
    extractor, recombination = blueprint.side == "extractor", blueprint.side == "recombination"
    ports = contract.structural.outputs if extractor else contract.structural.inputs
    widths = (port.channels for port in ports if not recombination)
    return ManifestFacts(
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
        tuple(tuple(map(spelled, label.names)) for label in contract.data.labels or ()),
        tuple(anchor.digest for anchor in contract.protocol.anchors),
        tuple((parent.relation, parent.component) for parent in manifest.parents),
    )
