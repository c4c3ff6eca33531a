"""A linear map, trained further: towards the logits of the head's own network, or with labels, the head too or not."""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.components.bridges.rungs import RungFit, RungInputs
from compatkit.hooks import Register

from ._linear import linear
from ._training import train

compatkit_api = 1

STITCHING = {"lr": 3e-3, "steps": 200}
FINETUNING = {"lr": 1e-3, "steps": 200}


@hookimpl
def compatkit_rungs(register: Register) -> None:
    """Offer ``stitch``, ``stitch-labels`` and ``finetune``."""
    register("stitch", stitch)
    register("stitch-labels", stitch_to_labels)
    register("finetune", finetune)


def stitch(inputs: RungInputs) -> RungFit:
    """Return the head after a linear map trained to reproduce the logits of the head's own network."""
    return _trained(inputs, inputs.features(), inputs.logits().softmax(dim=1), STITCHING)


def stitch_to_labels(inputs: RungInputs) -> RungFit:
    """Return the head after a linear map trained with labels."""
    features, targets = inputs.labeled()
    return _trained(inputs, features, targets, STITCHING, labels=len(targets))


def finetune(inputs: RungInputs) -> RungFit:
    """Return a linear map and the head, trained together with labels."""
    features, targets = inputs.labeled()
    return _trained(inputs, features, targets, FINETUNING, labels=len(targets), with_head=True)


def _trained(
    inputs: RungInputs,
    features: Tensor,
    targets: Tensor,
    settings: dict[str, float],
    labels: int = 0,
    with_head: bool = False,
) -> RungFit:
    fitted, head = linear(inputs), inputs.head()
    network = nn.Sequential(cast("nn.Module", fitted.project), head)
    weights = network.parameters() if with_head else network[0].parameters()
    train(
        network,
        weights,
        features,
        lambda logits, indices: F.cross_entropy(logits, targets[indices]),
        settings,
        inputs.seed,
    )
    facts = {name: fitted.facts[name] for name in ("strength", "samples")} | settings | {"seed": inputs.seed}
    return RungFit(
        fitted.project, head if with_head else None, facts | ({"labels": labels} if labels else {})
    )
