"""Split a model that was not trained here into parts with contracts, and publish them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.adapters.blueprints import InputSpec, build_pair, check_rebuilt, plan, prove, structural
from compatkit.components.drafts import Draft
from compatkit.components.registering import publish_proved
from compatkit.contracts.contract import Blueprint, Data, Kind, Label, Structural
from compatkit.contracts.contract_rules import check_labels
from compatkit.contracts.labels import label
from compatkit.contracts.manifest import About, Parent
from compatkit.data.transforms import KERNELS
from compatkit.errors import FormatError, UsageError
from compatkit.evaluation.component import pinned
from compatkit.evaluation.statistics import SAMPLES, feature_moments
from compatkit.registry.names import check_name
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compatkit.data.dataset import Split


LARGEST_CROP = 4
"""Share of an image that is kept: beyond 1 the border would be made up; no contract states more than this."""


def split(
    model: str,
    point: str,
    *,
    kwargs: Mapping[str, Any] | None = None,
    size: tuple[int, int] | None = None,
    builder: str = "timm",
    pretrained: bool = False,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    data: Split | None = None,
    samples: int = SAMPLES,
    weights: Mapping[str, Tensor] | None = None,
    images: Mapping[str, Any] | None = None,
) -> dict[str, Draft]:
    """Cut ``model`` at ``point``, prove that the parts reproduce it bitwise, and derive their contracts.

    Args:
        model: Name that the builder knows.
        point: A module path, or ``"forward_features"``.
        kwargs: JSON values for the builder.
        size: Height and width of the images; None takes the model's own.
        builder: Builder of the model.
        pretrained: Take the library's own weights, not random ones.
        seed: Of the random weights.
        labels: Class names in the order of the outputs; a model does not tell them.
        data: Images that the features are measured on (the statistical level); those that the model was trained
            on, or like them. None leaves it out.
        samples: Largest count of images that are measured.
        weights: All tensors of the network, in place of random ones.
        images: Facts that override the model's own configuration: ``mean`` and ``std`` on the scale 0 to 1, a
            number a channel or one for all, ``interpolation``, ``crop_pct``, ``crop_mode``.

    Returns:
        ``{"extractor": ..., "head": ...}``.

    Raises:
        UnknownName: No such model or split point.
        UsageError: Another count of labels than of outputs, images that no contract can describe, or weights beside
            pretrained ones.
        CutError: The model cannot be cut there, the parts differ from the whole, are not rebuilt as they are, or
            give random outputs in eval mode.
    """
    named = None if labels is None else tuple(map(label, labels))
    _check_labels(named)
    if pretrained and weights is not None:
        raise UsageError("Give weights, or ask for pretrained ones; not both.")
    planned = plan(model, point, kwargs=dict(kwargs or {}), size=size, builder=builder)
    taken = _data(model, _corrected(planned.input, images or {}))
    chosen = "pretrained" if pretrained else weights
    whole, extractor, head = build_pair(planned.extractor, planned.head, seed=seed, weights=chosen)
    prove(whole, extractor, head, planned.input.size, planned.input.channels)
    extractor.eval()
    head.eval()
    left = structural(extractor, planned.extractor)
    right = structural(head, planned.head, feature_ports=left.outputs)
    classes = right.outputs[0].channels
    if labels is not None and len(labels) != classes:
        raise UsageError(
            f"{model} has {classes} outputs; {len(labels)} labels were given, one for each is needed."
        )
    seen = () if data is None else feature_moments(extractor, left.outputs, data, taken, samples=samples)
    sides: tuple[tuple[Kind, str, Blueprint, nn.Module, Structural, Data], ...] = (
        ("extractor", "up to", planned.extractor, extractor, left, taken),
        ("head", "after", planned.head, head, right, attrs.evolve(taken, labels=named)),
    )
    parts: dict[str, Draft] = {
        side: Draft.of(
            side,
            blueprint,
            module,
            ports,
            described,
            moments=seen,
            title=f"{blueprint.model} {way} {blueprint.split}",
            tags={"backbone": blueprint.model},
        )
        for side, way, blueprint, module, ports, described in sides
    }
    _check_rebuilt(parts)
    return parts


def _check_labels(named: tuple[Label, ...] | None) -> None:
    """Refuse class names that no manifest may hold, before anything is built.

    Raises:
        UsageError: A name is empty, holds control characters, or comes twice.
    """
    try:
        check_labels(named or (), "labels")
    except FormatError as error:
        raise UsageError(f"{error} Names count from 0, in the order of the outputs.") from error


def publish_split(
    store: Store,
    parts: Mapping[str, Draft],
    prefix: str,
    *,
    training: Mapping[str, Any] | None = None,
    about: About | None = None,
) -> dict[str, str]:
    """Publish both sides as ``<prefix>.extractor`` and ``<prefix>.head``; return their references.

    Args:
        store: Where to.
        parts: From ``split``.
        prefix: Of both names.
        training: What is known of where the weights came from, as JSON values.
        about: Title, description, tags, licence and source of both.

    Raises:
        CutError: A part, rebuilt from its blueprint and its weights, is not what its contract promises; nothing is
            written then.
    """
    _check_rebuilt(parts)
    published, parents = {}, ()
    for side in ("extractor", "head"):
        part, name = parts[side], check_name(f"{prefix}.{side}")
        manifest = part.manifest(part.put(store), training or {}, parents, about or About())
        reference = publish_proved(store, name, manifest, part.module)
        published[side] = pinned(reference)
        parents = (Parent("trained_with", str(reference.digest)),)
    return published


def _check_rebuilt(parts: Mapping[str, Draft]) -> None:
    for side, part in parts.items():
        whose = f"The {side} of {part.blueprint.model} at {part.blueprint.split!r}"
        check_rebuilt(whose, part.module, part.blueprint, part.contract)


def _corrected(given: InputSpec, images: Mapping[str, Any]) -> InputSpec:
    """Return the images that a model was made for, corrected by what the caller knows.

    Raises:
        UsageError: A value is none that images can have, or has no meaning.
    """
    known = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
    if unknown := images.keys() - set(known):
        raise UsageError(f"{min(unknown)!r} is no known fact about images; known are {', '.join(known)}.")
    values = dict(images)
    for name in ("mean", "std"):
        if name in values:
            numbers = tuple(map(float, values[name]))
            values[name] = numbers = numbers * given.channels if len(numbers) == 1 else numbers
            fits = all(map(isfinite, numbers)) and (name == "mean" or all(one > 0 for one in numbers))
            if len(numbers) != given.channels or not fits:
                what = "a number" if name == "mean" else "a number above 0"
                raise UsageError(
                    f"{name}: expected {what} for each of {given.channels} channels, or one for all, on the scale 0 "
                    f"to 1; got {numbers}."
                )
    if values.get("interpolation", "nearest") not in KERNELS:
        raise UsageError(f"interpolation is one of {', '.join(KERNELS)}, got {values['interpolation']!r}.")
    if not 0 < float(values.get("crop_pct", 1)) <= LARGEST_CROP:
        raise UsageError(f"crop_pct is a share above 0, at most {LARGEST_CROP}, got {values['crop_pct']}.")
    return attrs.evolve(given, **values)


def _data(model: str, given: InputSpec) -> Data:
    """Return the data level as the model's own configuration states it.

    Raises:
        UsageError: The images are neither grey nor RGB, or are cropped in a way that has no name here.
    """
    if given.channels not in (1, 3) or given.crop_mode not in ("center", "squash"):
        raise UsageError(
            f"{model} takes images of {given.channels} channels, cropped by {given.crop_mode!r}; a contract describes "
            "grey and RGB images, cropped by 'center' or 'squash'. Give in_chans=1 or 3, or another model."
        )
    return Data(
        given.size,
        "L" if given.channels == 1 else "RGB",
        given.mean,
        given.std,
        given.interpolation,
        crop_pct=given.crop_pct,
        crop_mode="center" if given.crop_mode == "center" else "squash",
    )
