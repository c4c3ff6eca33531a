"""Split a checkpoint of another program into an extractor and a head, with contracts and provenance."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from compatkit.adapters.builders import BUILDERS, builder_for
from compatkit.adapters.cutting.planning import build_uninitialized
from compatkit.adapters.modelconfig import class_layer, config_of
from compatkit.components.checkpoints.exported import network_weights
from compatkit.components.checkpoints.matching import completed, converted, mismatch_error
from compatkit.components.checkpoints.reading import Checkpoint, of_tensors, read_checkpoint, renamed
from compatkit.components.checkpoints.snapshot import (
    CONFIG,
    Snapshot,
    check_agreement,
    image_notes,
    read_snapshot,
)
from compatkit.components.checkpoints.unwrapping import stripped
from compatkit.components.drafts import Draft
from compatkit.components.splitting import publish_split, split
from compatkit.contracts.image_size import image_size
from compatkit.contracts.manifest import About
from compatkit.errors import UsageError
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorchecks import UNUSABLE, check_values, compare

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compatkit.data.dataset import Split

PREPROCESSING = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
"""Preprocessing settings; the image size is a separate argument."""
COUNTS = ("num_classes", "in_chans")
"""Arguments of a network that can be inferred from its weights."""
AS_GIVEN = "as given"
"""Source of values from the caller."""


@attrs.frozen(eq=False)
class Adoption:
    """A checkpoint split into two parts, not published yet.

    Attributes:
        checkpoint: Weights as read.
        kwargs: Arguments of the network, including those inferred from the weights.
        parts: Parts by kind, ``"extractor"`` and ``"head"``.
        notes: Notes on values used, left out, converted and inferred, one sentence each.
    """

    checkpoint: Checkpoint
    kwargs: Mapping[str, Any]
    parts: Mapping[str, Draft]
    notes: tuple[str, ...]

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.parts["extractor"].blueprint.model

    @property
    def cut(self) -> str:
        """Module after which the network is cut."""
        return self.parts["extractor"].blueprint.cut

    @property
    def provenance(self) -> dict[str, Any]:
        """Provenance of the weights, as recorded in both manifests."""
        return {"adopted": {**self.checkpoint.provenance, "steps": list(self.notes)}}

    def publish(self, store: Store, name: str, *, about: About | None = None) -> dict[str, str]:
        """Publish the parts as ``<name>.extractor`` and ``<name>.head``; return their references.

        Args:
            store: Registry to publish to.
            name: Name of the parts without the suffix.
            about: Title, description, tags, license and source of both parts.

        Raises:
            CutError: A rebuilt part violates its contract; nothing is written.
            EnvironmentFailure: The disk is full, or there is no write permission.
        """
        return publish_split(store, self.parts, name, training=self.provenance, about=about)


def adopt(
    weights: str | os.PathLike[str] | Mapping[str, Any],
    *,
    model: str | None = None,
    cut: str | None = None,
    builder: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    size: int | tuple[int, int] | None = None,
    key: str | None = None,
    labels: Sequence[str] | None = None,
    data: Split | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
) -> Adoption:
    """Read a checkpoint, load it into its network, and split the network; see ``Registry.adopt``."""
    snapshot = None if isinstance(weights, Mapping) else read_snapshot(weights)
    stored = {} if snapshot is None else snapshot.metadata
    arguments = {**({} if snapshot is None else snapshot.kwargs), **(kwargs or {})}
    size = None if size is None else image_size(size, "size")
    stated = {"model": model, "builder": builder, "size": size, "labels": labels, **(preprocessing or {})}
    stated |= {name: arguments.get(name) for name in COUNTS}
    metadata, sources = _merged(
        snapshot, {name: value for name, value in stated.items() if value is not None}
    )
    network, cut = metadata["model"], cut or metadata.get("cut")
    if cut is None:
        raise UsageError(
            "Pass cut, the module after which the network is cut; `compatkit cuts MODEL` lists them.",
            subject="cut",
        )
    builder = builder_for(network, metadata.get("builder"))
    if BUILDERS[builder].like_timm:
        arguments |= {name: metadata[name] for name in COUNTS if name in stored}
    build_uninitialized(
        builder, network, arguments, metadata.get("size")
    )  # reject a wrong name before reading a large file
    if snapshot is None:
        checkpoint, owner = of_tensors(cast("Mapping[str, Any]", weights), key=key), "the state dict"
    else:
        checkpoint, owner = read_checkpoint(snapshot.weights, key=key), str(snapshot.weights)
        if snapshot.description is not None:
            checkpoint = network_weights(checkpoint, snapshot.description, owner)
    checkpoint = renamed(checkpoint, rename or {}, owner)
    own, arguments, state, notes = _fitted(
        checkpoint, owner, builder, network, arguments, metadata.get("size")
    )
    check_values(state, owner, UNUSABLE, own)
    parts = split(
        network,
        cut,
        kwargs=arguments,
        size=metadata.get("size"),
        builder=builder,
        labels=metadata.get("labels"),
        data=data,
        weights=state,
        preprocessing={name: stored[name] for name in PREPROCESSING if name in stored}
        | dict(preprocessing or {}),
    )
    notes = (*(() if snapshot is None else snapshot.notes), *checkpoint.notes, *notes, *converted(state, own))
    from_files = (
        f"{name} {_shown(metadata[name])}: {source}"
        for name, source in sources.items()
        if name in ("model", "num_classes", "labels") and source != AS_GIVEN
    )
    assumed = _assumed(builder, network, arguments)
    preprocessing_notes = image_notes(parts["extractor"].contract.data, sources, assumed)
    return Adoption(checkpoint, arguments, parts, (*notes, *from_files, *preprocessing_notes))


def _merged(snapshot: Snapshot | None, stated: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge the caller's values with those of the files next to the weights; return them with their sources.

    Raises:
        UsageError: They contradict each other, or neither names the network.
    """
    metadata, sources = ({}, {}) if snapshot is None else (dict(snapshot.metadata), dict(snapshot.sources))
    for name, value in stated.items():
        if snapshot is not None and name in metadata:
            plain = str(value).partition(".")[0] if name == "model" else value
            check_agreement(name, metadata[name], sources[name], plain, "the caller", snapshot.weights.parent)
        metadata[name], sources[name] = value, AS_GIVEN
    if "model" not in metadata:
        raise UsageError(
            f"The network of these weights is unknown: pass model, or put a {CONFIG} with 'architecture' next to them.",
            subject="model",
        )
    return metadata, sources


