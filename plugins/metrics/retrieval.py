"""Retrieval: whether the nearest images are of the query's class, with queries and gallery from two networks.

Papers: Shen, Xiong, Xia, Soatto (2020), "Towards Backward-Compatible Representation Learning": self-test, cross-test
    and the empirical criterion: new queries are compatible with an old gallery if M(new, old) > M(old, old).
    Ramanujan, Vasu, Farhadi, Tuzel, Pouransari (2022), "Forward Compatible Training": CMC top-k and mAP, each image of
    a set a query against all others.
Equations: for a query, irr_j is the number of images of other classes at least as near as the j-th nearest of its own
    class. It counts for ``retrieval`` (CMC) if irr_1 < ``top``; its average precision is the mean over j of
    j / (j + irr_j). Both are averaged over queries.
Ties count against the query, so constant features retrieve nothing. A query is not in its own gallery; images whose
    class has no other image are not queries but stay in the gallery.
Deviation: cosine similarity normalizes by Euclidean length; the code of the second paper divides by the sum of absolute
    values.
Cost: keeps the features of all images; n^2 similarities in float64 per pair of networks, 512 queries at a time.
Limits: features must be vectors of one width. Similarities of all pairs are computed, so time grows with the square
    of the images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import COUNT, OneOf
from compatkit.hooks import Register

from ._moments import NEGLIGIBLE, real
from ._partners import partner

compatkit_api = 1
QUERIES = 512
ROUNDING = 1e-12
"""Distances of ``points`` closer than this are ties: a product depends on its place in the matrix."""
SIDES = ("this", "other")
PAPER = {
    "paper": "Shen et al. (2020), Towards Backward-Compatible Representation Learning",
    "equation": "empirical compatibility criterion",
}


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``retrieval``."""
    register("retrieval", Retrieval)


def ranks(queries: Tensor, gallery: Tensor, labels: Tensor, distance: str = "cosine") -> list[Tensor]:
    """Return irr_j of the images of each class with at least two images; see the module docstring.

    Args:
        queries: ``(n, d)``.
        gallery: Features of the same images in the same order, ``(n, d)``.
        labels: ``(n,)``.
        distance: ``"cosine"`` or ``"euclidean"``.

    Returns:
        For each class of k images, int64 ``(k, k - 1)``: irr_j of each image, j from 1.
    """
    queries, gallery = points(queries, gallery, distance)
    by_class = []
    for label in labels.unique().tolist():
        own = (labels == label).nonzero()[:, 0]
        if len(own) > 1:
            parts = [_irrelevant(queries, gallery, own, part, distance) for part in own.split(QUERIES)]
            by_class.append(torch.cat(parts))
    return by_class


def points(queries: Tensor, gallery: Tensor, distance: str) -> tuple[Tensor, Tensor]:
    """Return both as points around 0, none farther than 1 along an axis, whose distances order the images.

    The cosine of two vectors falls with the distance of their directions, which keeps the digits of near ones. Moved
    and scaled together, points keep their order, and neither a large mean nor the scale costs digits.

    Args:
        queries: ``(n, d)``.
        gallery: ``(m, d)``.
        distance: ``"cosine"`` or ``"euclidean"``.
    """
    sides = [queries.double(), gallery.double()]
    if distance == "cosine":
        sides = [vectors / _above_zero(vectors.abs().amax(1, keepdim=True)) for vectors in sides]
        sides = [vectors / _above_zero(vectors.norm(dim=1, keepdim=True)) for vectors in sides]
    else:
        largest = _above_zero(torch.cat(sides).abs().amax())
        sides = [vectors / largest for vectors in sides]
    middle = sides[1].mean(0)
    sides = [vectors - middle for vectors in sides]
    spread = torch.cat(sides).abs().amax()
    scale = torch.where(spread > NEGLIGIBLE, spread, 1.0)  # less is rounding of the mean
    return sides[0] / scale, sides[1] / scale


def _above_zero(sizes: Tensor) -> Tensor:
    return torch.where(sizes > 0, sizes, 1.0)


def _irrelevant(queries: Tensor, gallery: Tensor, own: Tensor, indices: Tensor, distance: str) -> Tensor:
    """Return irr_j of some queries of a class, ``(queries, k - 1)``; ``own`` are the k images of that class."""
    if distance == "cosine":
        near = 2 * queries[indices] @ gallery.T - gallery.square().sum(1)
    else:  # by differences: expanded squares are too inexact for near neighbors
        near = -torch.cdist(queries[indices], gallery, compute_mode="donot_use_mm_for_euclid_dist")
    among = torch.zeros(len(gallery), dtype=torch.bool, device=gallery.device)
    among[own] = True
    others = near[:, ~among].sort(1).values
    relevant = near[:, own][indices[:, None] != own].reshape(len(indices), len(own) - 1)
    relevant = relevant.sort(1, descending=True).values - ROUNDING
    return others.shape[1] - torch.searchsorted(others, relevant)


def _vectors(name: str, output: Tensor) -> Tensor:
    """Return one vector per image, ``(batch, d)``; maps of one position are flattened."""
    if output.ndim < 2 or output.shape[2:].numel() != 1:
        raise DataError(
            f"retrieval: expected one vector per image from {name!r}, got a tensor of shape {tuple(output.shape)}. "
            "Choose the layer after the pooling."
        )
    return real(output.flatten(1))


@attrs.frozen(eq=False)
class Seen:
    """Features so far, one tensor per batch.

    Attributes:
        labels: ``(batch,)``.
        features: Features by layer, for both networks, ``(batch, d)``.
    """

    labels: tuple[Tensor, ...] = ()
    features: Mapping[str, tuple[tuple[Tensor, Tensor], ...]] = attrs.field(factory=dict)


