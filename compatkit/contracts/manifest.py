"""Manifests: all data of a component except its weights, as canonical JSON identified by its digest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

from compatkit.contracts.contract import Blueprint, Contract, Data, matches, tensors_digest
from compatkit.contracts.contract_rules import check_contract
from compatkit.contracts.kinds import Kind
from compatkit.errors import FormatError
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.codec import JsonPath, decode, digest, dumps, is_digest, path_text, unstructure
from compatkit.foundation.display import network_and_cut

SCHEMA: Literal[1] = 1
TRAINED_WITH = "trained_with"
"""Relation of a head to the extractor it was trained with."""

MALFORMED = re.compile(rb'"sha256:(?![0-9a-f]{64}")')
"""Matches text that begins like a digest but is malformed."""

_sha256 = matches("sha256:[0-9a-f]{64}", "'sha256:' and 64 lower-case hex digits")
_relation = matches("[a-z][a-z0-9_]{0,63}", "a word of 1 to 64 of a-z, 0-9 and '_', such as 'trained_with'")


def _count(instance: object, field: attrs.Attribute[int], value: object) -> None:
    if type(value) is not int or not 0 <= value < 2**63:
        raise FormatError(f"{field.name}: expected a whole number from 0, got {value!r:.40}.")


@checks_arguments
@attrs.frozen
class About:
    """Descriptive fields; the only part of a manifest that may change in a PATCH.

    Attributes:
        title: Short name for people.
        description: Free text.
        tags: Texts by name, such as ``{"domain": "digits"}``.
        license: Name of the license.
        source: Where the component comes from, such as an address.
    """

    title: str = ""
    description: str = ""
    tags: Mapping[str, str] = attrs.field(factory=dict)
    license: str = attrs.field(default="", metadata={"key": "licence"})
    source: str = ""

    def updated(self, changes: Mapping[str, Any]) -> About:
        """Return a copy with some fields replaced; tags are merged.

        Args:
            changes: New values by field name.
        """
        return attrs.evolve(self, **{**changes, "tags": {**self.tags, **changes.get("tags", {})}})


@attrs.frozen
class Edge:
    """Reference from a component to a stored blob.

    Attributes:
        blob: Digest, ``sha256:...``.
        bytes: Size in bytes.
    """

    blob: str = attrs.field(validator=_sha256)
    bytes: int = attrs.field(validator=_count)


@attrs.frozen
class Payload:
    """The weights of a component.

    Attributes:
        file: Reference to the safetensors file.
        tensors: Tensor digest ``tensors:sha256:...``, independent of the order of tensors in the file.
        count: Number of tensors, including buffers.
        parameters: Number of trainable values, without buffers; for a recombination the sum over its parts.
    """

    file: Edge
    tensors: str = attrs.field(validator=tensors_digest)
    count: int = attrs.field(validator=_count)
    parameters: int = attrs.field(validator=_count)


@attrs.frozen
class Parent:
    """A component that this one was derived from.

    Attributes:
        relation: ``"trained_with"`` (a head's own extractor), ``"initialised_from"``, ...
        component: Manifest digest ``sha256:...``.
    """

    relation: str = attrs.field(validator=_relation)
    component: str = attrs.field(validator=_sha256)


@attrs.frozen(kw_only=True)
class Manifest:
    """Description of a component: kind, blueprint, reference to the weights, and contract.

    Names, versions, aliases, policies and evidence are stored separately and refer to it.

    Attributes:
        kind: Kind of component.
        blueprint: Instructions to rebuild the module.
        payload: Weights, by digest.
        contract: Ports, data, protocol and statistics.
        about: Descriptive fields.
        training: Record of the run as JSON values; blobs stored with it are ``{"blob": ..., "bytes": n}``.
        parents: Components that this one was derived from.
        extensions: JSON values of other programs by distribution; the only place for unknown keys.
        schema: Version of the format.
    """

    kind: Kind
    blueprint: Blueprint
    payload: Payload
    contract: Contract
    about: About = attrs.field(factory=About)
    training: Mapping[str, Any] = attrs.field(factory=dict)
    parents: tuple[Parent, ...] = ()
    extensions: Mapping[str, Any] = attrs.field(factory=dict)
    schema: Literal[1] = SCHEMA

    def __repr__(self) -> str:
        network = network_and_cut(self.blueprint.model, self.blueprint.cut)
        kind = self.kind.replace("_", " ")
        title = f"{self.about.title!r}, " if self.about.title else ""
        return f"Manifest({title}{kind}, {network}, {self.payload.parameters:,} parameters)"


def to_bytes(manifest: Manifest) -> bytes:
    """Return the manifest as canonical JSON; its SHA-256 is the component's identity.

    Raises:
        FormatError: A field violates the schema, or a number is not finite; the message gives the path.
    """
    data = dumps(manifest)
    from_bytes(data)  # never write what cannot be read back
    return data


def from_bytes(data: bytes, *, what: str = "manifest") -> Manifest:
    """Read a manifest strictly.

    Args:
        data: JSON, not necessarily canonical.
        what: Name of the manifest, for messages.

    Raises:
        FormatError: Not strict JSON, another schema, unknown, missing or mistyped fields, malformed digests, or
            values that a contract cannot have.
    """
    manifest: Manifest = decode(Manifest, data, what=what)
    check_contract(manifest.contract, manifest.blueprint, what)
    if MALFORMED.search(data) or b"\\u" in data:  # there may be a malformed edge
        for _ in _walk(unstructure(manifest), what):
            pass
    return manifest


def edges(value: Any) -> Iterator[str]:
    """Yield the digests of all blobs and components that ``value`` refers to: ``{"blob": ...}``, ``"component": ...``.

    Works without schemas, and thus for manifests, evidence and extensions alike. Text that does not begin with
    ``sha256:`` is not an edge.

    Args:
        value: JSON values, or a manifest.

    Raises:
        FormatError: An edge is malformed, with its path.
    """
    return (edge for edge, _ in sized_edges(value))


def sized_edges(value: Any) -> Iterator[tuple[str, int | None]]:
    """Yield the digests of ``edges`` with their size in bytes; None if the edge states no size."""
    return _walk(unstructure(value), "value")


def manifest_digest(manifest: Manifest) -> str:
    """Return the digest ``sha256:...`` that a manifest is stored under."""
    return digest(dumps(manifest))


def function_digest(manifest: Manifest) -> str:
    """Return the digest of all fields that determine the component's function; evidence is keyed by it.

    It covers blueprint, tensor digest, preprocessing (the data level without labels) and output labels. A PATCH does
    not change it; another keyword argument does.

    Returns:
        ``"value:sha256:<64 hex digits>"``.
    """
    return function_of(manifest.blueprint, manifest.payload.tensors, manifest.contract.data)


def function_of(blueprint: Blueprint, tensors: str, images: Data) -> str:
    """Return the function digest of a published or unpublished component.

    Args:
        blueprint: Blueprint of the module.
        tensors: Tensor digest.
        images: Preprocessing and labels.

    Returns:
        ``"value:sha256:<64 hex digits>"``.
    """
    data = unstructure(images)
    values = {
        "blueprint": blueprint,
        "tensors": tensors,
        "preprocessing": {key: value for key, value in data.items() if key != "labels"},
        "labels": data["labels"],
    }
    return f"value:{digest(dumps(values))}"


def trained_with(manifest: Manifest) -> Iterator[str]:
    """Yield the manifest digests of the extractors that a head was trained with."""
    return (parent.component for parent in manifest.parents if parent.relation == TRAINED_WITH)


def _walk(value: Any, path: JsonPath) -> Iterator[tuple[str, int | None]]:
    """Yield the edges in JSON values."""
    if isinstance(value, dict):
        for key in ("blob", "component"):
            edge = value.get(key)
            if not isinstance(edge, str) or not edge.startswith("sha256:"):
                continue
            if not is_digest(edge):
                raise FormatError(
                    f"{path_text((path, key))}: expected 'sha256:' and 64 lower-case hex digits, got {edge!r:.100}."
                )
            size = value.get("bytes") if key == "blob" else None
            yield edge, size if type(size) is int else None
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        if isinstance(item, (dict, list)):
            yield from _walk(item, (path, step))
