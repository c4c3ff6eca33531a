"""Adopt what compatkit itself exported: the description says network, cut, preprocessing, classes and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from compatkit.components.checkpoints.reading import Checkpoint
from compatkit.components.checkpoints.unwrapping import stripped
from compatkit.components.exports.document import KEY, Description, description_of, from_text
from compatkit.errors import CompatkitError, IntegrityError, UsageError
from compatkit.registry.os_errors import environment
from compatkit.registry.weights.header import MAX_HEADER, read_header
from compatkit.registry.weights.tensorfile import state_digest

DESCRIPTION = "compatkit-export.json"
"""File of an exported folder with the description."""


def exported_description(weights: Path, folder: Path) -> tuple[Description, str] | None:
    """Return the description of exported weights and where it stands; None for weights of other programs.

    Args:
        weights: File of the weights, whose metadata may hold it.
        folder: Folder that was named, or that holds the weights.

    Raises:
        FormatError: The description is damaged.
        UsageError: The export holds no complete network.
        EnvironmentFailure: The file cannot be read.
    """
    file = folder / DESCRIPTION
    if file.is_file():
        with environment("read", file), file.open("rb") as opened:
            text = opened.read(MAX_HEADER)
        return _complete(from_text(text.decode("utf-8", "surrogateescape")), file), DESCRIPTION
    try:
        header = read_header(weights)
    except CompatkitError:  # another format, or damaged: reading the weights says so
        return None
    if KEY not in header.metadata:
        return None
    return _complete(description_of(header), weights), f"the metadata {KEY} of {weights.name}"


def _complete(description: Description, owner: Path) -> Description:
    """Return the description of the two halves of one network.

    Raises:
        UsageError: It is one of anything else.
    """
    first, last = description.parts[0].blueprint, description.parts[-1].blueprint
    if description.kind != "recombination":
        reason = f"it holds the {description.kind} alone"
    elif len(description.parts) > 2:
        reason = "there are adapters between its halves"
    elif (first.network, first.cut, first.width) != (last.network, last.cut, last.width):
        reason = f"its halves are of {first.model} cut at {first.cut} and {last.model} cut at {last.cut}"
    elif first.width is not None or first.entries or last.entries:
        reason = "its halves have layers that no builder makes"
    else:
        return description
    raise UsageError(
        f"{owner}: {reason}, and complete networks are adopted. Push or import the components from their registry; "
        "compatkit.load_exported runs an exported safetensors file as it is.",
        subject=owner,
    )


def network_facts(description: Description) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what the description states of the network and its images."""
    network, data = description.parts[-1].blueprint, description.contract.data
    yield "model", network.model
    yield "builder", network.network[0]
    yield "cut", network.cut
    yield "size", tuple(data.size)
    for field in ("mean", "std", "interpolation", "crop_pct", "crop_mode"):
        yield field, getattr(data, field)
    if data.labels:
        yield "labels", tuple(label.name for label in data.labels)


def network_weights(checkpoint: Checkpoint, description: Description, owner: str) -> Checkpoint:
    """Return the exported tensors under the names of the network.

    Args:
        checkpoint: Weights as read.
        description: Description of the export.
        owner: Name for messages.

    Raises:
        IntegrityError: The tensors are not those of the description.
    """
    own = {part.prefix + name: name for part in description.parts for name in part.names}
    content = stripped(checkpoint.tensors, own)
    if content.tensors.keys() != own.keys() or state_digest(content.tensors) != description.tensors:
        raise IntegrityError(
            f"{owner}: its tensors are not those of its description, {description.tensors}. It was changed after the "
            "export; export it again.",
            subject=owner,
        )
    notes = [
        f"exported by compatkit from {description.reference or description.component or 'a recombination'}"
    ]
    if description.policy == "batch":
        notes.append("left out the batch-norm policy batch: the parts use the stored statistics")
    tensors = {own[name]: tensor for name, tensor in content.tensors.items()}
    return attrs.evolve(checkpoint, tensors=tensors, notes=(*checkpoint.notes, *content.notes, *notes))
