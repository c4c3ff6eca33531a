"""The description in an exported file: canonical JSON under one metadata key, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from compatkit.contracts.batchnorm import is_policy
from compatkit.contracts.contract import Blueprint, Contract, Kind
from compatkit.contracts.contract_rules import check_contract
from compatkit.contracts.manifest import About
from compatkit.errors import FormatError
from compatkit.foundation.codec import decode, dumps
from compatkit.registry.weights.header import Header

SCHEMA: Literal[1] = 1
KEY = "compatkit"
"""The only metadata key in the safetensors file."""
MOST_PARTS = 256
WHAT = "the export's description"
"""Name of the JSON in messages."""


@attrs.frozen
class PartRecord:
    """One module of the network, in forward order.

    Attributes:
        blueprint: Rebuilds it.
        names: Its tensors, sorted.
        prefix: Prefix of these names in the file.
        component: Manifest digest ``sha256:...`` of the published component, or None.
    """

    blueprint: Blueprint
    names: tuple[str, ...]
    prefix: str = ""
    component: str | None = None


@attrs.frozen(kw_only=True)
class Description:
    """Everything about an exported network except its tensors.

    Attributes:
        kind: Kind of the exported component.
        blueprint: Blueprint of the whole; that of a recombination includes its policy.
        contract: Ports, preprocessing, classes, protocol and probe of the whole.
        parts: The modules; a single one unless ``kind`` is ``recombination``.
        tensors: Tensor digest of the file, ``tensors:sha256:...``.
        names: ``"whole"`` if the tensor names are those of one whole network, else ``"parts"``.
        about: Title, description, tags, license and source.
        training: The manifest's record of the run, of estimated statistics and fitted adapters, without blobs that
            exist only in a registry.
        component: Manifest digest, ``sha256:...``; None if never published.
        reference: ``name@version`` at the time of the export, for display.
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
        """Batch-norm policy: that of a recombination, ``"running"`` for any other part."""
        if self.kind != "recombination":
            return "running"
        return str(self.blueprint.kwargs.get("normalisation"))

    @property
    def whole(self) -> Blueprint | None:
        """Blueprint of the whole network whose tensor names the file has; None if they are those of the parts."""
        return self.parts[-1].blueprint if self.names == "whole" else None


def to_text(description: Description) -> str:
    """Return the description as canonical JSON on one line.

    Raises:
        FormatError: A field violates the schema; the message gives the path.
    """
    text = dumps(description).decode().removesuffix("\n")
    from_text(text)  # never write what cannot be read back
    return text


def from_text(text: str) -> Description:
    """Read a description strictly.

    Raises:
        FormatError: Not strict JSON, another schema, unknown, missing or mistyped fields, invalid values, or parts
            that do not make up the description.
    """
    description: Description = decode(Description, text.encode("utf-8", "surrogatepass"), what=WHAT)
    check_contract(description.contract, description.blueprint, WHAT)
    _check_parts(description)
    return description


def description_of(header: Header) -> Description:
    """Return the description in the metadata of a file.

    Raises:
        FormatError: It is missing or malformed.
    """
    text = header.metadata.get(KEY)
    if text is None:
        raise FormatError(
            "it is a safetensors file without a description, not an export of compatkit. Export a component with "
            "`compatkit export REF FILE`; adopt weights of other programs with `compatkit adopt`."
        )
    description = from_text(text)
    own = [part.prefix + name for part in description.parts for name in part.names]
    stored = {entry.name for entry in header.tensors}
    other = sorted(stored.symmetric_difference(own))
    if other or len(own) != len(stored):
        raise FormatError(
            f"{WHAT}: expected each tensor in one part; that is not so for {', '.join(other[:3]) or 'some'}. The file "
            "was changed after the export; export it again."
        )
    return description


def _check_parts(description: Description) -> None:
    """Raise for parts that do not make up the description.

    Raises:
        FormatError: The parts differ from what was expected.
    """
    sides = [part.blueprint.side for part in description.parts]
    between = description.contract.adapters
    if len(sides) > MOST_PARTS:
        raise FormatError(f"{WHAT}.parts: expected at most {MOST_PARTS}, got {len(sides)}.")
    if description.kind != "recombination":
        fits = (
            len(sides) == 1
            and description.parts[0].blueprint == description.blueprint
            and sides[0] != "recombination"
        )
        expected = "one part, with the blueprint of the whole"
    else:
        fits = sides == ["extractor", *["adapter"] * len(between), "head"]
        fits = fits and description.blueprint.side == "recombination" and is_policy(description.policy)
        fits = fits and tuple(part.blueprint for part in description.parts[1:-1]) == between
        expected = "an extractor, the contract's adapters, a head, and a known policy"
    if not fits:
        raise FormatError(f"{WHAT}.parts: expected {expected}, got {', '.join(sides) or 'none'}.")
