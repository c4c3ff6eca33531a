"""Data shared by all rungs between two parts: images, features of both extractors, the head's own network."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.alignment.moments import PairedMoments
from compatkit.adapters.stitching.layers import build_adapter
from compatkit.components.bridges.splits import On, pairing_images, split_held_out
from compatkit.components.projecting import AdapterSlot, adapter_at, feature_pairs, images_for, moments_of
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.match import adapters_for
from compatkit.contracts.stitch import ports_after
from compatkit.data.split import Split
from compatkit.errors import DataError, IncompatibleError, UsageError, type_of
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.batchnorm import evaluation_mode, reestimate
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Progress
from compatkit.evaluation.preprocessing import covering
from compatkit.foundation.limits import SEED, Number, OneOf

LIMIT = 2**30
"""Maximum size of the cached features of a split, in bytes; larger ones are recomputed in every pass."""


@attrs.frozen(kw_only=True, eq=False)
class BridgeRequest:
    """The arguments of ``Registry.bridge``."""

    data: Split
    labels: Split | None = None
    test: Split | None = None
    head_data: Split | None = None
    rungs: Sequence[str] | None = None
    until: float | None = attrs.field(default=0.8, validator=Number(least=0, most=1, optional=True))
    max_images: int = attrs.field(default=1000, validator=Number(least=2, whole=True))
    on: On = attrs.field(default="src", validator=OneOf(get_args(On)))
    seed: int = attrs.field(default=0, validator=SEED)
    progress: Progress | None = None

    def __attrs_post_init__(self) -> None:
        """Check the combinations of values."""
        for name in ("data", "labels", "test", "head_data"):
            value = getattr(self, name)
            if not isinstance(value, Split) and not (value is None and name != "data"):
                raise UsageError(
                    f"{name}= expects a Split of images, got {type_of(value)}. Pass data.train of a data set."
                )
        for name in ("labels", "test"):
            value = getattr(self, name)
            if value is not None and not value.labeled:
                raise UsageError(f"{name}= expects labeled images; {value.name} has no labels.")
        if (self.head_data is None) != (self.on == "src"):
            raise UsageError(
                f"on={self.on!r} needs images of the head's domain; pass head_data= (--head-data)."
                if self.head_data is None
                else "head_data= needs on='dst' or on='mix'."
            )


@attrs.define(eq=False)
class Passes:
    """Repeatable iteration over batches of tensors, cached within a limit.

    Attributes:
        make: Function that computes the batches.
        limit: Maximum size of the cache, in bytes.
    """

    make: Callable[[], Iterator[tuple[Tensor, ...]]]
    limit: int = LIMIT
    _batches: list[tuple[Tensor, ...]] | None = attrs.field(init=False, default=None, repr=False)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        if self._batches is not None:
            yield from self._batches
            return
        batches, size = list[tuple[Tensor, ...]](), 0
        for batch in self.make():
            size += sum(tensor.nbytes for tensor in batch)
            if size <= self.limit:
                batches.append(batch)
            else:
                batches.clear()
            yield batch
        if size <= self.limit:
            self._batches = batches

    @property
    def cached(self) -> bool:
        """Whether all batches are cached; True only after a complete pass."""
        return self._batches is not None

    def forget(self) -> None:
        """Free the cache."""
        self._batches = None

    def first(self) -> Iterator[Tensor]:
        """Yield the first tensor of each batch.

        Yields:
            ``(n, c, ...)``, features of the extractor.
        """
        for batch in self:
            yield batch[0]


@attrs.frozen(eq=False)
class Labeled:
    """Labeled images of classes that the head knows.

    Attributes:
        features: The extractor's features, after the adapters without weights.
        targets: Wanted outputs of the head, int64 ``(n,)``.
    """

    features: Passes
    targets: Tensor


@attrs.define(eq=False)
class BridgeInputs:
    """Two parts, the head's own extractor, and images.

    Attributes:
        extractor: Extractor of the features.
        head: Head that takes the features.
        own: The extractor that the head was trained with.
        slot: Slot of a projection, directly before the head.
        before: Adapters without weights before that slot.
        fit: Images of the extractor's domain, on which statistics are estimated.
        pairs: Images on which features are paired.
        held_out: Images held out for agreement; nothing is fitted to them.
        seed: Seed of orders and draws.
        moment_seconds: Time that the moments took; 0 before they are computed.
    """

    extractor: Component
    head: Component
    own: Component
    slot: AdapterSlot
    before: Sequence[Adapter]
    fit: Split
    pairs: Split
    held_out: Split
    seed: int = 0
    paired: Passes = attrs.field(init=False, repr=False)
    features: Passes = attrs.field(init=False, repr=False)
    held_out_features: Passes = attrs.field(init=False, repr=False)
    moment_seconds: float = attrs.field(init=False, default=0.0)
    _moments: PairedMoments | None = attrs.field(init=False, default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        self.paired = Passes(lambda: self._pairs())
        unpaired = Passes(lambda: self._finite(self._features(self.fit, self.seed)))
        self.features = self.paired if self.pairs is self.fit else unpaired
        self.held_out_features = self.passes(self.held_out, None)

    @property
    def layout(self) -> str:
        """Layout of the features."""
        return self.slot.blueprint.kwargs["layout"]

    @property
    def widths(self) -> tuple[int, int]:
        """Numbers of channels of the extractor's features and of the head's input."""
        produced, taken = self.slot.blueprint.kwargs["channels"]
        return produced, taken

    @property
    def needed(self) -> tuple[Blueprint, ...]:
        """Adapters that the features need to enter the head."""
        left, right = self.extractor.manifest.contract, self.head.manifest.contract
        return adapters_for(left.structural.outputs, right.structural.inputs, left.data, right.data)

    @property
    def moments(self) -> PairedMoments:
        """Moments of the paired features, computed once.

        Raises:
            DataError: Features of one side are constant.
        """
        if self._moments is None:
            began = time.perf_counter()
            self._moments = self._paired_moments()
            self.moment_seconds = time.perf_counter() - began
        return self._moments

    @property
    def fit_facts(self) -> dict[str, Any]:
        """Name, digest and number of the fitting images, as JSON values."""
        return {"name": self.fit.name, "digest": self.fit.digest, "images": len(self.fit)}

    def passes(self, images: Split, order: int | None) -> Passes:
        """Return the features of images after the adapters without weights, in an order.

        Args:
            images: Images; they are resized and normalized as the extractor requires.
            order: Seed of a random order; None keeps the order of the images.
        """
        return Passes(lambda: self._features(images, order))

    def forget(self) -> None:
        """Free features and moments, which are computed again where they are needed."""
        self._moments = None
        for passes in (self.paired, self.features, self.held_out_features):
            passes.forget()

    def reference(self) -> nn.Module:
        """Return the head on its own extractor, with batch-norm statistics estimated on ``fit``."""
        module = nn.Sequential(copy.deepcopy(self.own.module), copy.deepcopy(self.head.module)).eval()
        reestimate(module, images_for(self.own, self.fit, self.seed))
        return module

    def answers(self, module: nn.Module, images: Split, order: int | None = None) -> Tensor:
        """Return logits ``(n, outputs)`` of a network on the head's own extractor.

        Args:
            module: Network that takes normalized images, such as ``reference()``.
            images: Images; they are resized and normalized as the head's own extractor requires.
            order: Seed of a random order; None keeps the order of the images.

        Returns:
            float32, one row an image.
        """
        with evaluation_mode(module), torch.no_grad():
            return torch.cat([module(batch).float() for batch in images_for(self.own, images, order)])

    def _paired_moments(self) -> PairedMoments:
        """Compute the moments; features must vary between images on both sides."""
        moments = moments_of(
            ((batch[0], batch[1]) for batch in self.paired), self.layout, len(self.pairs), seed=self.seed
        )
        for constant, part in zip(moments.constant(), (self.extractor, self.own), strict=True):
            if constant:
                raise DataError(
                    f"The features of {part.reference} are the same for all images, so nothing can be fitted. Check "
                    "its weights, and whether the images differ.",
                    subject=part.reference,
                )
        return moments

    def _pairs(self) -> Iterator[tuple[Tensor, ...]]:
        yield from self._finite(
            feature_pairs(self.slot, self.extractor, self.own, self.pairs, self.before, self.seed)
        )

    def _finite(self, batches: Iterator[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches unchanged: the extractor's features, and those of the head's own if paired.

        Raises:
            DataError: Features are not finite; the message names their extractor.
        """
        for batch in batches:
            for features, part in zip(batch, (self.extractor, self.own), strict=False):
                if not bool(torch.isfinite(features).all()):
                    raise DataError(
                        f"The features of {part.reference} are not finite on these images; check its weights.",
                        subject=part.reference,
                    )
            yield batch

    def _features(self, images: Split, order: int | None) -> Iterator[tuple[Tensor, ...]]:
        with evaluation_mode(self.extractor.module), torch.no_grad():
            for batch in images_for(self.extractor, images, order):
                features: Any = self.extractor.module(batch)
                for step in self.before:
                    features = step.module(features)
                yield (features,)


