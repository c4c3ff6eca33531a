"""Interface of rungs, which are plugins: their inputs, their result, and tools for fits.

A rung is a function from ``RungInputs`` to ``RungFit``. ``RungInputs`` records which inputs a rung reads; this decides
how the rung is judged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.alignment.maps import (
    Affine,
    permutation,
    procrustes,
    ridge,
    rotation,
    scale_of,
    usual_strength,
)
from compatkit.adapters.alignment.moments import PairedMoments
from compatkit.adapters.alignment.positions import Window
from compatkit.adapters.stitching.layers import build_adapter
from compatkit.adapters.stitching.widths import widen_entry
from compatkit.components.bridges.inputs import BridgeInputs, Labeled, Passes
from compatkit.components.projecting import fitted_state, moments_of
from compatkit.contracts.stitch import with_kernel
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.batchnorm import batch_statistics, norm_layers

__all__ = [
    "COLUMNS",
    "Affine",
    "PairedMoments",
    "RungFit",
    "RungInputs",
    "Window",
    "batch_statistics",
    "norm_layers",
    "permutation",
    "procrustes",
    "ridge",
    "rotation",
    "scale_of",
    "usual_strength",
    "widen_entry",
]

COLUMNS = 4608
"""Largest number of columns for which normal equations are solved: 3x3 patches of 512 channels, 170 MB."""


@attrs.frozen(eq=False)
class RungFit:
    """A head joined to an extractor; its batch-norm statistics are estimated on the images afterwards.

    Attributes:
        project: Result of ``RungInputs.project``, trained further or not; None for no map of the features.
        head: Result of ``RungInputs.head`` with other weights; None for the head as it is.
        facts: JSON values for the manifest, such as settings. ``residual`` is the unexplained share of variance.
        entries: New number of input channels by layer of the head (``widen_entry``).
        direct: Whether features enter the head as they are, with its stored statistics.
        start: Fit before training; if agreement falls significantly below that of ``start``, the rung is left out.
    """

    project: nn.Module | None = None
    head: nn.Module | None = None
    facts: Mapping[str, Any] = attrs.field(factory=dict)
    entries: Mapping[str, int] = attrs.field(factory=dict)
    direct: bool = False
    start: RungFit | None = None


@attrs.define(eq=False)
class RungInputs:
    """Inputs of one rung: an extractor, a head that it was not trained with, and images.

    Attributes:
        reads: Inputs that the rung has read: ``"pairs"``, ``"moments"``, ``"features"``, ``"logits"``, ``"labels"``.
    """

    _inputs: BridgeInputs = attrs.field(repr=False)
    _training: Labeled | None = attrs.field(repr=False)
    _teacher: nn.Module = attrs.field(repr=False)
    reads: set[str] = attrs.field(init=False, factory=set)

    @property
    def layout(self) -> str:
        """Layout of the features: ``"NCHW"``, ``"NHWC"``, ``"NLC"`` or ``"NC"``."""
        return self._inputs.layout

    @property
    def widths(self) -> tuple[int, int]:
        """Numbers of channels of the extractor's features and of the head's input."""
        return self._inputs.widths

    @property
    def images(self) -> int:
        """Number of images whose features are paired."""
        return len(self._inputs.pairs)

    @property
    def seed(self) -> int:
        """Seed of random numbers."""
        return self._inputs.seed

    @property
    def normalized(self) -> bool:
        """Whether the head has batch normalization, whose statistics adapt to the features."""
        return self._inputs.head.manifest.contract.protocol.norm == "batch"

    @property
    def moments(self) -> PairedMoments:
        """Moments of the paired features, computed once for all rungs.

        Raises:
            DataError: Features of one side are constant.
        """
        self.reads |= {"pairs", "moments"}
        return self._inputs.moments

    def moments_of(self, window: Window, layer: Callable[[Tensor], Tensor] | None = None) -> PairedMoments:
        """Return moments of patches of the features and their target.

        Args:
            window: Receptive field of a convolution at one position.
            layer: Layer of the head; the target is its output on the features of the head's own extractor. None for
                these features themselves.
        """
        pairs = self.pairs()
        with torch.no_grad():
            return moments_of(pairs, self.layout, self.images, window=window, aim=layer, seed=self.seed)

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return batches of paired features, not to be modified: the extractor's, and the head's own extractor's."""
        self.reads.add("pairs")
        return ((batch[0], batch[1]) for batch in self._inputs.paired)

    def features(self) -> Tensor:
        """Return the extractor's features of all images that statistics are estimated on.

        Returns:
            ``(n, c, ...)``.

        Raises:
            DataError: They do not fit in memory.
        """
        self.reads.add("features")
        return in_memory(self._inputs.features)

    def logits(self) -> Tensor:
        """Return logits of the head's own network for the images of ``features``.

        A rung that reads them counts as ``taught``.

        Returns:
            ``(n, outputs)``.
        """
        self.reads.add("logits")
        return self._inputs.answers(self._teacher, self._inputs.fit, self._inputs.seed)

    def labeled(self) -> tuple[Tensor, Tensor]:
        """Return the extractor's features of labeled images, and the wanted output of the head for each.

        Returns:
            ``(n, c, ...)`` and int64 ``(n,)``.

        Raises:
            UsageError: There are no labels.
        """
        self.reads.add("labels")
        if self._training is None:
            raise UsageError("This rung is trained with labels; pass labeled images as labels= (--labels).")
        return in_memory(self._training.features), self._training.targets

    def head(self) -> nn.Module:
        """Return a copy of the head, in eval mode, that the rung may change."""
        return copy.deepcopy(self._inputs.head.module).eval()

    def project(self, fitted: Affine, kernel: int = 1) -> nn.Module:
        """Return a fitted map as a module to insert before the head.

        Args:
            fitted: Weight ``(c * kernel * kernel, d)`` and bias ``(d,)``, for c and d of ``widths``.
            kernel: Side of the convolution; above 1 for maps only.
        """
        blueprint = self._inputs.slot.blueprint
        if kernel > 1:
            blueprint = with_kernel(blueprint, kernel)
        return build_adapter(blueprint, fitted_state(fitted, kernel))


def in_memory(features: Passes) -> Tensor:
    """Return all features as one tensor.

    Raises:
        DataError: They do not fit in memory.
    """
    for _ in features:
        pass
    if not features.cached:
        raise DataError(
            "Trained rungs need the features of all images in memory, and these do not fit. Use fewer images, or rungs "
            "in closed form."
        )
    return torch.cat(list(features.first()))
