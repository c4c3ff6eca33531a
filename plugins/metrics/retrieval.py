"""Retrieval: whether the nearest images are of the query's class, queries and gallery embedded by two networks.

Papers: Shen, Xiong, Xia, Soatto (2020), "Towards Backward-Compatible Representation Learning": self-test, cross-test
    and the empirical criterion, by which new queries may meet an old gallery where M(new, old) is above M(old, old).
    Ramanujan, Vasu, Farhadi, Tuzel, Pouransari (2022), "Forward Compatible Training": CMC top-k and mAP, each image of
    a set a query against all others.
Equations: for a query, irr_j is how many images of other classes are as near to it as the j-th nearest of its own
    class, or nearer. It counts for ``retrieval`` (CMC) where irr_1 < ``top``; its average precision is the mean over j
    of j / (j + irr_j). Both are means over the queries.
Ties go against the query, so that features that are all the same retrieve nothing. A query is no part of its gallery;
    images whose class no other image has are no queries, and stay in the gallery.
Deviation: cosine similarity is of features of unit Euclidean length; the code published with the second paper divides
    by the sum of absolute values there.
Cost: keeps the features of all images; n^2 similarities a pair of networks in float64, 512 queries at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from compatkit import hookimpl
from compatkit.errors import DataError, UsageError
from compatkit.hooks import Register
from compatkit.metrics import Cell, Table

from ._partners import partner

compatkit_api = 1
QUERIES = 512
ROUNDING = 1e-12
"""Similarities, in float64, that differ by less are the same: a product depends on its place in the matrix."""
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
    """Return, for each class of two images at least, how many images of others come before those of its own.

    Args:
        queries: ``(n, d)``.
        gallery: Row by row of the same images, by another network or the same, ``(n, d)``.
        labels: ``(n,)``.
        distance: ``"cosine"`` or ``"euclidean"``.

    Returns:
        For a class of k images int64 ``(k, k - 1)``: irr_j of each of them, j from 1.
    """
    queries, gallery = queries.double(), gallery.double()
    if distance == "cosine":
        queries, gallery = F.normalize(queries, dim=1), F.normalize(gallery, dim=1)
    found = []
    for one in labels.unique().tolist():
        own = (labels == one).nonzero()[:, 0]
        if len(own) > 1:
            parts = [_irrelevant(queries, gallery, own, part, distance) for part in own.split(QUERIES)]
            found.append(torch.cat(parts))
    return found


def _irrelevant(queries: Tensor, gallery: Tensor, own: Tensor, asked: Tensor, distance: str) -> Tensor:
    """Return irr_j of some queries of a class, ``(queries, k - 1)``; ``own`` are all k images of that class."""
    if distance == "cosine":
        near = queries[asked] @ gallery.T
    else:  # by differences: expanded squares would lose what tells near neighbours apart
        near = -torch.cdist(queries[asked], gallery, compute_mode="donot_use_mm_for_euclid_dist")
    among = torch.zeros(len(gallery), dtype=torch.bool, device=gallery.device)
    among[own] = True
    others = near[:, ~among].sort(1).values
    relevant = near[:, own][asked[:, None] != own].reshape(len(asked), len(own) - 1)
    relevant = relevant.sort(1, descending=True).values - ROUNDING
    return others.shape[1] - torch.searchsorted(others, relevant)


def _vectors(name: str, given: Tensor) -> Tensor:
    """Return a vector an image, ``(batch, d)``; a pooling may leave maps of one position."""
    if given.ndim < 2 or given.shape[2:].numel() != 1:
        raise DataError(
            f"retrieval: {name!r} gave a tensor of shape {tuple(given.shape)}, where a vector an image is expected. "
            "Choose the layer behind the pooling."
        )
    return given.flatten(1).float()


@attrs.frozen(eq=False)
class Seen:
    """Features so far, a tensor a batch.

    Attributes:
        labels: ``(batch,)``.
        features: By layer, of both networks, ``(batch, d)``.
    """

    labels: tuple[Tensor, ...] = ()
    features: Mapping[str, tuple[tuple[Tensor, Tensor], ...]] = attrs.field(factory=dict)


def _known(instance: object, attribute: attrs.Attribute[str], value: Any) -> None:
    if value not in ("cosine", "euclidean"):
        raise UsageError(f"retrieval: distance is 'cosine' or 'euclidean'; got {value!r:.60}.")


def _count(instance: object, attribute: attrs.Attribute[int], value: Any) -> None:
    if type(value) is not int or value < 1:
        raise UsageError(f"retrieval: top is a count of images, at least 1; got {value!r:.60}.")


@attrs.frozen
class Retrieval:
    """Retrieves images by the features of a layer that gives vectors.

    Attributes:
        top: Among how many nearest images one of the query's class has to be, >= 1.
        distance: ``"cosine"`` or ``"euclidean"``.
    """

    top: int = attrs.field(default=1, validator=_count)
    distance: str = attrs.field(default="cosine", validator=_known)

    def init(self) -> Seen:
        """Return no features."""
        return Seen()

    def update(
        self, state: Seen, labels: Tensor, outputs: Mapping[str, Tensor], other_outputs: Mapping[str, Tensor]
    ) -> Seen:
        """Return the features with one more batch.

        Raises:
            DataError: A layer's outputs are no vectors, or the other network has none.
        """
        found = {}
        for name, given in outputs.items():
            both = _vectors(name, given), _vectors(name, partner("retrieval", name, other_outputs))
            found[name] = (*state.features.get(name, ()), both)
        return Seen((*state.labels, labels), found)

    def merge(self, left: Seen, right: Seen) -> Seen:
        """Return the features of both."""
        names = {**left.features, **right.features}
        features = {one: (*left.features.get(one, ()), *right.features.get(one, ())) for one in names}
        return Seen((*left.labels, *right.labels), features)

    def finalise(self, state: Seen, layers: Mapping[str, Any]) -> tuple[Table, ...]:
        """Return both shares for queries and galleries by either network."""
        names = tuple(state.features) or tuple(layers)
        device = state.labels[0].device if state.labels else torch.device("cpu")
        labels = torch.cat([one.to(device) for one in state.labels]) if state.labels else torch.zeros(0)
        _, places, sizes = labels.unique(return_inverse=True, return_counts=True)
        asked = int((sizes[places] > 1).sum())
        found = [self._cells(state.features.get(name, ()), labels, asked) for name in names]
        axes = {"layer": names, "queries": SIDES, "gallery": SIDES}
        common: dict[str, Any] = {"axes": axes, "unit": "1", "direction": "higher", "count": asked, **PAPER}
        how = f"{self.distance}, every image against all others"
        first, mean = (tuple(cell for cells in found for cell in cells[place]) for place in (0, 1))
        name = "retrieval" if self.top == 1 else f"retrieval@{self.top}"
        return (
            Table(name=name, cells=first, estimator=how, **common),
            Table(name="retrieval/average_precision", cells=mean, estimator=how, **common),
        )

    def _cells(
        self, parts: tuple[tuple[Tensor, Tensor], ...], labels: Tensor, asked: int
    ) -> tuple[list[Cell], list[Cell]]:
        """Return the cells of a layer: queries by this and by the other network, and so the gallery for each."""
        if not asked:
            reason = "no class has two images" if len(labels) else "no examples"
            return [Cell(None, "undefined", reason)] * 4, [Cell(None, "undefined", reason)] * 4
        sides = [torch.cat([part[place].to(labels.device) for part in parts]) for place in (0, 1)]
        first, mean = [], []
        for queries in sides:
            for gallery in sides:
                if queries.shape[1] != gallery.shape[1]:
                    why = f"queries have {queries.shape[1]} features, the gallery has {gallery.shape[1]}"
                    first.append(Cell(None, "undefined", why))
                    mean.append(first[-1])
                    continue
                found = ranks(queries, gallery, labels, self.distance)
                first.append(Cell(sum(int((one[:, 0] < self.top).sum()) for one in found) / asked))
                mean.append(Cell(sum(float(_precision(one).sum()) for one in found) / asked))
        return first, mean


def _precision(irrelevant: Tensor) -> Tensor:
    """Return the average precision of each query, float64 ``(queries,)``."""
    place = torch.arange(1, irrelevant.shape[1] + 1, device=irrelevant.device)
    return (place / (place + irrelevant).double()).mean(1)