@attrs.frozen
class Retrieval:
    """Retrieval of images by the features of a layer of vectors.

    Attributes:
        top: Number of nearest images among which one of the query's class must be, >= 1; fewer than the gallery has
            of other classes, or the figure says nothing.
        distance: ``"cosine"`` or ``"euclidean"``.
    """

    top: int = attrs.field(default=1, validator=COUNT)
    distance: str = attrs.field(default="cosine", validator=OneOf(("cosine", "euclidean")))

    def init(self) -> Seen:
        """Return the empty state."""
        return Seen()

    def update(
        self, state: Seen, labels: Tensor, outputs: Mapping[str, Tensor], other_outputs: Mapping[str, Tensor]
    ) -> Seen:
        """Return the state with one more batch.

        Args:
            state: State so far.
            labels: Class indices, ``(batch,)``.
            outputs: Output of each layer, ``(batch, d)``.
            other_outputs: The same of the other network.

        Raises:
            DataError: A layer's outputs are not vectors, or the other network has none.
        """
        features = {}
        for name, output in outputs.items():
            both = _vectors(name, output), _vectors(name, partner("retrieval", name, other_outputs))
            features[name] = (*state.features.get(name, ()), both)
        return Seen((*state.labels, labels), features)

    def merge(self, left: Seen, right: Seen) -> Seen:
        """Return the features of both parts."""
        names = {**left.features, **right.features}
        features = {name: (*left.features.get(name, ()), *right.features.get(name, ())) for name in names}
        return Seen((*left.labels, *right.labels), features)

    def finalize(self, state: Seen, layers: Mapping[str, Any]) -> tuple[Table, ...]:
        """Return both scores for queries and galleries of either network.

        Args:
            state: Labels and features of all batches.
            layers: Layers that were asked for; they name the rows if no image was seen.
        """
        names = tuple(state.features) or tuple(layers)
        device = state.labels[0].device if state.labels else torch.device("cpu")
        labels = torch.cat([batch.to(device) for batch in state.labels]) if state.labels else torch.zeros(0)
        _, class_of, sizes = labels.unique(return_inverse=True, return_counts=True)
        queries = int((sizes[class_of] > 1).sum())
        tables = [self._cells(state.features.get(name, ()), labels, queries) for name in names]
        axes = {"layer": names, "queries": SIDES, "gallery": SIDES}
        common: dict[str, Any] = {"axes": axes, "unit": "1", "direction": "higher", "count": queries, **PAPER}
        how = f"{self.distance}, every image against all others"
        first, mean = (tuple(cell for cells in tables for cell in cells[index]) for index in (0, 1))
        name = "retrieval" if self.top == 1 else f"retrieval@{self.top}"
        return (
            Table(name=name, cells=first, estimator=how, **common),
            Table(name="retrieval/average_precision", cells=mean, estimator=how, **common),
        )

    def _cells(
        self, parts: tuple[tuple[Tensor, Tensor], ...], labels: Tensor, count: int
    ) -> tuple[list[TableCell], list[TableCell]]:
        """Return the cells of a layer, for all combinations of the networks of queries and gallery."""
        if not count:
            reason = "no class has two images" if len(labels) else "no examples"
            return [TableCell(None, "undefined", reason)] * 4, [TableCell(None, "undefined", reason)] * 4
        sides = [torch.cat([part[index].to(labels.device) for part in parts]) for index in (0, 1)]
        first, mean = [], []
        for queries in sides:
            for gallery in sides:
                if queries.shape[1] != gallery.shape[1]:
                    why = f"queries have {queries.shape[1]} features, the gallery has {gallery.shape[1]}"
                    first.append(TableCell(None, "undefined", why))
                    mean.append(first[-1])
                    continue
                by_class = ranks(queries, gallery, labels, self.distance)
                one_class = "every image is of one class" if count == len(labels) == len(by_class[0]) else ""
                why = one_class or self._unvarying(queries, gallery)
                share = self._share(by_class, len(labels), count)
                precision = TableCell(
                    sum(float(_precision(irrelevant).sum()) for irrelevant in by_class) / count
                )
                first.append(
                    TableCell(share.value, "degenerate", why) if why and share.status == "ok" else share
                )
                mean.append(TableCell(precision.value, "degenerate", why) if why else precision)
        return first, mean

    def _unvarying(self, queries: Tensor, gallery: Tensor) -> str:
        """Return why images cannot be told apart, or empty."""
        for name, vectors in (("queries", queries), ("gallery", gallery)):
            if not bool((points(vectors, vectors, self.distance)[1].abs() > NEGLIGIBLE).any()):
                what = "direction" if self.distance == "cosine" else "point"
                return f"all {name} have one {what}, so that every image is as near as the others"
        return ""

    def _share(self, by_class: list[Tensor], images: int, count: int) -> TableCell:
        """Return the cell of the share of queries with an image of their class among the nearest.

        Args:
            by_class: Result of ``ranks``.
            images: Number of images; a query's gallery is all others.
            count: Number of queries.
        """
        if self.top > images - 1:
            why = f"top {self.top} of a gallery of {images - 1}: every query would count"
            return TableCell(None, "undefined", why)
        value = sum(int((irrelevant[:, 0] < self.top).sum()) for irrelevant in by_class) / count
        # A class of k images has images - k others, the most that can be nearer than the first of its own.
        if all(images - len(irrelevant) < self.top for irrelevant in by_class):
            return TableCell(
                value, "degenerate", f"top {self.top}: every query counts, however near the others are"
            )
        return TableCell(value)


def _precision(irrelevant: Tensor) -> Tensor:
    """Return the average precision of each query, float64 ``(queries,)``."""
    rank = torch.arange(1, irrelevant.shape[1] + 1, device=irrelevant.device)
    return (rank / (rank + irrelevant).double()).mean(1)
