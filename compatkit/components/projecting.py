"""Fit an adapter from an extractor's features to those of the head's own extractor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.alignment.maps import Affine, ridge, usual_strength
from compatkit.adapters.alignment.moments import PairedMoments
from compatkit.adapters.alignment.positions import Window, paired
from compatkit.adapters.stitching.layers import build_adapter
from compatkit.components.loading import load
from compatkit.contracts.contract import Blueprint, Port
from compatkit.contracts.manifest import Parent
from compatkit.contracts.ports import by
from compatkit.data.split import Split
from compatkit.errors import DataError, IncompatibleError, NotFound
from compatkit.evaluation.adapter import ADAPTS, TARGETS, Adapter
from compatkit.evaluation.component import Component
from compatkit.evaluation.normalization import batches, evaluation_mode
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.registry.names import Reference
from compatkit.registry.store import Store

BATCH = 64
"""Images per batch while fitting; affects only memory."""
SAMPLES, FOR_EACH = 20_000, 10
"""Most samples of a fit: SAMPLES, or FOR_EACH per column if that is more; positions are then sampled."""


@attrs.frozen(eq=False)
class Place:
    """A place between extractor and head, with its adapter.

    Attributes:
        given: The adapter if it exists; None if it must be built or fitted.
    """

    blueprint: Blueprint
    takes: tuple[Port, ...]
    gives: tuple[Port, ...]
    given: Adapter | None = None


def fit_projection(
    place: Place,
    extractor: Component,
    own: Component,
    data: Split,
    *,
    before: Sequence[Adapter] = (),
    strength: float | None = None,
) -> Adapter:
    """Fit ``project``: ridge regression from an extractor's features to those of the head's own extractor.

    Both run in eval mode on the same images, each with its own preprocessing. Every position of every image is a
    sample.

    Args:
        place: Place of the adapter.
        extractor: Extractor of the input features.
        own: The extractor that the head was trained with.
        data: Images; labels are ignored.
        before: Adapters applied before this one.
        strength: Strength of the regularization, above 0; None for .1 up to 100 images and .01 beyond.

    Returns:
        The fitted adapter.

    Raises:
        IncompatibleError: The features cannot be paired position by position.
        DataError: The features are not finite, or constant.
    """
    used = usual_strength(len(data)) if strength is None else strength
    layout = place.blueprint.kwargs["layout"]
    moments = moments_of(feature_pairs(place, extractor, own, data, before), layout, len(data))
    return projection(
        place, ridge(moments, used), extractor, own, data, {"method": "ridge", "strength": used}
    )


def feature_pairs(
    place: Place,
    extractor: Component,
    own: Component,
    data: Split,
    before: Sequence[Adapter] = (),
    order: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features of an extractor, after adapters, with those of the head's own extractor on the same images.

    Arguments and errors as for ``fit_projection``; ``order`` is the seed of a random order of the images.

    Yields:
        Two tensors in the place's layout with equal positions, for up to ``BATCH`` images.
    """
    _check_pairing(place, own)
    index, layout = int(place.blueprint.kwargs.get("port", 0)), place.blueprint.kwargs["layout"]
    with evaluation_mode(extractor.module), evaluation_mode(own.module), torch.no_grad():
        for mine, theirs in zip(
            images_for(extractor, data, order), images_for(own, data, order), strict=True
        ):
            features: Any = extractor.module(mine)
            for step in before:
                features = step.module(features)
            given, target = _tensor(features, index), _tensor(own.module(theirs), index)
            _check_positions(given, target, layout, extractor, own)
            yield given, target


def moments_of(
    pairs: Iterable[tuple[Tensor, Tensor]],
    layout: str,
    images: int,
    *,
    window: Window | None = None,
    aim: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
) -> PairedMoments:
    """Return the moments of paired features; every position of every image is a sample, up to ``SAMPLES``.

    Args:
        pairs: Result of ``feature_pairs``.
        layout: Layout of the features.
        images: Number of all images.
        window: Receptive field that makes up x; None for the position alone.
        aim: Maps target features to the regression target; None for the features themselves.
        seed: Seed of the sampled positions.

    Raises:
        DataError: A value is not finite, or there are no images.
    """
    found: PairedMoments | None = None
    draw, looks = torch.Generator().manual_seed(seed), window or Window()
    channel = 1 if layout == "NCHW" else -1
    for given, target in pairs:
        wanted = target if aim is None else aim(target)
        columns = given.shape[channel] * looks.size
        positions = wanted[0].numel() // wanted.shape[channel]
        kept = min(1.0, max(SAMPLES, FOR_EACH * columns) / (images * positions))
        found = found or PairedMoments.empty(columns, wanted.shape[channel])
        for x, y in paired(given, wanted, layout, looks, kept, draw):
            found.add(x, y)
    if found is None:
        raise DataError("There are no images to fit on.")
    return found


