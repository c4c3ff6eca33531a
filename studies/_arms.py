"""The arms of "Reviving Autoencoder Pretraining": plugins of each arm, and training settings of the studies."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import compatkit as ck
from compatkit.experiments.studies import Measure, Reported, Run

REFERENCE = "Reviving Autoencoder Pretraining (anonymous, under review at ICLR 2021)"
VARIANTS = {"rr": "full", "rr-local": "local", "rr-first": "first", "rr-sampled": "full"}
SAMPLED = 0.125
"""Share of the layers that ``rr-sampled`` draws: it adds an eighth of the cost of ``rr`` to a step."""


def regularizers(arm: str, settings: Mapping[str, Any], **reverse: Any) -> list[ck.RegularizerConfig]:
    """Return the plugins of an arm.

    Args:
        arm: ``std``: none; ``pre``: greedy layer-wise autoencoders before training, also for ``pre-supervised`` (the
            study's ``pre`` takes no step on labels); ``ort``: SRIP; ``rr``: the full reverse pass, ``rr-local``: each
            layer separately, ``rr-first``: the full one that compares only images, ``rr-sampled``: an unbiased
            estimate of the full one (not in the paper).
        settings: ``ort`` is the weight of SRIP, ``rr`` that of the reverse pass, ``pre_steps`` and ``pre_lr`` are for
            each layer's autoencoder.
        **reverse: Further settings of the reverse pass.
    """
    if arm == "ort":
        return [ck.use("orthogonality", weight=settings["ort"])]
    if arm in ("pre", "pre-supervised"):
        batch = {"batch_size": settings["batch_size"]}
        return [ck.use("layerwise_autoencoder", steps=settings["pre_steps"], lr=settings["pre_lr"], **batch)]
    if arm == "rr-sampled":
        reverse["sample_layers"] = SAMPLED
    if arm in VARIANTS:
        return [ck.use("reverse_pass", weight=settings["rr"], variant=VARIANTS[arm], **reverse)]
    return []


def half_sum(weight: float, batch_size: int, elements: Mapping[str, int]) -> dict[str, float]:
    """Return the weights of mean squares by layer that equal ``weight`` on half a sum of squares.

    The authors' loss is ``weight * 0.5 * sum over layers, images and elements of (d - d')^2``; ours is the sum over
    layers of the mean over images and elements. With B images and n elements per layer,
    ``weight * 0.5 * sum = weight * 0.5 * B * n * mean``.

    Args:
        weight: The authors' lambda.
        batch_size: B, images per batch.
        elements: n, the input size of each layer by path.
    """
    return {name: 0.5 * weight * batch_size * count for name, count in elements.items()}


def trainer(run: Run, steps: int, lr: float, batch_size: int, **settings: Any) -> ck.Trainer:
    """Return a trainer with the paper's settings: Adam at a constant rate, no decay, float32."""
    plain = {"schedule": "constant", "weight_decay": 0.0, "precision": "float32", "log_every": 500}
    return ck.Trainer(
        steps=steps, lr=lr, batch_size=batch_size, seed=run.seed, progress=False, **{**plain, **settings}
    )


GRADIENT = Measure(
    name="gradient-ratio",
    title="gradient of the reverse pass, as a share of the task's",
    better="none",
    drawn=False,
)
"""Norms over the weights of the network, averaged over the rows of the history; see ``SetUp.compare_gradients``."""


def gradient_ratio(fit: ck.Fit) -> float | None:
    """Return ``GRADIENT`` of a fit; None if no layer was reversed."""
    name = "reverse_pass/gradient_ratio"
    ratios = [row["losses"][name] for row in fit.history if name in row["losses"]]
    return mean(ratios) if ratios else None


SECONDS = Measure(name="seconds", title="training time", unit="s", better="lower", drawn=False)


def timed(
    plan: ck.Trainer, task: ck.Task, used: Sequence[ck.RegularizerConfig]
) -> tuple[ck.Fit, dict[str, float | None]]:
    """Train one network; return the fit and the values of ``SECONDS`` and ``GRADIENT``."""
    began = time.perf_counter()
    fit = plan.fit([task], used)
    seconds = round(time.perf_counter() - began, 2)
    return fit, {SECONDS.name: seconds, GRADIENT.name: gradient_ratio(fit)}


def reported(arm: str, metric: str, value: float, where: str) -> Reported:
    """Return a figure of the paper in per cent."""
    return Reported(arm, metric, value, where, "%")


def accuracy(fit: ck.Fit, split: ck.Split) -> float | None:
    """Return the accuracy of the only network of a fit."""
    (state,) = fit.tasks.values()
    return ck.measure(state, split, ["accuracy"], batch_size=512).results["accuracy"].value  # type: ignore[union-attr]
