"""What is searched for in a manifest, picked out by plain code: reading every field strictly takes ten times as long.

A manifest that is not written as this version writes it goes through the strict reader, which fills in defaults or
says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, get_args

import attrs

from compatkit.contracts.codec import is_digest, loads, unstructure
from compatkit.contracts.contract import Kind
from compatkit.contracts.contract_rules import folded
from compatkit.contracts.manifest import SCHEMA, Manifest, from_bytes
from compatkit.errors import FormatError
from compatkit.registry.reach import How, names

KINDS: tuple[str, ...] = get_args(Kind)
_FIELDS = frozenset(field.name for field in attrs.fields(Manifest))
_FEATURES_SECOND = ("NCHW", "NC")


@attrs.frozen
class Profile:
    """The searchable facts of one manifest.

    Attributes:
        bytes: Of the payload file.
        channels: Feature widths that are numbers: of the outputs of an extractor, of the inputs of anything else but a
            recombination, which has none.
        classes: Every name of every class, as ``spelled`` gives them, in the order of the outputs.
        anchors: Tensor digests that the part was trained against.
        parents: Relation and manifest digest.
        edges: How it names the digests that must be kept with it.
    """

    kind: str
    builder: str
    model: str
    split: str
    parameters: int
    bytes: int
    title: str
    description: str
    licence: str
    tags: Mapping[str, str]
    channels: tuple[int, ...]
    classes: tuple[tuple[str, ...], ...]
    anchors: tuple[str, ...]
    parents: tuple[tuple[str, str], ...]
    edges: Mapping[str, How]

    @property
    def words(self) -> str:
        """Title, description, model and tags, as words are looked for in them."""
        tags = (f"{key}={value}" for key, value in self.tags.items())
        return searched("\n".join((self.title, self.description, self.model, *tags)))


def profile(data: bytes, what: str) -> Profile:
    """Return the facts of a manifest.

    Args:
        data: Its bytes, already compared with their digest.
        what: Which manifest, for messages.

    Raises:
        FormatError: It is none that this version can read.
    """
    value = loads(data, what=what)
    edges = dict(names(data, what, component=True))
    try:
        return _picked(value, edges)
    except (LookupError, TypeError, ValueError, AttributeError):
        # something is odd: the strict reader fills it in, or says what is wrong
        return _picked(unstructure(from_bytes(data, what=what)), edges)


def linked(beginning: bytes, whole: Callable[[], bytes], digest: str) -> Mapping[str, How]:
    """Return how a blob names other digests; nothing if it is no document, or not what its digest promises.

    Args:
        beginning: Its first bytes.
        whole: Returns all of them.
        digest: Of the blob.
    """
    if not beginning.startswith(b"{"):
        return {}
    data = whole()
    if f"sha256:{sha256(data).hexdigest()}" != digest:
        return {}
    try:
        return dict(names(data, digest, component=False))
    except FormatError:
        return {}


def spelled(name: str) -> str:
    """Return a class name without differences in case, spaces, underscores and Unicode composition."""
    return " ".join(folded(name).replace("_", " ").split())


def searched(text: str) -> str:
    """Return text as words are looked for in it."""
    return " ".join(folded(text).split())


def _picked(value: Any, edges: Mapping[str, How]) -> Profile:
    schema, kind = value["schema"], value["kind"]
    if type(schema) is not int or schema != SCHEMA or kind not in KINDS or not value.keys() <= _FIELDS:
        raise ValueError
    about, blueprint, payload, contract = (
        value[key] for key in ("about", "blueprint", "payload", "contract")
    )
    tags = about["tags"]
    protocol, data = contract["protocol"], contract["data"]
    side = "outputs" if blueprint["side"] == "extractor" else "inputs"
    ports = [] if blueprint["side"] == "recombination" else contract["structural"][side]
    return Profile(
        kind,
        _text(blueprint["builder"]),
        _text(blueprint["model"]),
        _text(blueprint["split"]),
        _count(payload["parameters"]),
        _count(payload["file"]["bytes"]),
        _text(about["title"]),
        _text(about["description"]),
        _text(about["licence"]),
        {key: _text(tag) for key, tag in tags.items()},
        tuple(dict.fromkeys(_widths(ports))),
        tuple(_names(one) for one in data["labels"] or ()),
        tuple(_text(one["digest"]) for one in protocol["anchors"]),
        tuple((_text(one["relation"]), _digest(one["component"])) for one in value["parents"]),
        edges,
    )


def _widths(ports: list[Any]) -> list[int]:
    widths = [
        port["shape"][1 if port["layout"] in _FEATURES_SECOND else -1] for port in ports if port["shape"]
    ]
    return [width for width in widths if type(width) is int]


def _names(label: Mapping[str, Any]) -> tuple[str, ...]:
    return spelled(_text(label["name"])), *(spelled(_text(one)) for one in label["same_as"])


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _digest(value: Any) -> str:
    if not is_digest(value):
        raise ValueError
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError
    return value
