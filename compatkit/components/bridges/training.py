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
from compatkit.components.bridges.inputs import BridgeInputs, Passes
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


def stitched(inputs: BridgeInputs, teacher: nn.Module) -> Candidate:
    """Return the head after a linear map trained to reproduce the logits of the head's own network.

    Args:
        inputs: Images and features.
        teacher: The head on its own extractor, with statistics of these images.
    """
    wanted = inputs.answers(teacher, inputs.fit, inputs.seed).softmax(dim=1)
    candidate = by_ridge(inputs)
    facts = _facts(inputs, "stitch", candidate, STITCHING)
    _train(candidate, _weights(candidate), inputs.features, wanted, STITCHING, inputs.seed)
    return _finished(candidate, facts)


def stitched_to_labels(inputs: BridgeInputs, labels: Labeled) -> Candidate:
    """Return the head after a linear map trained with labels.

    Args:
        inputs: Both parts and their features.
        labels: Features and classes to train on.
    """
    candidate = by_ridge(inputs)
    facts = _facts(inputs, "stitch-labels", candidate, STITCHING, len(labels.targets))
    _train(candidate, _weights(candidate), labels.features, labels.targets, STITCHING, inputs.seed)
    return _finished(candidate, facts)


def finetuned(inputs: BridgeInputs, labels: Labeled) -> Candidate:
    """Return a linear map and the head, trained together with labels.

    Args:
        inputs: Both parts and their features.
        labels: Features and classes to train on.
    """
    candidate = by_ridge(inputs)
    facts = _facts(inputs, "finetune", candidate, FINETUNING, len(labels.targets))
    weights = [*_weights(candidate), *candidate.head.parameters()]
    _train(candidate, weights, labels.features, labels.targets, FINETUNING, inputs.seed)
    return attrs.evolve(_finished(candidate, facts), refitted=True)


def informed(inputs: BridgeInputs) -> Candidate:
    """Return the head trained by information maximization.

    Minimizes mean H(p_x) - H(mean p_x) over scales and shifts of batch normalization and the head's entry layers
    (Krause, Perona and Gomes 2010; as SHOT, Liang et al. 2020). Assumes classes of equal size.
    """
    candidate = absorbed(inputs)
    features = next(iter(inputs.features.first())).clone()
    layers = [entry.layer for entry in entries(candidate.head, features)]
    weights = [weight for layer in (*layers, *norm_layers(candidate.head)) for weight in layer.parameters()]
    facts = _facts(inputs, "infomax", candidate, INFORMING)
    _train(candidate, weights, inputs.features, None, INFORMING, inputs.seed)
    return _finished(candidate, facts)


def information(logits: Tensor) -> Tensor:
    """Return mean H(p_x) - H(mean p_x) in nats, low for confident and balanced predictions ``(n, outputs)``.

    Returns:
        A scalar.
    """
    logs = logits.log_softmax(dim=1)
    mean = logs.exp().mean(dim=0)
    return torch.special.entr(mean).sum().neg() - (logs.exp() * logs).sum(dim=1).mean()


def _train(
    candidate: Candidate,
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
    network, chosen = candidate.network, list(weights)
    inputs = _in_memory(features)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    for parameter in chosen:
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(chosen, lr=settings["lr"])
    draw = torch.Generator().manual_seed(seed)
    size = min(BATCH, len(inputs))
    network.eval()
    with batch_statistics(network), torch.enable_grad():
        for step in range(int(settings["steps"])):
            indices = torch.randperm(len(inputs), generator=draw)[:size]
            out = network(inputs[indices]).float()
            loss = information(out) if wanted is None else F.cross_entropy(out, wanted[indices])
            if not bool(torch.isfinite(loss)):
                raise DataError(
                    f"The loss of step {step} is not finite; check the features, or leave this rung out."
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for parameter in network.parameters():
        parameter.requires_grad_(True)
        parameter.grad = None


def _in_memory(features: Passes) -> Tensor:
    for _ in features:
        pass
    if not features.cached:
        raise DataError(
            "The trained rungs need the features of all images in memory, where they do not fit. Use fewer images, or "
            "the rungs in closed form."
        )
    return torch.cat(list(features.first()))


def _weights(candidate: Candidate) -> list[nn.Parameter]:
    if candidate.fitted is None:
        raise IncompatibleError("There is no projection to train.")
    return list(candidate.fitted.module.parameters())


def _facts(
    inputs: BridgeInputs, method: str, candidate: Candidate, settings: dict[str, float], labels: int = 0
) -> dict[str, Any]:
    return {**candidate.method, "method": method, **settings, "seed": inputs.seed} | (
        {"labels": labels} if labels else {}
    )


def _finished(candidate: Candidate, facts: dict[str, Any]) -> Candidate:
    """Return the bridge with re-estimated statistics."""
    fitted = candidate.fitted
    if fitted is not None:
        facts_before = {name: value for name, value in fitted.training.items() if name != "residual"}
        fitted = attrs.evolve(fitted, training={**facts_before, **facts})
    return attrs.evolve(candidate, fitted=fitted, method=facts).estimated()
