"""Singular features: the right singular vectors of a layer's weight, compared with its data.

Paper: "Reviving Autoencoder Pretraining", Sec. 2 and A.4: the right singular vectors of a network with a reverse pass
    are the dominant features of its data. A layer's matrix M is ``(out, in * k * k)``, M = U S V'; features are the
    columns of V, rows of ``Vh``, up to sign.
Scores: the energy ||V_r'm||^2 / ||m||^2 of class means m of the layer's input, in the first r directions and in all
    active ones (singular value above ``tolerance`` times the largest); |cos| of each vector with each class mean, both
    centered; principal angles to the principal components of the data (uncentered second moment), to the same layer of
    another network; the best match of each vector, as an image, with an image of the data. If singular values are
    equal, single vectors are arbitrary within their subspace: use the energy and angles of subspaces.
LPIPS, the paper's score, needs AlexNet's weights (``lpips_trunk``); correlation and SSIM are no substitute.
Cost: one SVD per layer; an in x in matrix if in is at most 4096.
Limits: linear layers and 2D convolutions without groups, whose patches include the padding. Matches with images need
    layers that take whole images. LPIPS, the paper's score, was not computed here: its weights were not available.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.errors import UsageError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Register

from ._matching import WINDOW, ImageMatch, pearson
from ._singular import (
    Decomposition,
    angles,
    decompose,
    input_rows,
    usual_tolerance,
)

compatkit_api = 1
LARGEST = 4096
"""Largest input width of a layer for which principal components are computed."""
PAPER = {"paper": "Reviving Autoencoder Pretraining (anonymous, 2020)", "equation": "Sec. 2, A.2, A.4"}
MATCHES = {"pearson": "|correlation|", "ssim": "1 - SSIM", "lpips": "LPIPS (AlexNet, v0.1)"}


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``singular_features``."""
    register("singular_features", SingularFeatures)


def singular_pictures(
    layer: nn.Module, shape: Sequence[int], top: int = 10
) -> tuple[NDArray[np.float64], list[str]]:
    """Return the first right singular vectors of a layer as images, and their singular values as titles.

    Args:
        layer: A linear layer, or a convolution without groups.
        shape: Channels, height and width of the layer's input (of a patch for a convolution).
        top: Largest number of vectors.

    Returns:
        ``(n, channels, height, width)`` for ``compatkit.pictures.signed``, with signs (which are arbitrary) chosen
        so that the sums are positive; and the titles.

    Raises:
        UsageError: The layer has no matrix, or its rows do not fit ``shape``.
    """
    known = decompose(layer)
    if math.prod(shape) != known.vectors.shape[1]:
        raise UsageError(
            f"Expected rows of {tuple(shape)} values; the matrix has rows of {known.vectors.shape[1]}."
        )
    vectors = known.vectors[:top]
    signs = torch.where(vectors.sum(1, keepdim=True) < 0, -1.0, 1.0)
    titles = [f"{value:.3g}" for value in known.values[:top].tolist()]
    return (vectors * signs).reshape(-1, *shape).cpu().numpy(), titles


@attrs.frozen(eq=False)
class Sums:
    """Sums over the inputs of a layer, in float64.

    Attributes:
        classes: Sums per class, ``(classes, in)``.
        squares: Sum of x x', ``(in, in)``; None if too large.
        best: Similarity of each vector to its nearest image, by score, ``(top,)``; larger is nearer.
        layer: Its decomposition, computed at the first batch.
    """

    classes: Tensor
    squares: Tensor | None
    best: Mapping[str, Tensor]
    layer: Decomposition


@attrs.frozen(eq=False)
class LayerSums:
    """Sums of each layer, and the number of values in each class's sum, ``(classes,)``, by layer."""

    examples: int = 0
    layers: Mapping[str, Sums] = attrs.field(factory=dict)
    counts: Mapping[str, Tensor] = attrs.field(factory=dict)


