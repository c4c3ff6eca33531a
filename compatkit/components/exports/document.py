"""Description of an exported network: canonical JSON in the metadata of the file, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from compatkit.contracts.batchnorm import is_policy
from compatkit.contracts.contract import Blueprint, Contract
from compatkit.contracts.contract_rules import check_contract
from compatkit.contracts.kinds import Kind
from compatkit.contracts.manifest import About
from compatkit.errors import FormatError
from compatkit.foundation.codec import decode, dumps
from compatkit.registry.weights.header import Header

SCHEMA: Literal[1] = 1
KEY = "compatkit"
"""The only metadata key in the safetensors file."""
MAX_PARTS = 256
OWNER = "the export's description"
"""Name of the JSON in messages."""


@attrs.frozen
class PartRecord:
    """One module of the network, in forward order.

    Attributes:
        blueprint: Blueprint that rebuilds the module.
        names: Names of its tensors, sorted.
        prefix: Prefix of these names in the file.
        component: Manifest digest ``sha256:...``; None if never published.
    """

    blueprint: Blueprint
    names: tuple[str, ...]
    prefix: str = ""
    component: str | None = None


@attrs.frozen(kw_only=True)
class Description:
    """Metadata of an exported network.

    Attributes:
        kind: Kind of the exported component.
        blueprint: Blueprint of the component; that of a recombination includes its policy.
        contract: Ports, preprocessing, classes, protocol and probe of the component.
        parts: Modules of the network; a single one unless ``kind`` is ``recombination``.
        tensors: Tensor digest of the file, ``tensors:sha256:...``.
        names: ``"whole"`` if the tensor names are those of one complete network, else ``"parts"``.
        about: Title, description, tags, license and source.
        training: Record of the run, of estimated statistics and of fitted adapters from the manifest, without blobs
            that exist only in a registry.
        component: Manifest digest, ``sha256:...``; None if never published.
        reference: ``name@version`` at the time of the export, for display.
        schema: Version of this format.
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
        """Blueprint of the complete network that the tensor names belong to; None if they are those of the parts."""
        return self.parts[-1].blueprint if self.names == "whole" else None


def to_text(description: Description) -> str:
    """Return the description as canonical JSON on one line.

    Raises:
        FormatError: A field violates the schema; the message gives its path.
    """
    text = dumps(description).decode().removesuffix("\n")
    from_text(text)  # never write what cannot be read back
    return text


def from_text(text: str) -> Description:
    """Read a description strictly.

    Raises:
        FormatError: The text is not strict JSON or has another schema, fields are unknown, missing or invalid, or the
            parts do not match the description.
    """
    description: Description = decode(Description, text.encode("utf-8", "surrogatepass"), what=OWNER)
    check_contract(description.contract, description.blueprint, OWNER)
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
            "it is a safetensors file, but not an export of compatkit. Export a component with `compatkit export REF "
            "FILE`; adopt weights of other programs with `compatkit adopt`."
        )
    description = from_text(text)
    own = [part.prefix + name for part in description.parts for name in part.names]
    stored = {entry.name for entry in header.tensors}
    other = sorted(stored.symmetric_difference(own))
    if other or len(own) != len(stored):
        raise FormatError(
            f"{OWNER}: expected each tensor in exactly one part, unlike {', '.join(other[:3]) or 'some'}. The file was "
            "changed after the export; export it again."
        )
    return description


def _check_parts(description: Description) -> None:
    """Raise for parts that do not match the kind, the blueprint and the adapters.

    Raises:
        FormatError: The parts are not the expected ones.
    """
    blueprints = [part.blueprint for part in description.parts]
    sides = [blueprint.side for blueprint in blueprints]
    if len(sides) > MAX_PARTS:
        raise FormatError(f"{OWNER}.parts: expected at most {MAX_PARTS}, got {len(sides)}.")
    if description.kind != "recombination":
        valid = blueprints == [description.blueprint] and sides != ["recombination"]
        expected = "one part, with the blueprint of the component"
    else:
        adapters = description.contract.adapters
        valid = (
            sides == ["extractor", *["adapter"] * len(adapters), "head"]
            and tuple(blueprints[1:-1]) == adapters
            and description.blueprint.side == "recombination"
            and is_policy(description.policy)
        )
        expected = "an extractor, the contract's adapters, a head, and a known policy"
    if not valid:
        raise FormatError(f"{OWNER}.parts: expected {expected}, got {', '.join(sides) or 'none'}.")
