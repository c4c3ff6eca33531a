"""Adopt a checkpoint of another program as an extractor and a head, with contracts and provenance."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from compatkit.adapters.builders import BUILDERS, builder_for
from compatkit.adapters.cutting.planning import blank
from compatkit.adapters.modelconfig import class_layer, config_of
from compatkit.components.checkpoints.matching import completed, converted, refuse
from compatkit.components.checkpoints.reading import Checkpoint, of_tensors, read_checkpoint, renamed
from compatkit.components.checkpoints.snapshot import CONFIG, Snapshot, agree, image_notes, read_snapshot
from compatkit.components.checkpoints.unwrapping import stripped
from compatkit.components.drafts import Draft
from compatkit.components.splitting import publish_split, split
from compatkit.contracts.manifest import About
from compatkit.errors import UsageError
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorchecks import UNUSABLE, check_values, compare

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compatkit.data.dataset import Split

IMAGES = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
"""Facts about images; the size is an argument of its own."""
COUNTS = ("num_classes", "in_chans")
"""Arguments of a network that the weights show."""
AS_GIVEN = "as given"
"""Source of what the caller states."""


@attrs.frozen(eq=False)
class Adoption:
    """A checkpoint cut into two parts, not published yet.

    Attributes:
        checkpoint: The file.
        kwargs: Arguments of the network, including those inferred from the weights.
        parts: ``{"extractor": ..., "head": ...}``.
        notes: Notes on what was used, left out, converted and inferred, one sentence each.
    """

    checkpoint: Checkpoint
    kwargs: Mapping[str, Any]
    parts: Mapping[str, Draft]
    notes: tuple[str, ...]

    @property
    def model(self) -> str:
        """Name of the network."""
        return self.parts["extractor"].blueprint.model

    @property
    def provenance(self) -> dict[str, Any]:
        """Provenance of the weights, as recorded in both manifests."""
        return {"adopted": {**self.checkpoint.facts, "steps": list(self.notes)}}

    def publish(self, store: Store, name: str, *, about: About | None = None) -> dict[str, str]:
        """Publish the parts as ``<name>.extractor`` and ``<name>.head``; return their references.

        Args:
            store: Registry to publish to.
            name: Name of the parts without the suffix.
            about: Title, description, tags, license and source of both.

        Raises:
            CutError: A rebuilt part violates its contract; nothing is written.
            EnvironmentFailure: Disk full, or no write permission.
        """
        return publish_split(store, self.parts, name, training=self.provenance, about=about)


def adopt(
    weights: str | os.PathLike[str] | Mapping[str, Any],
    *,
    model: str | None = None,
    cut: str,
    builder: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    size: tuple[int, int] | None = None,
    key: str | None = None,
    labels: Sequence[str] | None = None,
    data: Split | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
) -> Adoption:
    """Read a checkpoint, compare it with its network, and cut the network; see ``Registry.adopt``."""
    snapshot = None if isinstance(weights, Mapping) else read_snapshot(weights)
    beside = {} if snapshot is None else snapshot.facts
    arguments = {**({} if snapshot is None else snapshot.kwargs), **(kwargs or {})}
    stated = {"model": model, "size": size, "labels": labels, **(preprocessing or {})}
    stated |= {name: arguments.get(name) for name in COUNTS}
    facts, sources = _merged(snapshot, {fact: value for fact, value in stated.items() if value is not None})
    network = facts["model"]
    builder = builder_for(network, builder)
    if BUILDERS[builder].like_timm:
        arguments |= {name: facts[name] for name in COUNTS if name in beside}
    blank(builder, network, arguments, facts.get("size"))  # reject a wrong name before reading a large file
    if snapshot is None:
        checkpoint, owner = of_tensors(cast("Mapping[str, Any]", weights), key=key), "the state dict"
    else:
        checkpoint, owner = read_checkpoint(snapshot.weights, key=key), str(snapshot.weights)
    checkpoint = renamed(checkpoint, rename or {}, owner)
    own, arguments, state, notes = _fitted(checkpoint, owner, builder, network, arguments, facts.get("size"))
    check_values(state, owner, UNUSABLE, own)
    parts = split(
        network,
        cut,
        kwargs=arguments,
        size=facts.get("size"),
        builder=builder,
        labels=facts.get("labels"),
        data=data,
        weights=state,
        preprocessing={name: beside[name] for name in IMAGES if name in beside} | dict(preprocessing or {}),
    )
    notes = (*(() if snapshot is None else snapshot.notes), *checkpoint.notes, *notes, *converted(state, own))
    taken = (
        f"{fact} {_shown(facts[fact])}: {source}"
        for fact, source in sources.items()
        if fact in ("model", "num_classes", "labels") and source != AS_GIVEN
    )
    assumed = _assumed(builder, network, arguments)
    of_images = image_notes(parts["extractor"].contract.data, sources, assumed)
    return Adoption(checkpoint, arguments, parts, (*notes, *taken, *of_images))


def _merged(snapshot: Snapshot | None, stated: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge the facts of the caller with those of the files beside the weights; return them with their sources.

    Raises:
        UsageError: They contradict each other, or neither names the network.
    """
    facts, sources = ({}, {}) if snapshot is None else (dict(snapshot.facts), dict(snapshot.sources))
    for fact, value in stated.items():
        if snapshot is not None and fact in facts:
            plain = str(value).partition(".")[0] if fact == "model" else value
            agree(fact, facts[fact], sources[fact], plain, "the caller", snapshot.weights.parent)
        facts[fact], sources[fact] = value, AS_GIVEN
    if "model" not in facts:
        raise UsageError(
            f"Which network has these weights? Nothing beside them says so; name it as model. ({CONFIG} with "
            "'architecture' would.)",
            subject="model",
        )
    return facts, sources


