"""NCE: the negative conditional entropy of target labels, given the classes that the source network predicts.

Paper: Tran, Nguyen, Hassner (2019), "Transferability and Hardness of Supervised Classification Tasks", Sec. 3, Eq. 4.
Equation: -H(Y | Z) = sum over y, z with P(y, z) > 0 of P(y, z) log P(y | z), with z_i the class that the source network
    predicts for example i; the paper has source labels of the same images, which other data have not. At most 0.
Needs the source network with its head: the metric sees its logits.
Cost: none beside the pass.
Limits: it needs the source's head, and sees only its first choice. It does not tell two extractors with equal
    predictions apart.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from compatkit import hookimpl
from compatkit.hooks import Register

from ._scores import Floats, Labels, PredictionScore, conditional, joint

compatkit_api = 1


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``nce``."""
    register("nce", NCE)


@attrs.define(eq=False, kw_only=True)
class NCE(PredictionScore):
    """The table ``nce``, in nats by example."""

    name = "nce"
    unit = "nats"
    estimator = "plug-in, predicted source classes"
    paper = "Tran et al. (2019), Transferability and Hardness of Supervised Classification Tasks"
    equation = "Eq. 4"

    def prepared(self, values: Floats) -> tuple[Callable[[Labels], float], str]:
        """See ``Score.prepared``."""
        shares = np.eye(values.shape[1])[values.argmax(1)]

        def score(labels: Labels) -> float:
            both = joint(shares, labels)
            occurs = both > 0
            return float((both[occurs] * np.log(conditional(both)[occurs])).sum())

        return score, ""
