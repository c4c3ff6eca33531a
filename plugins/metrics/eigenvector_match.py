"""Eigenvector match: which principal directions of the data the principal directions of a layer's filters are.

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Fig. 3 and App. D.1.
Equation: for each eigenvector w of the filters' covariance, the eigenvectors v of the data's with |<v, w>| above
    ``threshold``. ``best`` is the largest |<v, w>|; ``combined`` is the cosine of w and the sum of <v, w> v over them,
    sqrt(sum of <v, w>^2). Where eigenvalues of the filters are nearly equal, single eigenvectors are arbitrary within
    their space, and ``combined`` says more than ``best`` (App. D.1).
Reading: of d directions, the best of random ones has |<v, w>| of about sqrt(2 log(d) / d), which ``chance`` estimates.
Cost: one pass for the patches' covariance, two eigendecompositions of d x d numbers for each layer.
Limits: it needs more filters than a filter has values, as in ``misalignment``. Directions of equal variance are
    arbitrary. 192 filters were too few for 75 dimensions here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.errors import UsageError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Register

from ..patch_covariance import ONE_DIRECTION, Eigenspaces, filter_covariance
from ._alignment import PAPER, PatchMetric, SeenPatches

compatkit_api = 1
THRESHOLD = 0.4
"""The paper's, in Fig. 3."""
COSINES = ("best", "combined", "chance")
PLACES = ("rank", "matches")
DRAWS = 200
"""Random directions for ``chance``."""


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``eigenvector_match``."""
    register("eigenvector_match", EigenvectorMatch)


@attrs.frozen(eq=False)
class MatchedDirections:
    """The first eigenvectors of the filters' covariance and what they match.

    Attributes:
        values: Eigenvalues of the filters' covariance, ``(n,)``.
        vectors: Its eigenvectors w as rows, ``(n, d)``.
        cosines: <v, w> for every eigenvector v of the data, the strongest first, ``(n, d)``.
        matching: Which of these are above the threshold, bool ``(n, d)``.
        combined: Sum of <v, w> v over the v that match, ``(n, d)``; zeros where none does.
        notes: Why w, or the v that it matches best, is arbitrary, or empty, for each w.
    """

    values: Tensor
    vectors: Tensor
    cosines: Tensor
    matching: Tensor
    combined: Tensor
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Tensor, weights: Tensor, top: int, threshold: float = THRESHOLD) -> MatchedDirections:
        """Compare covariances of data and filters, float64 ``(d, d)``."""
        spaces, filters = Eigenspaces.of(data), Eigenspaces.of(weights)
        cosines = filters.vectors[:top] @ spaces.vectors.T
        matching = cosines.abs() > threshold
        best = cosines.abs().argmax(1).tolist()
        notes = [
            f"of the filters, {own}"
            if own
            else f"of the data, {spaces.arbitrary[at]}"
            if spaces.arbitrary[at]
            else ""
            for own, at in zip(filters.arbitrary[:top], best, strict=True)
        ]
        combined = (cosines * matching) @ spaces.vectors
        return cls(filters.values[:top], filters.vectors[:top], cosines, matching, combined, tuple(notes))


def match_pictures(matched: MatchedDirections, shape: Sequence[int]) -> tuple[NDArray[np.float64], list[str]]:
    """Return each w as an image beside the combination of the v that it matches, and titles.

    Args:
        matched: Matches of a layer.
        shape: Channels, height and width of a filter.

    Returns:
        ``(2 n, channels, height, width)`` for ``compatkit.pictures.signed``; titles are the rank of w, and the ranks of
        the matching v.

    Raises:
        UsageError: The shape does not hold a filter.
    """
    if np.prod(shape) != matched.vectors.shape[1]:
        raise UsageError(
            f"Expected filters of {tuple(shape)} values; they have {matched.vectors.shape[1]} values."
        )
    pairs = torch.stack([matched.vectors, matched.combined], 1).reshape(-1, *shape)
    titles: list[str] = []
    for number, matching in enumerate(matched.matching, 1):
        ranks = (matching.nonzero().flatten() + 1).tolist()
        titles += [f"w{number}", "+".join(f"v{rank}" for rank in ranks) or "none"]
    return pairs.cpu().numpy(), titles


@attrs.define(eq=False)
class EigenvectorMatch(PatchMetric):
    """Tables by layer and eigenvector: ``eigenvector_match``, ``.../place`` and ``.../eigenvalue``.

    Attributes:
        top: Eigenvectors of the filters, the strongest first.
        threshold: An eigenvector of the data matches if |cos| is above this.
    """

    top: int = attrs.field(default=10, validator=COUNT)
    threshold: float = attrs.field(default=THRESHOLD, validator=Number(above=0, below=1))

    def finalize(self, state: SeenPatches, layers: Mapping[str, nn.Module]) -> tuple[Table, ...]:
        """Return the tables."""
        names = tuple(state.layers) or tuple(layers)
        ranks = tuple(str(rank) for rank in range(1, self.top + 1))
        matches = {name: self._matched(state, name, layers) for name in names}
        common: dict[str, Any] = {
            "estimator": f"eigenvectors of the data above |cos| {self.threshold:g} match",
            "count": state.examples,
            "paper": PAPER,
            "equation": "Fig. 3, App. D.1",
        }
        return (
            Table(
                name="eigenvector_match",
                axes={"layer": names, "vector": ranks, "cosine": COSINES},
                cells=tuple(cell for match in matches.values() for cell in self._cosines(match)),
                unit="1",
                direction="higher",
                **common,
            ),
            Table(
                name="eigenvector_match/place",
                axes={"layer": names, "vector": ranks, "what": PLACES},
                cells=tuple(cell for match in matches.values() for cell in self._places(match)),
                unit="count",
                direction="none",
                **common,
            ),
            Table(
                name="eigenvector_match/eigenvalue",
                axes={"layer": names, "vector": ranks},
                cells=tuple(cell for match in matches.values() for cell in self._values(match)),
                unit="1",
                direction="none",
                **common,
            ),
        )

    def _matched(
        self, state: SeenPatches, name: str, layers: Mapping[str, nn.Module]
    ) -> MatchedDirections | str:
        """Return the matches of a layer, or why there are none."""
        seen = state.layers.get(name)
        if seen is None or seen.lacking:
            return "no examples" if seen is None else seen.lacking
        if len(seen.mean) == 1:
            return ONE_DIRECTION
        weights = filter_covariance(self.filters(name, layers[name.split("#")[0]]))
        return MatchedDirections.of(
            seen.covariance, weights.to(seen.products.device), self.top, self.threshold
        )

    def _cosines(self, matched: MatchedDirections | str) -> Iterator[TableCell]:
        if not isinstance(matched, str):
            chance = expected_best(matched.vectors.shape[1])
            for best, combined, note in zip(
                matched.cosines.abs().amax(1), matched.combined, matched.notes, strict=True
            ):
                yield _noted(min(1.0, float(best)), note)
                yield _noted(min(1.0, float(combined.norm())), note)
                yield TableCell(chance, "approximate", f"mean of {DRAWS} random directions")
        yield from self._missing(matched, len(COSINES))

    def _places(self, matched: MatchedDirections | str) -> Iterator[TableCell]:
        if not isinstance(matched, str):
            for cosines, matching, note in zip(
                matched.cosines.abs(), matched.matching, matched.notes, strict=True
            ):
                yield _noted(float(cosines.argmax()) + 1, note)
                yield _noted(float(matching.sum()), note)
        yield from self._missing(matched, len(PLACES))

    def _values(self, matched: MatchedDirections | str) -> Iterator[TableCell]:
        if not isinstance(matched, str):
            yield from (TableCell(value) for value in matched.values.tolist())
        yield from self._missing(matched, 1)

    def _missing(self, matched: MatchedDirections | str, each: int) -> Iterator[TableCell]:
        count = 0 if isinstance(matched, str) else len(matched.values)
        reason = matched if isinstance(matched, str) else f"the layer has {count} directions"
        yield from [TableCell(None, "undefined", reason)] * ((self.top - count) * each)


def _noted(value: float, note: str) -> TableCell:
    return TableCell(value, "degenerate" if note else "ok", note)


def expected_best(width: int) -> float:
    """Return the mean over random directions of the largest |cosine| with ``width`` orthonormal vectors."""
    drawn = torch.randn(DRAWS, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return float((drawn.abs().amax(1) / drawn.norm(dim=1)).mean())