def bridge_inputs(
    extractor: Component, head: Component, own: Component, request: BridgeRequest
) -> BridgeInputs:
    """Return the data shared by the rungs between two parts.

    Args:
        extractor: Extractor of the features.
        head: Head that takes the features.
        own: The extractor that the head was trained with.
        request: Images, and where features are paired.

    Raises:
        IncompatibleError: The parts cannot be wired, or several tensors cross the cut.
        DataError: There are too few images.
    """
    fit, held_out = split_held_out(request.data, request.max_images, request.seed)
    own_images, other_images = fit, request.head_data
    if request.on == "mix" and other_images is not None:  # images of two sets in one array
        own_images, other_images = (
            covering(images, extractor.manifest.contract.data) for images in (fit, other_images)
        )
    pairs = pairing_images(own_images, other_images, request.max_images, request.on, request.seed, held_out)
    slots = _slots(extractor, head)
    before = [adapter_at(slot, build_adapter(slot.blueprint), extractor) for slot in slots[:-1]]
    return BridgeInputs(extractor, head, own, slots[-1], before, fit, pairs, held_out, request.seed)


def _slots(extractor: Component, head: Component) -> list[AdapterSlot]:
    ports, contract = extractor.manifest.contract.structural.outputs, head.manifest.contract
    if len(ports) > 1 or len(contract.structural.inputs) > 1:
        raise IncompatibleError(
            f"{len(ports)} tensors cross between {extractor.reference} and {head.reference}; a bridge supports only "
            "one. Cut both networks where a single tensor crosses."
        )
    planned = adapters_for(
        ports, contract.structural.inputs, extractor.manifest.contract.data, contract.data, fitted=True
    )
    if not planned or planned[-1].model != "project":
        raise IncompatibleError(
            f"No projection is possible between {extractor.reference} and {head.reference}: the number of channels of "
            "their features is unknown. Cut both networks where maps, tokens or vectors cross in float32."
        )
    slots: list[AdapterSlot] = []
    for blueprint in planned:
        slots.append(AdapterSlot(blueprint, ports, ports_after(ports, blueprint)))
        ports = slots[-1].gives
    return slots
