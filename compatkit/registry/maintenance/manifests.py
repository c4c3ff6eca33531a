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
        contract, edges = _contract(sections["contract"])
        _check(sections["contract"], sections["blueprint"])
        values: dict[str, Any] = {"contract": contract}
        for name, raw in sections.items():
            if name != "contract":
                values[name], inside = _section(Manifest, name, raw)
                edges += inside
        return ValidManifest(Manifest(**values), edges)
    except FormatError:
        return None


def _sections(kind: Any, data: bytes) -> dict[str, bytes]:
    """Return the fields of a canonical JSON object as bytes."""
    import msgspec

    try:
        sections = {name: bytes(raw) for name, raw in _splitter().decode(data).items()}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(str(error)) from None
    written = b",".join([b'"%b":%b' % (name.encode(), raw) for name, raw in sections.items()])
    if list(sections) != list(_kinds(kind)) or b"{%b}" % written != data:
        raise FormatError("other fields, or not canonical")
    return sections


@cache
def _splitter() -> Any:
    import msgspec

    return msgspec.json.Decoder(dict[str, msgspec.Raw])


@cache
def _kinds(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: hints[name] for name in sorted(attrs.fields_dict(kind))}


@lru_cache(CACHED)
def _contract(data: bytes) -> tuple[Contract, tuple[DocumentEdge, ...]]:
    read = {name: _section(Contract, name, raw) for name, raw in _sections(Contract, data).items()}
    return Contract(**{name: value for name, (value, _) in read.items()}), sum(
        (edges for _, edges in read.values()), ()
    )


@lru_cache(CACHED)
def _check(contract: bytes, blueprint: bytes) -> None:
    check_contract(_contract(contract)[0], _section(Manifest, "blueprint", blueprint)[0], "manifest")


def _section(kind: Any, name: str, data: bytes) -> tuple[Any, tuple[DocumentEdge, ...]]:
    return (_cached_section if len(data) <= LARGEST else _cached_section.__wrapped__)(kind, name, data)


@lru_cache(CACHED)
def _cached_section(kind: Any, name: str, data: bytes) -> tuple[Any, tuple[DocumentEdge, ...]]:
    import msgspec

    if MALFORMED.search(data) or b"\\u" in data:  # there may be a malformed edge
        raise FormatError("an edge may be malformed")
    value = decode_canonical(_kinds(kind)[name], data)
    return value, tuple(edges(msgspec.json.decode(data))) if b'"sha256:' in data else ()