@attrs.define(eq=False)
class SingularFeatures:
    """Tables by layer: ``energy``, ``cosine``, ``angle_to_data``, ``angle_to_other``, ``match_...``.

    Attributes:
        top: Number of directions, at least 1.
        tolerance: Singular values above this share of the largest are active; None for float32's resolution.
        image_range: Lowest and highest possible value of a normalized image, numbers or one per channel; without it
            vectors are not compared with images.
        lpips_trunk: File of AlexNet's weights, for LPIPS.
        lpips_sha256: SHA-256 of that file.
    """

    top: int = attrs.field(default=10, validator=COUNT)
    tolerance: float | None = attrs.field(default=None, validator=Number(least=0, below=1, optional=True))
    image_range: Sequence[Any] | None = None
    lpips_trunk: str | None = None
    lpips_sha256: str | None = None
    _images: ImageMatch | None = attrs.field(default=None, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if (self.lpips_trunk is None) != (self.lpips_sha256 is None):
            raise UsageError("singular_features: lpips_trunk and lpips_sha256 must be given together.")
        if self.lpips_trunk is not None and self.image_range is None:
            raise UsageError("singular_features: LPIPS compares with images; give their image_range.")
        if self.image_range is not None:
            self._images = ImageMatch(self.image_range, self.lpips_trunk, self.lpips_sha256)

    def init(self) -> LayerSums:
        """Return the empty state."""
        return LayerSums()

    def update(
        self,
        state: LayerSums,
        images: Tensor,
        labels: Tensor,
        inputs: Mapping[str, Tensor],
        layers: Mapping[str, nn.Module],
        classes: Sequence[str],
    ) -> LayerSums:
        """Return the state with one more batch.

        Args:
            state: State so far.
            images: Normalized, ``(batch, channels, height, width)``.
            labels: Class indices, ``(batch,)``.
            inputs: Input of each layer, ``(batch, ...)``.
            layers: The layers by name.
            classes: Class names in the order of the labels.

        Raises:
            DataError: An image has values outside the declared range.
            UsageError: A layer has no matrix.
        """
        pictures = None if self._images is None else self._images.scaled(images)
        sums_by_layer, counts = dict(state.layers), dict(state.counts)
        total = max(len(classes), int(labels.max()) + 1)
        for name, values in inputs.items():
            layer = layers[name.split("#")[0]]
            try:
                rows, each = input_rows(layer, values)
            except UsageError as error:
                raise UsageError(
                    f"The layer {name!r}: {error} Name other layers, such as layers=['layer1.*.conv?', 'fc']."
                ) from error
            chosen = F.one_hot(labels, total).double()
            sums = chosen.T @ rows.double().unflatten(0, (len(labels), each)).sum(1)
            small = rows.shape[1] <= LARGEST
            squares = rows.double().T @ rows.double() if small else None
            known = sums_by_layer[name].layer if name in sums_by_layer else decompose(layer)
            best: dict[str, Tensor] = {}
            if self._images is not None and pictures is not None:
                best = self._images.nearest(layer, known.vectors[: self.top], pictures)
            new = Sums(sums, squares, best, known)
            counts[name] = _plus(counts.get(name), chosen.sum(0) * each)
            sums_by_layer[name] = _joined(sums_by_layer[name], new) if name in sums_by_layer else new
        return LayerSums(state.examples + len(labels), sums_by_layer, counts)

    def merge(self, left: LayerSums, right: LayerSums) -> LayerSums:
        """Return the sums of both parts."""
        if not left.examples or not right.examples:
            return left if left.examples else right
        layers = {name: _joined(sums, right.layers[name]) for name, sums in left.layers.items()}
        counts = {name: _plus(count, right.counts[name]) for name, count in left.counts.items()}
        return LayerSums(left.examples + right.examples, layers, counts)

    def finalize(
        self,
        state: LayerSums,
        layers: Mapping[str, nn.Module],
        classes: Sequence[str],
        other_layers: Mapping[str, nn.Module],
    ) -> tuple[Table, ...]:
        """Return the tables.

        Args:
            state: Sums over all batches.
            layers: Layers that were asked for; they name the rows if no image was seen.
            classes: Names of the classes; numbers if empty.
            other_layers: Layers of the second network, if there is one.
        """
        names = tuple(state.layers) or tuple(layers)
        decompositions = {name: sums.layer for name, sums in state.layers.items()}
        widest = max((len(counts) for counts in state.counts.values()), default=0)
        labels = tuple(classes) or tuple(str(index) for index in range(widest))
        makers = [
            self._table(
                "energy",
                "higher",
                names,
                self._energies(state, decompositions, names, labels),
                labels,
                ("top", "active"),
            ),
            self._table(
                "cosine",
                "higher",
                names,
                self._cosines(state, decompositions, names, labels),
                self._numbers,
                labels,
            ),
            self._table(
                "angle_to_data", "lower", names, self._to_data(state, decompositions, names), self._numbers
            ),
        ]
        if other_layers:
            cells = self._to_other(layers, other_layers)
            table = self._table("angle_to_other", "lower", tuple(layers), cells, self._numbers)
            makers.append(table | {"count": 0})
        if self.image_range is not None:
            makers += [
                self._table(
                    f"match_{kind}",
                    "higher" if kind == "pearson" else "lower",
                    names,
                    self._matches(state, names, kind),
                    self._numbers,
                )
                for kind in (*("pearson", "ssim"), *(("lpips",) if self.lpips_trunk else ()))
            ]
        return tuple(Table(**{"count": state.examples, **table}) for table in makers)

    @property
    def _numbers(self) -> tuple[str, ...]:
        return tuple(str(index) for index in range(1, self.top + 1))

    def _table(
        self,
        what: str,
        direction: str,
        names: tuple[str, ...],
        cells: Iterator[TableCell],
        *further: tuple[str, ...],
    ) -> dict[str, Any]:
        axes = {
            "energy": ("class", "subspace"),
            "cosine": ("vector", "class"),
        }.get(what, ("vector",) if what.startswith("match") else ("angle",))
        share = "float32's step times the larger side" if self.tolerance is None else f"{self.tolerance:g}"
        estimator = {
            "energy": f"top {self.top}; active: singular value above {share} of the largest",
            "cosine": "absolute, both without their own mean",
            "angle_to_data": f"principal angles of the first {self.top} directions to as many principal components, "
            "uncentered",
            "angle_to_other": f"principal angles of the first {self.top} directions",
        }
        matched = MATCHES.get(what.removeprefix("match_"), "")
        if what == "match_lpips":
            matched += f", trunk sha256 {self.lpips_sha256}"
        return {
            "name": f"singular_features/{what}",
            "axes": {"layer": names, **dict(zip(axes, further, strict=True))},
            "cells": tuple(cells),
            "unit": "rad" if what.startswith("angle") else "1",
            "direction": direction,
            "estimator": estimator.get(what) or f"{matched} to the nearest image, over both signs",
            **PAPER,
        }

    def _energies(
        self, state: LayerSums, decompositions: Any, names: Sequence[str], labels: Sequence[str]
    ) -> Iterator[TableCell]:
        for name in names:
            for index in range(len(labels)):
                mean = _mean(state, name, index)
                for kind in ("top", "active"):
                    if isinstance(mean, TableCell):
                        yield mean
                        continue
                    layer: Decomposition = decompositions[name]
                    active = layer.rank(self.tolerance)
                    rank = min(self.top, active) if kind == "top" else active
                    share = (layer.vectors[:rank] @ mean).square().sum() / mean.square().sum()
                    yield TableCell(float(share)) if kind == "active" else _at_rank(float(share), layer, rank)

    def _cosines(
        self, state: LayerSums, decompositions: Any, names: Sequence[str], labels: Sequence[str]
    ) -> Iterator[TableCell]:
        for name in names:
            for vector in range(self.top):
                for index in range(len(labels)):
                    mean = _mean(state, name, index)
                    if isinstance(mean, TableCell):
                        yield mean
                    elif vector >= len(decompositions[name].vectors):
                        yield TableCell(
                            None,
                            "undefined",
                            f"the layer has {len(decompositions[name].vectors)} singular vectors",
                        )
                    else:
                        cosine = pearson(decompositions[name].vectors[vector : vector + 1], mean[None])
                        yield TableCell(min(1.0, float(cosine.abs())))

    def _to_data(self, state: LayerSums, decompositions: Any, names: Sequence[str]) -> Iterator[TableCell]:
        for name in names:
            sums = state.layers.get(name)
            if sums is None:
                yield from [TableCell(None, "undefined", "no examples")] * self.top
            elif sums.squares is None:
                reason = f"the layer is given {sums.classes.shape[1]:,} values, more than {LARGEST:,}"
                yield from [TableCell(None, "undefined", reason)] * self.top
            else:
                # Eigenvalues ascend; directions of zero eigenvalues are arbitrary and left out.
                strength, directions = torch.linalg.eigh(sums.squares)
                rank = int((strength > strength[-1] * usual_tolerance(len(strength))).sum())
                data = directions.flip(1).T[: min(self.top, rank)]
                yield from self._angles(decompositions[name], data)

    def _to_other(
        self, layers: Mapping[str, nn.Module], others: Mapping[str, nn.Module]
    ) -> Iterator[TableCell]:
        for name, layer in layers.items():
            own = decompose(layer)
            other = decompose(others[name]) if name in others else None
            if other is None or other.vectors.shape[1] != own.vectors.shape[1]:
                yield from [TableCell(None, "undefined", "the other network has no such layer")] * self.top
            else:
                yield from self._angles(own, other.vectors[: min(self.top, other.rank(self.tolerance))])

    def _angles(self, own: Decomposition, other: Tensor) -> Iterator[TableCell]:
        rank = min(self.top, own.rank(self.tolerance))
        for value in angles(own.vectors[:rank], other.to(own.vectors.device)).tolist():
            yield _at_rank(value, own, rank)
        left = self.top - min(rank, len(other))
        yield from [TableCell(None, "undefined", "a subspace has fewer directions")] * left

    def _matches(self, state: LayerSums, names: Sequence[str], kind: str) -> Iterator[TableCell]:
        for name in names:
            sums = state.layers.get(name)
            values = sums.best.get(kind) if sums is not None else None
            if values is None:
                whole = "the layer does not take whole images" + (
                    f" of {WINDOW} pixels" if kind == "ssim" else ""
                )
                yield from [
                    TableCell(None, "undefined", whole if sums is not None else "no examples")
                ] * self.top
                continue
            yield from (TableCell(value if kind == "pearson" else -value) for value in values.tolist())
            yield from [TableCell(None, "undefined", "the layer has fewer singular vectors")] * (
                self.top - len(values)
            )


def _at_rank(value: float, layer: Decomposition, rank: int) -> TableCell:
    """Return a figure of the first directions, degenerate if the next singular value is nearly equal."""
    if layer.parted(rank):
        return TableCell(value)
    return TableCell(value, "degenerate", f"singular values {rank} and {rank + 1} are nearly equal")


def _mean(state: LayerSums, name: str, index: int) -> Tensor | TableCell:
    counts = state.counts.get(name)
    if counts is None or index >= len(counts) or not float(counts[index]):
        return TableCell(
            None, "undefined", "no examples of this class" if counts is not None else "no examples"
        )
    mean = state.layers[name].classes[index] / counts[index]
    return mean if float(mean.square().sum()) > 0 else TableCell(None, "undefined", "the class mean is zero")


def _joined(left: Sums, right: Sums) -> Sums:
    squares = None if left.squares is None or right.squares is None else left.squares + right.squares
    best = {
        name: torch.maximum(match, right.best[name].to(match.device)) for name, match in left.best.items()
    }
    return Sums(_plus(left.classes, right.classes), squares, best, left.layer)


def _plus(left: Tensor | None, right: Tensor) -> Tensor:
    """Add along classes, of which one side may have seen fewer."""
    if left is None:
        return right
    total = max(len(left), len(right))
    wide = [
        torch.cat([counts, counts.new_zeros(total - len(counts), *counts.shape[1:])])
        for counts in (left, right)
    ]
    return wide[0] + wide[1].to(left.device)