def projection(
    place: Place,
    fitted: Affine,
    extractor: Component,
    own: Component,
    data: Split,
    facts: Mapping[str, Any],
) -> Adapter:
    """Return the adapter ``project`` with fitted weights and its record.

    Args:
        place: Place of the adapter; its blueprint includes the kernel size.
        fitted: Affine map with weight ``(c * kernel * kernel, d)``.
        extractor: Extractor of the input features.
        own: Extractor of the target features.
        data: Images of the fit.
        facts: Further facts to record: ``method``, ...
    """
    module = build_adapter(place.blueprint, fitted_state(place, fitted))
    seen = {
        **facts,
        "data": {"name": data.name, "digest": data.digest, "images": len(data)},
        "samples": fitted.samples,
        "residual": fitted.residual,
    }
    made = standing(place, module, extractor)
    return attrs.evolve(made, parents=(*made.parents, Parent(TARGETS, own.digest)), training=seen)


def fitted_state(place: Place, fitted: Affine) -> dict[str, Tensor]:
    """Return the weights of ``project`` for a fitted map.

    Args:
        place: With the blueprint of the adapter, whose ``kernel`` is the side of the convolution, 1 if absent.
        fitted: Map from ``c * kernel * kernel`` values to d channels.

    Returns:
        ``weight``, ``(d, c)`` or ``(d, c, kernel, kernel)``, and ``bias``, ``(d,)``; float32.
    """
    kernel = int(place.blueprint.kwargs.get("kernel", 1))
    weight = fitted.weight.T.float()
    if kernel > 1:
        weight = weight.unflatten(1, (-1, kernel, kernel))
    return {"weight": weight.contiguous(), "bias": fitted.bias.float()}


def own_extractor(store: Store, head: Component) -> Component:
    """Return the extractor that a head was trained with.

    Args:
        store: The registry's files.
        head: The head.

    Raises:
        IncompatibleError: The head names none, or it is not in this registry.
    """
    why = "its manifest names none"
    if any(one.relation == ADAPTS for one in head.manifest.parents):
        before = [one.component for one in head.manifest.parents if one.relation == "initialised_from"]
        raise IncompatibleError(
            f"{head.reference} was refitted by a bridge and not trained with an extractor. Use its origin "
            f"({', '.join(before)})."
        )
    if head.manifest.kind == "auxiliary_head":
        raise IncompatibleError(
            f"{head.reference} is a shared head, trained with several extractors; there is none of its own to fit to. "
            "Use a head."
        )
    if head.trained_with is not None:
        beside = f"{head.reference.split('@')[0].removesuffix('.head')}.extractor"
        for name in sorted(store.names(), key=lambda one: (one != beside, one)):
            try:
                found = store.resolve(Reference(name, digest=head.trained_with))
                return load(store, found, admitted=True)  # covered by a signature of the head
            except NotFound:
                continue
        why = f"{head.trained_with} is not in this registry"
    raise IncompatibleError(
        f"An adapter for {head.reference} is fitted to the features of the head's own extractor; {why}. Publish that "
        "extractor here, or use a published adapter."
    )


def standing(place: Place, module: nn.Module, extractor: Component) -> Adapter:
    """Return a module as the adapter of a place, made for this extractor.

    Args:
        place: Where the adapter stands: its blueprint and ports.
        module: Built from that blueprint.
        extractor: That it was fitted for.
    """
    data = attrs.evolve(extractor.manifest.contract.data, labels=None)
    parents = (Parent(ADAPTS, extractor.digest),)
    return Adapter(place.blueprint, module, place.takes, place.gives, data, parents)


def _check_pairing(place: Place, own: Component) -> None:
    """Raise if the head's own extractor has features in another layout than those to be paired.

    Raises:
        IncompatibleError: The layouts differ.
    """
    outputs, index = own.manifest.contract.structural.outputs, int(place.blueprint.kwargs.get("port", 0))
    mine, theirs = place.takes[index].layout, outputs[index].layout if index < len(outputs) else "no such"
    if mine != theirs:
        raise IncompatibleError(
            f"Fitting an adapter needs {mine} features, but {own.reference} gives {theirs} features: the head takes "
            "other features than those of the extractor that its manifest names."
        )


def _check_positions(
    given: Tensor, target: Tensor, layout: str, extractor: Component, own: Component
) -> None:
    """Raise for features that cannot be paired position by position.

    Raises:
        IncompatibleError: The positions differ.
    """
    axes = slice(2, None) if layout == "NCHW" else slice(1, -1)
    came, wanted = tuple(given.shape[axes]), tuple(target.shape[axes])
    if came != wanted:
        raise IncompatibleError(
            f"Features of {extractor.reference} ({by(came)} positions) cannot be paired with those of {own.reference} "
            f"({by(wanted)} positions): the token grid is unknown. Use images whose tokens form a grid of their "
            "proportions."
        )


def images_for(part: Component, split: Split, order: int | None = None) -> Iterator[Tensor]:
    """Yield normalized images as an extractor's contract requires, at most ``BATCH`` at a time.

    They are prepared batch by batch to bound memory.

    Args:
        part: An extractor.
        split: Images.
        order: Seed of a random order; None keeps their order.

    Yields:
        ``(n, C, H, W)`` with n at most ``BATCH``.
    """
    data = part.manifest.contract.data
    for positions in batches(len(split), BATCH, order):
        some = prepare(split.take(positions.numpy()), data).images
        ranks = positions.argsort().argsort()  # the split is indexed in ascending order
        yield normalize(some[ranks], data)


def _tensor(features: Any, index: int) -> Tensor:
    return features if isinstance(features, Tensor) else features[index]
