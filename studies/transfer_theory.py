"""The theory of transfer: does the bound on the way of the weights order sources as their rules do?

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 6, Theorems 1 and 2: wide two-
    layer networks move less, with smaller gradients, from a source whose labels carry over. No figures.
Here: parity of digits as +-1 labels. ``theory_transfer`` gives the bound of |W_Q - W_P| (Theorem 2) and the residual
    of the labels |y_Q - y_PQ| (Theorem 1), each beside its value from scratch. Sources: other images of the target
    with the same rule, USPS with the same rule, clothes with the parity of their class number, Gaussian inputs with a
    rule of their own.
Controls: ``permuted`` labels and ``opposite`` ones must not lie below the value from scratch.
Check: a network of ``width`` hidden units, trained by gradient descent on the source and then on the target, moves
    ``distance`` in ``steps`` steps; the theory predicts ``distance-theory``, which is the bound for infinitely many.

    compatkit study run 4.13 --seeds 5 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Run, Study
from compatkit.hooks import Register
from compatkit_plugins.metrics.theory_transfer import Transfer, gram  # pyright: ignore[reportMissingImports]

from ._fine_tuning import REFERENCE

ARMS = ("same-rule", "usps", "fashion", "permuted", "opposite", "gaussian", "gaussian-permuted")
CPU: dict[str, Any] = {"count": 300, "side": 14, "width": 1024, "steps": 100, "kappa": 0.01, "dimensions": 20}
Pair = tuple[Any, Any]
"""Inputs of norm 1, ``(n, d)``, and labels, ``(n,)``."""


def unit(rows: Any) -> Any:
    """Return rows of norm 1."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def of_split(split: ck.Split, settings: Mapping[str, Any], seed: int) -> Pair:
    """Return some images and the parity of their classes, -1 for even ones."""
    some = split.subset(settings["count"], seed=seed).resized((settings["side"],) * 2)
    images = some.read(range(len(some))).reshape(len(some), -1).astype(np.float64)
    return unit(images), 2.0 * (some.labels % 2) - 1


def pair(run: Run) -> tuple[Pair, Pair]:
    """Return source and target."""
    settings, draw = run.settings, np.random.default_rng(run.seed)
    if run.arm.startswith("gaussian"):
        rule = draw.normal(size=settings["dimensions"])
        rows = [unit(draw.normal(size=(settings["count"], len(rule)))) for _ in range(2)]
        source, target = ((inputs, np.sign(inputs @ rule)) for inputs in rows)
    else:
        first, second = run.load("mnist").train.halves()
        target = of_split(second, settings, run.seed)
        others = {"usps": "usps", "fashion": "fashion_mnist"}
        source = of_split(run.load(others[run.arm]).train if run.arm in others else first, settings, run.seed)
    if run.arm.endswith("permuted"):
        source = (source[0], draw.permutation(source[1]))
    if run.arm == "opposite":
        source = (source[0], -source[1])
    return source, target


def rate(count: int) -> float:
    """Return a stable rate: the largest eigenvalue of the Gram matrix of unit vectors is at most half their count."""
    return 2 / count


def trained(settings: Mapping[str, Any], seed: int, source: Pair | None, target: Pair) -> float:
    """Return how far a network moves for the target, by gradient descent on half the squared error.

    Args:
        settings: Settings of the run.
        seed: Seed of the weights.
        source: Task that it learns first; None for nothing.
        target: Task that it then learns.
    """
    draw, width = np.random.default_rng(seed), settings["width"]
    inner = (settings["kappa"] * draw.normal(size=(width, target[0].shape[1]))).astype(np.float32)
    outer = (draw.choice((-1.0, 1.0), size=width) / np.sqrt(width)).astype(np.float32)
    before = inner
    for inputs, labels in (pair for pair in (source, target) if pair is not None):
        rows, targets, before = inputs.astype(np.float32), labels.astype(np.float32), inner.copy()
        for _ in range(settings["steps"]):
            hidden = rows @ inner.T
            error = np.maximum(hidden, 0) @ outer - targets
            inner -= rate(len(rows)) * ((hidden > 0) * error[:, None] * outer).T @ rows
    return float(np.sqrt(np.square(inner - before, dtype=np.float64).sum()))


def predicted(settings: Mapping[str, Any], source: Pair | None, target: Pair) -> float:
    """Return the same of an infinitely wide network, by the Gram matrices: the bound for infinitely many steps."""

    def learned(kernel: Any, labels: Any) -> Any:
        """Return H^-1 (1 - (1 - rate H)^steps) labels."""
        values, vectors = np.linalg.eigh(kernel)
        share = (1 - (1 - rate(len(kernel)) * values) ** settings["steps"]) / values
        return vectors @ (share * (vectors.T @ labels))

    rest = target[1]
    if source is not None:
        rest = rest - gram(source[0], target[0]).T @ learned(gram(source[0], source[0], same=True), source[1])
    own = gram(target[0], target[0], same=True)
    solution = learned(own, rest)
    return float(np.sqrt(solution @ own @ solution))


def run(run: Run) -> Outcome:
    """Return bounds and residuals of the arm, and how far a wide network moves."""
    source, target = pair(run)
    bounds = Transfer(source[0], target[0]).bounds(source[1][:, None], target[1][:, None])
    values: dict[str, float | None] = {
        "bound": bounds.bound,
        "bound-scratch": bounds.scratch,
        "bound-ratio": bounds.bound / bounds.scratch,
        "residual": bounds.residual,
        "residual-ratio": bounds.residual / bounds.labels,
    }
    for name, begun in (("", source), ("-scratch", None)):
        values[f"distance{name}"] = trained(run.settings, run.seed, begun, target)
        values[f"distance-theory{name}"] = predicted(run.settings, begun, target)
    return Outcome(values=values)


STUDY = Study(
    title="theory of transfer",
    question="Is the way that the weights of a wide two-layer network have to go shorter from a source with the same "
    "rule than from scratch, and than from a source with permuted labels?",
    reference=f"{REFERENCE} Sec. 6, Theorems 1 and 2",
    arms=ARMS,
    measures=(
        Measure(name="bound", title="bound of the distance (Theorem 2)", better="lower", drawn=False),
        Measure(name="bound-scratch", title="the same from scratch", better="lower", drawn=False),
        Measure(name="bound-ratio", title="bound over that from scratch", better="lower"),
        Measure(name="residual", title="residual of the labels (Theorem 1)", better="lower", drawn=False),
        Measure(name="residual-ratio", title="residual over the norm of the labels", better="lower"),
        Measure(name="distance", title="distance of a trained network", better="lower"),
        Measure(name="distance-theory", title="distance by the theory", better="lower"),
        Measure(
            name="distance-scratch",
            title="distance of a trained network from scratch",
            better="lower",
            drawn=False,
        ),
        Measure(
            name="distance-theory-scratch",
            title="distance by the theory from scratch",
            better="lower",
            drawn=False,
        ),
    ),
    sizes={"cpu": CPU, "paper": {**CPU, "count": 5000, "side": 28, "width": 20_000, "steps": 2000}},
    scale={"cpu": "The paper proves the bound, and measures nothing.", "paper": ""},
    paper=(),
    run=run,
    data=("mnist", "usps", "fashion_mnist"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 4.13."""
    register("4.13", lambda: STUDY)
