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
from compatkit.contracts.ports import size_text
from compatkit.data.split import Split
from compatkit.errors import DataError, IncompatibleError, NotFound
from compatkit.evaluation.adapter import ADAPTS, TARGETS, Adapter
from compatkit.evaluation.batchnorm import batches, evaluation_mode
from compatkit.evaluation.component import Component
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.registry.names import Reference
from compatkit.registry.store import Store

BATCH = 64
"""Images per batch while fitting; affects only memory."""
SAMPLES, FOR_EACH = 20_000, 10
"""Maximum number of samples of a fit: SAMPLES, or FOR_EACH per column if that is more. Beyond it, positions are drawn
at random.
"""


@attrs.frozen(eq=False)
class AdapterSlot:
    """A position between extractor and head for an adapter.

    Attributes:
        blueprint: Blueprint of the adapter.
        takes: Input ports of the adapter.
        gives: Output ports of the adapter.
        adapter: The adapter if it exists; None if it must be built or fitted.
    """

    blueprint: Blueprint
    takes: tuple[Port, ...]
    gives: tuple[Port, ...]
    adapter: Adapter | None = None


def fit_projection(
    slot: AdapterSlot,
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
        slot: Slot of the adapter.
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
    layout = slot.blueprint.kwargs["layout"]
    moments = moments_of(feature_pairs(slot, extractor, own, data, before), layout, len(data))
    fitted = ridge(moments, used)
    settings = {"method": "ridge", "strength": used, "samples": fitted.samples, "residual": fitted.residual}
    module = build_adapter(slot.blueprint, fitted_state(fitted))
    return fitted_adapter(slot, module, extractor, own, data, settings)


def feature_pairs(
    slot: AdapterSlot,
    extractor: Component,
    own: Component,
    data: Split,
    before: Sequence[Adapter] = (),
    order: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features of an extractor, after adapters, with those of the head's own extractor on the same images.

    Arguments and errors as for ``fit_projection``; ``order`` is the seed of a random order of the images.

    Yields:
        Two tensors in the layout of the slot with equal positions, for up to ``BATCH`` images.
    """
    _check_pairing(slot, own)
    index, layout = int(slot.blueprint.kwargs.get("port", 0)), slot.blueprint.kwargs["layout"]
    with evaluation_mode(extractor.module), evaluation_mode(own.module), torch.no_grad():
        for mine, theirs in zip(
            images_for(extractor, data, order), images_for(own, data, order), strict=True
        ):
            features: Any = extractor.module(mine)
            for step in before:
                features = step.module(features)
            features_in, target = _tensor(features, index), _tensor(own.module(theirs), index)
            _check_positions(features_in, target, layout, extractor, own)
            yield features_in, target


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
    moments: PairedMoments | None = None
    draw, looks = torch.Generator().manual_seed(seed), window or Window()
    channel = 1 if layout == "NCHW" else -1
    for features, target in pairs:
        wanted = target if aim is None else aim(target)
        columns = features.shape[channel] * looks.size
        positions = wanted[0].numel() // wanted.shape[channel]
        share = min(1.0, max(SAMPLES, FOR_EACH * columns) / (images * positions))
        moments = moments or PairedMoments.empty(columns, wanted.shape[channel])
        for x, y in paired(features, wanted, layout, looks, share, draw):
            moments.add(x, y)
    if moments is None:
        raise DataError("There are no images to fit on.")
    return moments


def fitted_adapter(
    slot: AdapterSlot,
    module: nn.Module,
    extractor: Component,
    own: Component,
    data: Split,
    settings: Mapping[str, Any],
) -> Adapter:
    """Return a fitted module as the adapter of a slot, with its record.

    Args:
        slot: Slot of the adapter; its blueprint includes the kernel size.
        module: Module built from that blueprint.
        extractor: Extractor of the input features.
        own: Extractor of the target features.
        data: Images of the fit.
        settings: Settings of the fit to record: ``method``, ...
    """
    record = {**settings, "data": {"name": data.name, "digest": data.digest, "images": len(data)}}
    adapter = adapter_at(slot, module, extractor)
    return attrs.evolve(adapter, parents=(*adapter.parents, Parent(TARGETS, own.digest)), training=record)


def fitted_state(fitted: Affine, kernel: int = 1) -> dict[str, Tensor]:
    """Return the weights of ``project`` for a fitted map.

    Args:
        fitted: Map from ``c * kernel * kernel`` values to d channels.
        kernel: Side of the convolution.

    Returns:
        ``weight``, ``(d, c)`` or ``(d, c, kernel, kernel)``, and ``bias``, ``(d,)``; float32.
    """
    weight = fitted.weight.T.float()
    if kernel > 1:
        weight = weight.unflatten(1, (-1, kernel, kernel))
    return {"weight": weight.contiguous(), "bias": fitted.bias.float()}


def own_extractor(store: Store, head: Component) -> Component:
    """Return the extractor that a head was trained with.

    Args:
        store: Store of the registry.
        head: Head whose extractor is looked up.

    Raises:
        IncompatibleError: The manifest of the head names none, or it is not in this registry.
    """
    why = "its manifest names none"
    if any(item.relation == ADAPTS for item in head.manifest.parents):
        before = [item.component for item in head.manifest.parents if item.relation == "initialised_from"]
        raise IncompatibleError(
            f"{head.reference} was refitted by a bridge and not trained with an extractor. Use its origin "
            f"({', '.join(before)})."
        )
    if head.manifest.kind == "auxiliary_head":
        raise IncompatibleError(
            f"{head.reference} was trained with several extractors, so there is none to fit to. Use another head."
        )
    if head.trained_with is not None:
        own_name = f"{head.reference.split('@')[0].removesuffix('.head')}.extractor"
        for name in _with_others(own_name, store):
            try:
                reference = store.resolve(Reference(name, digest=head.trained_with))
                return load(store, reference, admitted=True)  # covered by a signature of the head
            except NotFound:
                continue
        why = f"{head.trained_with} is not in this registry"
    raise IncompatibleError(
        f"An adapter for {head.reference} is fitted to the features of the head's own extractor; {why}. Publish that "
        "extractor here, or use a published adapter."
    )


def _with_others(name: str, store: Store) -> Iterator[str]:
    """Yield a name, then those of the registry, which are listed only if the first was not it."""
    yield name
    yield from sorted(store.names())


def adapter_at(slot: AdapterSlot, module: nn.Module, extractor: Component) -> Adapter:
    """Return a module as the adapter of a slot for this extractor.

    Args:
        slot: Blueprint and ports of the adapter.
        module: Module built from that blueprint.
        extractor: Extractor of the input features.
    """
    data = attrs.evolve(extractor.manifest.contract.data, labels=None)
    parents = (Parent(ADAPTS, extractor.digest),)
    return Adapter(slot.blueprint, module, slot.takes, slot.gives, data, parents)


def _check_pairing(slot: AdapterSlot, own: Component) -> None:
    """Raise if the head's own extractor has features in another layout than those to be paired."""
    outputs, index = own.manifest.contract.structural.outputs, int(slot.blueprint.kwargs.get("port", 0))
    mine, theirs = slot.takes[index].layout, outputs[index].layout if index < len(outputs) else "no such"
    if mine != theirs:
        raise IncompatibleError(
            f"Fitting an adapter needs {mine} features, but {own.reference}, the head's own extractor, gives {theirs} "
            "features."
        )


def _check_positions(
    features: Tensor, target: Tensor, layout: str, extractor: Component, own: Component
) -> None:
    """Raise for features that cannot be paired position by position."""
    axes = slice(2, None) if layout == "NCHW" else slice(1, -1)
    actual, wanted = tuple(features.shape[axes]), tuple(target.shape[axes])
    if actual != wanted:
        raise IncompatibleError(
            f"Features of {extractor.reference} ({size_text(actual)} positions) cannot be paired with those of "
            f"{own.reference} ({size_text(wanted)} positions): the token grid is "
            "unknown. Use images whose tokens form a grid of their aspect ratio."
        )


def images_for(part: Component, split: Split, order: int | None = None) -> Iterator[Tensor]:
    """Yield normalized images as an extractor's contract requires, at most ``BATCH`` at a time.

    They are prepared batch by batch to bound memory.

    Args:
        part: Extractor whose contract applies.
        split: Images to prepare.
        order: Seed of a random order; None keeps the order of the images.

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
