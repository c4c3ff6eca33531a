"""The manifest: everything about a component but its weights, as canonical JSON named by its digest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

from compatkit.contracts.arguments import named
from compatkit.contracts.codec import Place, decode, digest, dumps, is_digest, told, unstructure
from compatkit.contracts.contract import Blueprint, Contract, Data, Kind
from compatkit.contracts.contract_rules import check_contract
from compatkit.errors import FormatError

SCHEMA: Literal[1] = 1
TRAINED = "trained_with"
"""The relation of a head to the extractor that it was trained with."""

_MALFORMED = re.compile(rb'"sha256:(?![0-9a-f]{64}")')


def _like(pattern: str, expected: str) -> Any:
    """Return a validator of text."""
    whole = re.compile(pattern)

    def check(instance: object, field: attrs.Attribute[str], value: object) -> None:
        if not isinstance(value, str) or not whole.fullmatch(value):
            raise FormatError(f"{field.name}: expected {expected}, got {value!r:.100}.")

    return check


_sha256 = _like("sha256:[0-9a-f]{64}", "'sha256:' and 64 lower-case hex digits")
_tensors = _like("tensors:sha256:[0-9a-f]{64}", "'tensors:sha256:' and 64 hex digits")
_relation = _like("[a-z][a-z0-9_]{0,63}", "a word of 1 to 64 of a-z, 0-9 and '_', such as 'trained_with'")


def _count(instance: object, field: attrs.Attribute[int], value: object) -> None:
    if type(value) is not int or not 0 <= value < 2**63:
        raise FormatError(f"{field.name}: expected a whole number from 0, got {value!r:.40}.")


@named
@attrs.frozen
class About:
    """For people; the only part that may change while a component stays the same (a PATCH).

    Attributes:
        tags: Texts by name, such as ``{"domain": "digits"}``.
    """

    title: str = ""
    description: str = ""
    tags: Mapping[str, str] = attrs.field(factory=dict)
    licence: str = ""
    source: str = ""

    def updated(self, said: Mapping[str, Any]) -> About:
        """Return this with the fields of ``said`` in place of its own, and its tags beside these."""
        return attrs.evolve(self, **{**said, "tags": {**self.tags, **said.get("tags", {})}})


@attrs.frozen
class Edge:
    """Bytes that are kept with a component: their digest ``sha256:...`` and their number."""

    blob: str = attrs.field(validator=_sha256)
    bytes: int = attrs.field(validator=_count)


@attrs.frozen
class Payload:
    """The weights.

    Attributes:
        file: The safetensors file.
        tensors: Tensor digest ``tensors:sha256:...``, whatever their order in the file.
        count: Number of tensors, buffers included.
        parameters: Number of trained numbers, buffers not included; of a recombination those of all its parts.
    """

    file: Edge
    tensors: str = attrs.field(validator=_tensors)
    count: int = attrs.field(validator=_count)
    parameters: int = attrs.field(validator=_count)


@attrs.frozen
class Parent:
    """Another component that this one came from.

    Attributes:
        relation: ``"trained_with"`` (a head's own extractor), ``"initialised_from"``, ...
        component: Manifest digest ``sha256:...``.
    """

    relation: str = attrs.field(validator=_relation)
    component: str = attrs.field(validator=_sha256)


@attrs.frozen(kw_only=True)
class Manifest:
    """A component: what it is, how to rebuild it, where its weights are, what it promises.

    Names, versions, aliases, policies and evidence are not part of it: they point at it.

    Attributes:
        training: JSON values that record the run; bytes kept with it are ``{"blob": ..., "bytes": n}``.
        extensions: JSON values of other programs, by distribution: the only place for unknown keys.
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
        what = f"{self.kind.replace('_', ' ')}, {self.blueprint.model} @ {self.blueprint.split}"
        titled = f"{self.about.title!r}, " if self.about.title else ""
        return f"Manifest({titled}{what}, {self.payload.parameters:,} parameters)"


def to_bytes(manifest: Manifest) -> bytes:
    """Return the manifest as canonical JSON; its sha256 is the component's identity.

    Raises:
        FormatError: A field is not what the schema asks, with its path; NaN or infinity anywhere.
    """
    data = dumps(manifest)
    from_bytes(data)  # what cannot be read back is never written
    return data


def from_bytes(data: bytes, *, what: str = "manifest") -> Manifest:
    """Read a manifest strictly.

    Args:
        data: JSON, as ``to_bytes`` writes it.
        what: Which manifest, for messages.

    Raises:
        FormatError: Not strict JSON, another schema, unknown, missing or mistyped fields, malformed digests, values
            that no contract can hold.
    """
    manifest: Manifest = decode(Manifest, data, what=what)
    check_contract(manifest.contract, manifest.blueprint, what)
    if _MALFORMED.search(data) or b"\\u" in data:  # what may be a malformed edge
        for _ in _walk(unstructure(manifest), what):
            pass
    return manifest


def edges(value: Any) -> Iterator[str]:
    """Yield every digest that must be kept with ``value``: ``{"blob": ...}`` and ``"component": ...``.

    Knows no schema, so that it finds the edges of manifests, evidence and extensions alike. Text that does
    not begin with ``sha256:`` is no edge.

    Args:
        value: JSON values, or a manifest.

    Raises:
        FormatError: An edge is malformed, with its path.
    """
    return (one for one, _ in sized_edges(value))


def sized_edges(value: Any) -> Iterator[tuple[str, int | None]]:
    """Yield like ``edges``, with the number of bytes where the edge states it."""
    return _walk(unstructure(value), "value")


def manifest_digest(manifest: Manifest) -> str:
    """Return the digest ``sha256:...`` that a manifest is stored under."""
    return digest(dumps(manifest))


def function_digest(manifest: Manifest) -> str:
    """Return what evidence is keyed by: the digest of everything that decides the component's function.

    Blueprint, tensor digest, preprocessing (all of the data level but the labels) and output labels: a PATCH keeps
    it, a changed keyword argument does not.

    Returns:
        ``"value:sha256:<64 hex digits>"``.
    """
    return function_of(manifest.blueprint, manifest.payload.tensors, manifest.contract.data)


def function_of(blueprint: Blueprint, tensors: str, images: Data) -> str:
    """Return the function digest of a part that may not have been published.

    Args:
        blueprint: Of the module.
        tensors: Tensor digest.
        images: Preprocessing and labels.
    """
    data = unstructure(images)
    decides = {
        "blueprint": blueprint,
        "tensors": tensors,
        "preprocessing": {key: value for key, value in data.items() if key != "labels"},
        "labels": data["labels"],
    }
    return f"value:{digest(dumps(decides))}"


def trained_with(manifest: Manifest) -> Iterator[str]:
    """Yield the manifest digests of the extractors that a head was trained with."""
    return (one.component for one in manifest.parents if one.relation == TRAINED)


def _walk(value: Any, place: Place) -> Iterator[tuple[str, int | None]]:
    """Yield the edges in JSON values, as ``loads`` and ``unstructure`` return them."""
    if isinstance(value, dict):
        for key in ("blob", "component"):
            edge = value.get(key)
            if not isinstance(edge, str) or not edge.startswith("sha256:"):
                continue
            if not is_digest(edge):
                raise FormatError(
                    f"{told((place, key))}: not 'sha256:' and 64 lower-case hex digits: {edge!r:.100}."
                )
            size = value.get("bytes") if key == "blob" else None
            yield edge, size if type(size) is int else None
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in inside:
        if isinstance(item, (dict, list)):
            yield from _walk(item, (place, step))