def _shown(value: Any) -> str:
    return f"{', '.join(value[:3])}, ... ({len(value)} names)" if isinstance(value, tuple) else str(value)


def _assumed(builder: str, model: str, kwargs: Mapping[str, Any]) -> str:
    """Return the source of preprocessing settings that neither the caller nor a file gives."""
    network, _, _ = build_uninitialized(builder, model, kwargs, None)
    if config_of(network).get("mean"):
        return f"assumed, from {builder}'s own configuration of {model}"
    return "assumed, as no source gives it"


def _fitted(
    checkpoint: Checkpoint,
    owner: str,
    builder: str,
    model: str,
    kwargs: Mapping[str, Any],
    size: tuple[int, int] | None,
) -> tuple[Mapping[str, Tensor], dict[str, Any], dict[str, Tensor], tuple[str, ...]]:
    """Return the network's own tensors, its arguments, the weights under its names, and notes.

    Raises:
        CheckpointMismatch: The weights belong to another network.
    """
    network, arguments, _ = build_uninitialized(builder, model, kwargs, size)
    content = stripped(checkpoint.tensors, network.state_dict())
    notes = list(content.notes)
    inferred = dict(_inferred_arguments(network, content.tensors, arguments))
    if inferred:
        notes += [f"{name} {value} read from {layer}" for name, (value, layer) in inferred.items()]
        arguments = {**arguments, **{name: value for name, (value, _) in inferred.items()}}
        network, arguments, _ = build_uninitialized(builder, model, arguments, size)
    state = content.tensors
    renamed = BUILDERS[builder].renamed
    if renamed is not None:
        state, more = renamed(model, state)
        notes += more
    own = network.state_dict()
    state, added = completed(state, own)
    if mismatch := compare(state, own):
        raise mismatch_error(owner, f"{model} of {builder}", mismatch)
    return own, arguments, state, (*notes, *added)


def _inferred_arguments(
    network: nn.Module, tensors: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield ``num_classes`` and ``in_chans`` with the layer that shows them, if missing and not the default."""
    own = network.state_dict()
    for layer in class_layer(network):
        name = f"{layer}weight"
        differs = name in tensors and name in own and tensors[name].shape[:1] != own[name].shape[:1]
        if differs and tensors[name].ndim == own[name].ndim and "num_classes" not in arguments:
            yield "num_classes", (int(tensors[name].shape[0]), name)
            break
    first = config_of(network).get("first_conv")
    name = f"{first}.weight"
    if isinstance(first, str) and name in tensors and name in own and "in_chans" not in arguments:
        actual, expected = tuple(tensors[name].shape), tuple(own[name].shape)
        if len(actual) == len(expected) == 4 and actual[1] != expected[1] and actual[1] > 0:
            yield "in_chans", (actual[1], name)
