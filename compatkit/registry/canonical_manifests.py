"""Read many manifests quickly: a section shared by several, byte for byte, is decoded and checked once."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple, get_type_hints

import attrs

from compatkit.contracts.contract import Contract
from compatkit.contracts.contract_rules import check_contract
from compatkit.contracts.manifest import MALFORMED, Manifest
from compatkit.errors import FormatError
from compatkit.foundation.codec import MAX_VALUES, decode_canonical
from compatkit.registry.document_graph import DocumentEdge, edges

CACHED = 256
"""Number of cached sections."""
LARGEST = 2**16
"""Bytes of the largest cached section."""
OWN = ("about", "parents", "payload", "training")
"""Sections that differ from manifest to manifest."""
SHARED = ("contract", "blueprint", "extensions", "kind", "schema")
"""Sections that many manifests share."""


class ValidManifest(NamedTuple):
    """A manifest in canonical JSON that meets the schema, with the blobs and components it refers to."""

    manifest: Manifest
    edges: tuple[DocumentEdge, ...]


def read_canonical(data: bytes) -> ValidManifest | None:
    """Return a sound manifest; None for other bytes, for which ``loads`` and ``from_bytes`` raise the reasons."""
    if len(data) > MAX_VALUES or not data.endswith(b"}\n"):  # so many bytes contain no more values
        return None
    try:
        sections = _sections(Manifest, data[:-1])
        values: dict[str, Any] = {}
        shared, edges = _shared(tuple([sections[name] for name in SHARED]))
        for name in OWN:
            values[name], inside = _section(Manifest, name, sections[name])
            edges += inside
        return ValidManifest(Manifest(**values, **shared), edges)
    except FormatError:
        return None


def _sections(kind: Any, data: bytes) -> dict[str, bytes]:
    """Return the fields of a canonical JSON object as bytes."""
    import msgspec

    decoder, template = _splitter(kind)
    try:
        sections = tuple(map(bytes, msgspec.structs.astuple(decoder.decode(data))))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(str(error)) from None
    if template % sections != data:
        raise FormatError("other fields, or not canonical")
    return dict(zip(_kinds(kind), sections, strict=True))


@cache
def _splitter(kind: Any) -> tuple[Any, bytes]:
    """Return a decoder that cuts an object into its fields, and a template that puts them together again."""
    import msgspec

    fields = msgspec.defstruct("Fields", [(name, msgspec.Raw) for name in _kinds(kind)])
    members = b",".join(b'"%b":%%b' % name.encode() for name in _kinds(kind))
    return msgspec.json.Decoder(fields), b"{%b}" % members


@cache
def _kinds(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: hints[name] for name in sorted(attrs.fields_dict(kind))}


@lru_cache(CACHED)
def _shared(sections: tuple[bytes, ...]) -> tuple[dict[str, Any], tuple[DocumentEdge, ...]]:
    """Return the values of the shared sections, and the blobs and components that they refer to."""
    values: dict[str, Any] = {}
    edges: tuple[DocumentEdge, ...] = ()
    for name, data in zip(SHARED, sections, strict=True):
        values[name], inside = _contract(data) if name == "contract" else _section(Manifest, name, data)
        edges += inside
    check_contract(values["contract"], values["blueprint"], "manifest")
    return values, edges


@lru_cache(CACHED)
def _contract(data: bytes) -> tuple[Contract, tuple[DocumentEdge, ...]]:
    read = {name: _section(Contract, name, raw) for name, raw in _sections(Contract, data).items()}
    return Contract(**{name: value for name, (value, _) in read.items()}), sum(
        (edges for _, edges in read.values()), ()
    )


def _section(kind: Any, name: str, data: bytes) -> tuple[Any, tuple[DocumentEdge, ...]]:
    return (_cached_section if len(data) <= LARGEST else _cached_section.__wrapped__)(kind, name, data)


@lru_cache(CACHED)
def _cached_section(kind: Any, name: str, data: bytes) -> tuple[Any, tuple[DocumentEdge, ...]]:
    import msgspec

    if MALFORMED.search(data) or b"\\u" in data:  # there may be a malformed edge
        raise FormatError("an edge may be malformed")
    value = decode_canonical(_kinds(kind)[name], data)
    return value, tuple(edges(msgspec.json.decode(data))) if b'"sha256:' in data else ()
