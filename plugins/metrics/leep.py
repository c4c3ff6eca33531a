"""LEEP: the log likelihood of target labels under the source network's predictions.

Paper: Nguyen, Hassner, Seeger, Archambeau (2020), "LEEP: A New Measure to Evaluate Transferability of Learned
    Representations", Sec. 3, Eq. 2.
Equation: 1/n sum_i log sum_z P(y_i | z) p_i(z), with p_i the source network's probabilities, P(y, z) = 1/n sum over i
    with y_i = y of p_i(z). A source class that no example gets has no part in it. At most 0.
Needs the source network with its head: the metric sees its logits.
Cost: none beside the pass.
Limits: it needs the source's head. Sources with few classes, or classes far from the target's, give scores near those
    of permuted labels.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from compatkit import hookimpl
from compatkit.hooks import Register

from ._scores import Floats, Labels, PredictionScore, conditional, joint, softmax

compatkit_api = 1


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``leep``."""
    register("leep", LEEP)


@attrs.define(eq=False, kw_only=True)
class LEEP(PredictionScore):
    """The table ``leep``, in nats by example."""

    name = "leep"
    unit = "nats"
    estimator = "log likelihood of the expected empirical predictor"
    paper = "Nguyen et al. (2020), LEEP: A New Measure to Evaluate Transferability of Learned Representations"
    equation = "Eq. 2"

    def prepared(self, values: Floats) -> tuple[Callable[[Labels], float], str]:
        """See ``Score.prepared``."""
        shares = softmax(values)

        def score(labels: Labels) -> float:
            predicted = shares @ conditional(joint(shares, labels)).T
            return float(np.log(predicted[np.arange(len(labels)), labels]).mean())

        return score, ""
