"""The description in an exported file: JSON under its one metadata key, written canonically, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from compatkit.contracts.batchnorm import is_policy
from compatkit.contracts.codec import decode, dumps
from compatkit.contracts.contract import Blueprint, Contract, Kind
from compatkit.contracts.contract_rules import check_contract
from compatkit.contracts.manifest import About
from compatkit.errors import FormatError
from compatkit.registry.weights.header import Header

SCHEMA: Literal[1] = 1
KEY = "compatkit"
"""The one key of a safetensors file's metadata that is written."""
MOST_PARTS = 256
WHAT = "the export's description"
"""Of the JSON, in messages."""

Side = Literal["extractor", "adapter", "head"]


@attrs.frozen
class PartRecord:
    """One module of the network, in the order in which images pass them.

    Attributes:
        blueprint: Rebuilds it.
        names: Its tensors, sorted.
        prefix: What stands before these in the file.
        component: Digest of the manifest that it was published with, ``sha256:...``; None where it is no component.
    """

    blueprint: Blueprint
    names: tuple[str, ...]
    prefix: str = ""
    component: str | None = None


@attrs.frozen(kw_only=True)
class Description:
    """Everything about an exported network but its tensors.

    Attributes:
        kind: Of the component that was exported.
        blueprint: Of the whole; a recombination's names its policy.
        contract: Ports, preprocessing, classes, protocol and the probe of the whole.
        parts: The modules; one for any other kind than ``recombination``.
        tensors: Tensor digest of the file, ``tensors:sha256:...``.
        names: ``"whole"`` where the file's names are those of one whole network, else ``"parts"``.
        about: For people.
        training: What the manifest records of the run, of estimated statistics and of fitted adapters, without what
            is kept beside it in a registry.
        component: Manifest digest, ``sha256:...``; None where it was never published.
        reference: ``name@version`` that it was exported from; for people.
    """

    kind: Kind
    blueprint: Blueprint
    contract: Contract
    parts: tuple[PartRecord, ...]
    tensors: str
    names: Literal["whole", "parts"]
    about: About = attrs.field(factory=About)
    training: Mapping[str, Any] = attrs.field(factory=dict)
    component: str | None = None
    reference: str = ""
    schema: Literal[1] = SCHEMA

    @property
    def policy(self) -> str:
        """What is done with batch normalisation: a recombination's policy; ``"running"`` for any other part."""
        if self.kind != "recombination":
            return "running"
        return str(self.blueprint.kwargs.get("normalisation"))

    @property
    def whole(self) -> Blueprint | None:
        """The network whose own names the file has, as the builder makes it; None where the names are the parts'."""
        return self.parts[-1].blueprint if self.names == "whole" else None


def to_text(description: Description) -> str:
    """Return the description as canonical JSON on one line.

    Raises:
        FormatError: A field is not what the schema asks, with its path.
    """
    text = dumps(description).decode().removesuffix("\n")
    from_text(text)  # what cannot be read back is never written
    return text


def from_text(text: str) -> Description:
    """Read a description strictly.

    Raises:
        FormatError: Not strict JSON, another schema, unknown, missing or mistyped fields, values that no contract can
            hold, parts that do not make what is described.
    """
    found: Description = decode(Description, text.encode("utf-8", "surrogatepass"), what=WHAT)
    check_contract(found.contract, found.blueprint, WHAT)
    _check_parts(found)
    return found


def description_of(header: Header) -> Description:
    """Return the description in the metadata of a file.

    Raises:
        FormatError: There is none, or it is not strict.
    """
    text = header.metadata.get(KEY)
    if text is None:
        raise FormatError(
            "it is a safetensors file without a description: no export of compatkit. Export a component with "
            "`compatkit export REF FILE`; weights of another origin are taken in by `compatkit adopt`."
        )
    found = from_text(text)
    own = [part.prefix + name for part in found.parts for name in part.names]
    there = {entry.name for entry in header.tensors}
    other = sorted(there.symmetric_difference(own))
    if other or len(own) != len(there):
        raise FormatError(
            f"{WHAT}: each tensor belongs to one part; that is not so for {', '.join(other[:3]) or 'some'}. The file "
            "was put together by hand, or changed; export it anew."
        )
    return found


def _check_parts(found: Description) -> None:
    """Refuse parts that do not make up what is described.

    Raises:
        FormatError: Says what was expected.
    """
    sides = [part.blueprint.side for part in found.parts]
    between = found.contract.adapters
    if len(sides) > MOST_PARTS:
        raise FormatError(f"{WHAT}.parts: at most {MOST_PARTS} are read, got {len(sides)}.")
    if found.kind != "recombination":
        fits = len(sides) == 1 and found.parts[0].blueprint == found.blueprint and sides[0] != "recombination"
        expected = "one part, with the blueprint of the whole"
    else:
        fits = sides == ["extractor", *["adapter"] * len(between), "head"]
        fits = fits and found.blueprint.side == "recombination" and is_policy(found.policy)
        fits = fits and tuple(part.blueprint for part in found.parts[1:-1]) == between
        expected = "an extractor, the contract's adapters, a head, and a known policy"
    if not fits:
        raise FormatError(f"{WHAT}.parts: expected {expected}, got {', '.join(sides) or 'none'}.")