def _shown(value: Any) -> str:
    return f"{', '.join(value[:3])}, ... ({len(value)} names)" if isinstance(value, tuple) else str(value)


def _assumed(builder: str, model: str, kwargs: Mapping[str, Any]) -> str:
    """Return who states the facts about images that neither the caller nor a file states."""
    whole, _, _ = blank(builder, model, kwargs, None)
    known = bool(config_of(whole).get("mean"))
    return (
        f"assumed, from {builder}'s own configuration of {model}"
        if known
        else "assumed, as nothing states it"
    )


def _fitted(
    checkpoint: Checkpoint,
    owner: str,
    builder: str,
    model: str,
    kwargs: Mapping[str, Any],
    size: tuple[int, int] | None,
) -> tuple[Mapping[str, Tensor], dict[str, Any], dict[str, Tensor], tuple[str, ...]]:
    """Return the network's tensors, its arguments, the weights under its names, and notes on the conversion.

    Raises:
        CheckpointMismatch: The weights belong to another network.
    """
    whole, arguments, _ = blank(builder, model, kwargs, size)
    content = stripped(checkpoint.tensors, whole.state_dict())
    notes = list(content.notes)
    shown = dict(_shown_arguments(whole, content.tensors, arguments))
    if shown:
        notes += [f"{name} {value} read from {layer}" for name, (value, layer) in shown.items()]
        arguments = {**arguments, **{name: value for name, (value, _) in shown.items()}}
        whole, arguments, _ = blank(builder, model, arguments, size)
    state = content.tensors
    renamed = BUILDERS[builder].renamed
    if renamed is not None:
        state, more = renamed(model, state)
        notes += more
    own = whole.state_dict()
    state, added = completed(state, own)
    if mismatch := compare(state, own):
        raise refuse(owner, f"{model} of {builder}", mismatch)
    return own, arguments, state, (*notes, *added)


def _shown_arguments(
    whole: nn.Module, tensors: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield missing arguments inferred from the weights: numbers of classes and of image channels."""
    own = whole.state_dict()
    for layer in class_layer(whole):
        name = f"{layer}weight"
        differs = name in tensors and name in own and tensors[name].shape[:1] != own[name].shape[:1]
        if differs and tensors[name].ndim == own[name].ndim and "num_classes" not in arguments:
            yield "num_classes", (int(tensors[name].shape[0]), name)
            break
    first = config_of(whole).get("first_conv")
    name = f"{first}.weight"
    if isinstance(first, str) and name in tensors and name in own and "in_chans" not in arguments:
        actual, expected = tuple(tensors[name].shape), tuple(own[name].shape)
        if len(actual) == len(expected) == 4 and actual[1] != expected[1] and actual[1] > 0:
            yield "in_chans", (actual[1], name)
