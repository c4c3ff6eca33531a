"""Trained rungs: continue to train a bridge in closed form, on fixed features.

All start from the linear map of ridge regression (information maximization from the absorbed bridge), train with batch
statistics, and re-estimate stored statistics at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit.components.bridges.absorbing import absorbed, entries
from compatkit.components.bridges.closed import Candidate, by_ridge
from compatkit.components.bridges.ground import Ground, Passes
from compatkit.errors import DataError, IncompatibleError
from compatkit.evaluation.normalization import batch_statistics, norm_layers

STITCHING = {"lr": 3e-3, "steps": 200}
FINETUNING = {"lr": 1e-3, "steps": 200}
INFORMING = {"lr": 2e-3, "steps": 150}
BATCH = 64
"""Batch size."""


@attrs.frozen(eq=False)
class Labeled:
    """Labeled images of classes that the head knows.

    Attributes:
        features: The extractor's features, after the adapters without weights.
        targets: Wanted outputs of the head, int64 ``(n,)``.
    """

    features: Passes
    targets: Tensor


def stitched(ground: Ground, teacher: nn.Module) -> Candidate:
    """Return the head after a linear map trained to reproduce the logits of the head's own network.

    Args:
        ground: Images and features.
        teacher: The head on its own extractor, with statistics of these images.
    """
    wanted = ground.answers(teacher, ground.fit, ground.seed).softmax(dim=1)
    made = by_ridge(ground)
    facts = _facts(ground, "stitch", made, STITCHING)
    _train(made, _weights(made), ground.features, wanted, STITCHING, ground.seed)
    return _done(made, facts)


def stitched_to_labels(ground: Ground, labels: Labeled) -> Candidate:
    """Return the head after a linear map trained with labels.

    Args:
        ground: Both parts and their features.
        labels: Features and classes to train on.
    """
    made = by_ridge(ground)
    facts = _facts(ground, "stitch-labels", made, STITCHING, len(labels.targets))
    _train(made, _weights(made), labels.features, labels.targets, STITCHING, ground.seed)
    return _done(made, facts)


def finetuned(ground: Ground, labels: Labeled) -> Candidate:
    """Return a linear map and the head, trained together with labels.

    Args:
        ground: Both parts and their features.
        labels: Features and classes to train on.
    """
    made = by_ridge(ground)
    facts = _facts(ground, "finetune", made, FINETUNING, len(labels.targets))
    weights = [*_weights(made), *made.head.parameters()]
    _train(made, weights, labels.features, labels.targets, FINETUNING, ground.seed)
    return attrs.evolve(_done(made, facts), refitted=True)


def informed(ground: Ground) -> Candidate:
    """Return the head trained by information maximization.

    Minimizes mean H(p_x) - H(mean p_x) over scales and shifts of batch normalization and the head's entry layers
    (Krause, Perona and Gomes 2010; as SHOT, Liang et al. 2020). Assumes classes of equal size.
    """
    made = absorbed(ground)
    features = next(iter(ground.features.first())).clone()
    layers = [one.layer for one in entries(made.head, features)]
    weights = [one for layer in (*layers, *norm_layers(made.head)) for one in layer.parameters()]
    facts = _facts(ground, "infomax", made, INFORMING)
    _train(made, weights, ground.features, None, INFORMING, ground.seed)
    return _done(made, facts)


def information(logits: Tensor) -> Tensor:
    """Return mean H(p_x) - H(mean p_x) in nats, low for confident and balanced predictions ``(n, outputs)``.

    Returns:
        A scalar.
    """
    logs = logits.log_softmax(dim=1)
    mean = logs.exp().mean(dim=0)
    return torch.special.entr(mean).sum().neg() - (logs.exp() * logs).sum(dim=1).mean()


def _train(
    made: Candidate,
    weights: Iterable[nn.Parameter],
    features: Passes,
    wanted: Tensor | None,
    settings: dict[str, float],
    seed: int,
) -> None:
    """Train selected weights of a bridge on fixed features.

    Raises:
        DataError: The features do not fit in memory, or a loss is not finite.
    """
    network, chosen = made.network, list(weights)
    given = _together(features)
    for one in network.parameters():
        one.requires_grad_(False)
    for one in chosen:
        one.requires_grad_(True)
    optimizer = torch.optim.Adam(chosen, lr=settings["lr"])
    draw = torch.Generator().manual_seed(seed)
    size = min(BATCH, len(given))
    network.eval()
    with batch_statistics(network), torch.enable_grad():
        for step in range(int(settings["steps"])):
            some = torch.randperm(len(given), generator=draw)[:size]
            out = network(given[some]).float()
            loss = information(out) if wanted is None else F.cross_entropy(out, wanted[some])
            if not bool(torch.isfinite(loss)):
                raise DataError(
                    f"The loss of step {step} is not finite; check the features, or leave this rung out."
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for one in network.parameters():
        one.requires_grad_(True)
        one.grad = None


def _together(features: Passes) -> Tensor:
    for _ in features:
        pass
    if not features.held:
        raise DataError(
            "The trained rungs need the features of all images in memory, where they do not fit. Use fewer images, or "
            "the rungs in closed form."
        )
    return torch.cat(list(features.first()))


def _weights(made: Candidate) -> list[nn.Parameter]:
    if made.fitted is None:
        raise IncompatibleError("There is no projection to train.")
    return list(made.fitted.module.parameters())


def _facts(
    ground: Ground, method: str, made: Candidate, settings: dict[str, float], labels: int = 0
) -> dict[str, Any]:
    return {**made.method, "method": method, **settings, "seed": ground.seed} | (
        {"labels": labels} if labels else {}
    )


def _done(made: Candidate, facts: dict[str, Any]) -> Candidate:
    """Return the bridge with re-estimated statistics."""
    fitted = made.fitted
    if fitted is not None:
        kept = {name: value for name, value in fitted.training.items() if name != "residual"}
        fitted = attrs.evolve(fitted, training={**kept, **facts})
    return attrs.evolve(made, fitted=fitted, method=facts).estimated()
